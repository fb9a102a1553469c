// How rows of new keys and values become what a cache holds: one scalar writer for each format, in
// float32 and in the order of operations of docs/caches.md, "Writing". The specification of Append.
#ifndef FOVEA_REFERENCE_APPEND_H_
#define FOVEA_REFERENCE_APPEND_H_

#include <cstdint>

#include "fovea/kv_cache.h"

namespace fovea::reference {

// The bits of x rounded to binary16 and to bfloat16, to nearest even, and to the two formats of 8
// bits, likewise and saturating. NaN is 0x7e00, 0x7fc0, 0x7f and 0x7f.
uint16_t ToF16(float x);
uint16_t ToBF16(float x);
uint8_t ToE4M3FN(float x);
uint8_t ToE5M2(float x);

// One row of d elements as codes, dense in `codes`. Types with scales that are written: scale[g]
// and zero[g] (of those types that have a zero) of `groups` groups. With `fixed` [d], a scale for
// each element, no scale is written. Returns how many NaN became numbers.
int64_t WriteRow(DType dtype, const float* x, int64_t d, const float* fixed, int64_t groups,
                 unsigned char* codes, float* scale, float* zero);

// Append, token by token. What it is given must be valid.
AppendResult Append(const KVCache& cache, const NewTokens& tokens);

}  // namespace fovea::reference

#endif  // FOVEA_REFERENCE_APPEND_H_
