// How the keys of a problem lie: pages, rings, caches that have dropped what came first. Checks,
// and which positions each sequence has. Where rows are is the kernels' affair.
#ifndef FOVEA_SRC_CACHE_H_
#define FOVEA_SRC_CACHE_H_

#include <cstdint>

#include "errors.h"
#include "fovea/attention.h"

namespace fovea {

// Beyond any position, and small enough for sums of two not to overflow.
constexpr int64_t kMostPosition = int64_t{1} << 62;

// What pages, ring and key_offsets have to do with each other and with cu_seqlens_k.
Status CheckCache(const Problem& problem) noexcept;

// Pages of B sequences, in a problem that has any: how many keys a page has, and what is Tk.
// pages.begins are read.
Status CheckPages(const Problem& problem, int64_t B, int64_t* page, int64_t* Tk) noexcept;

// The positions of the resident keys of sequence b, of which there are at most `most`.
Status ReadKeys(const Problem& problem, int64_t b, int64_t most, const char* most_name,
                KeyRange* keys) noexcept;

// The pages of sequence b that hold keys are among those of k and v. `kv_length`: its resident
// keys.
Status CheckNumbers(const Problem& problem, int64_t b, int64_t kv_length) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_CACHE_H_
