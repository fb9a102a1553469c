// What a call of the header-only edition is: tensors, ring buffers, options and errors. Plain data
// of the same layout for every instruction set.
#ifndef FOVEA_EMBEDDED_PROBLEM_H_
#define FOVEA_EMBEDDED_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fovea/embedded/begin.h"
#include "fovea/embedded/isa.h"
#include "fovea/positions.h"
#include "fovea/score_function.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {

// What was wrong with a call. Everything is checked before anything is written; of several faults
// one is named.
enum class Error : int {
  kOk = 0,           // done
  kSize = 1,         // a negative size, dk or dv of 0, or queries without heads
  kHeads = 2,        // Hq is no multiple of Hkv
  kUnsupported = 3,  // dk or dv above kMostChannels: legal, but scratch would be out of bounds
  kType = 4,         // a type outside the enumeration; lse other than f32
  kStride = 5,       // sizes and strides that overflow: a tensor of 2^63 bytes or more
  kScale = 6,        // a scale that is not finite
  kCausal = 7,       // a value outside the enumeration
  kWindow = 8,       // a side below −1
  kOffset = 9,       // a query offset beyond ±2^62, or both kinds of offset
  kLength = 10,      // a length of queries or keys out of range
  kRing = 11,        // a ring that is not one of Tk rows, or rings together with kv_lengths
  kNullData = 12,    // no address for a tensor that has elements
  kScratch = 13,     // fewer bytes than LeastScratchBytes asks for, or no address
  // Arithmetic that the compiler was allowed to rearrange (-funsafe-math-optimizations and the
  // like), or a thread that does not round to nearest. Nothing was written.
  kArithmetic = 14,
};

// "ok", "size", …; "unknown" for values outside the enumeration.
constexpr const char* Name(Error error) {
  constexpr const char* kNames[] = {"ok",     "size",  "heads",     "unsupported", "type",
                                    "stride", "scale", "causal",    "window",      "offset",
                                    "length", "ring",  "null data", "scratch",     "arithmetic"};
  const int n = static_cast<int>(error);
  return n >= 0 && n < static_cast<int>(sizeof(kNames) / sizeof(kNames[0])) ? kNames[n] : "unknown";
}

// The type of the elements of a tensor.
enum class Type : int {
  kF32 = 0,  // IEEE binary32, as float
  kF16 = 1,  // IEEE binary16, as uint16_t
};

// Whether queries see the keys behind their own position, as in the library.
using fovea::Causal;

// A tensor of four axes [B, heads, rows, channels] in the caller's memory. Strides in BYTES, any of
// them: 0 (broadcast), negative, or a non-unit last one.
template <class Pointer>
struct BasicTensor {
  Pointer data = nullptr;  // of element [0, 0, 0, 0]; null: an absent tensor
  Type type = Type::kF32;  // of every element
  int64_t stride[4] = {};  // bytes from an element to the next along each axis

  // What may be written may be read.
  template <class Other, class = std::enable_if_t<std::is_same_v<Pointer, void*> &&
                                                  std::is_same_v<Other, const void*>>>
  constexpr operator BasicTensor<Other>() const {
    return {data, type, {stride[0], stride[1], stride[2], stride[3]}};
  }
};
// A tensor that a call reads.
using Tensor = BasicTensor<const void*>;
// A tensor that a call writes.
using MutableTensor = BasicTensor<void*>;

// A dense tensor [B, heads, rows, channels] of f32 to be read: q, k or v. `heads` is needed only
// for B > 1.
constexpr Tensor Rows(const float* data, int64_t rows, int64_t channels, int64_t heads = 0) {
  return {data, Type::kF32, {4 * heads * rows * channels, 4 * rows * channels, 4 * channels, 4}};
}
// A dense tensor of f32 to be written: out.
constexpr MutableTensor Rows(float* data, int64_t rows, int64_t channels, int64_t heads = 0) {
  return {data, Type::kF32, {4 * heads * rows * channels, 4 * rows * channels, 4 * channels, 4}};
}
// A dense tensor of f16 to be read.
constexpr Tensor Rows(const uint16_t* data, int64_t rows, int64_t channels, int64_t heads = 0) {
  return {data, Type::kF16, {2 * heads * rows * channels, 2 * rows * channels, 2 * channels, 2}};
}
// A dense tensor of f16 to be written.
constexpr MutableTensor Rows(uint16_t* data, int64_t rows, int64_t channels, int64_t heads = 0) {
  return {data, Type::kF16, {2 * heads * rows * channels, 2 * rows * channels, 2 * channels, 2}};
}

// An interval of positions for each query, [B, Tq, 2]: query i of sequence b sees keys j with begin
// ≤ j < end alone. Any integers; an end at or below the begin is a query without keys.
struct KeyRanges {
  const void* data = nullptr;  // none without
  bool is_64_bit = false;      // int64_t, else int32_t
  // bytes, any of them: 0 shares the intervals of all sequences or queries
  int64_t stride[3] = {};
};

// Dense intervals of int32_t, [Tq, 2] that all sequences share, or [B, Tq, 2] where `queries` is
// Tq.
constexpr KeyRanges Ranges(const int32_t* data, int64_t queries = 0) {
  return {data, false, {8 * queries, 8, 4}};
}
// Dense intervals of int64_t.
constexpr KeyRanges Ranges(const int64_t* data, int64_t queries = 0) {
  return {data, true, {16 * queries, 16, 8}};
}

// Rows of K and V where the newest key overwrites the oldest, as fovea::Problem::ring has them: the
// key of position p is row p mod capacity, and the last `capacity` of them are present.
struct Ring {
  int64_t capacity = 0;  // 1 or greater
  int64_t length = 0;    // keys so far, 0 … kMostOffset

  // Makes room for a key behind the newest; returns the row to write it to.
  constexpr int64_t Push() { return length++ % capacity; }
  // Keys present.
  constexpr int64_t count() const { return length < capacity ? length : capacity; }
  // Position of the oldest of them.
  constexpr int64_t first() const { return length - count(); }
};

// Problem::query_offset where none is given.
constexpr int64_t kNoOffset = INT64_MIN;
// The largest query offset, and −kMostOffset the least.
constexpr int64_t kMostOffset = int64_t{1} << 62;
// The largest dk and dv. Scratch for such heads is still a number of bytes.
constexpr int64_t kMostChannels = sizeof(size_t) >= 8 ? int64_t{1} << 24 : int64_t{1} << 16;

// One call. All memory belongs to the caller; out and lse must not overlap the inputs.
//
//   q [B, Hq, Tq, dk]   k [B, Hkv, Tk, dk]   v [B, Hkv, Tk, dv]
//   out [B, Hq, Tq, dv]   lse [B, Hq, Tq, 1]   bias [B, Hq, Tq, Tk]
//
// Query head h reads KV head h / (Hq / Hkv). The score of query i and key j is
//   1. s = scale·head_scale_h·(q_i·k_j)   only the whole product can overflow
//   2. s = s + bias_scale_h·bias_ij       a bias of −inf removes the pair, whatever its scale; a
//                                         finite one never does: the product saturates at the
//                                         largest finite float of either sign
//   3. s = score_function(s)              −inf removes the pair
// and pairs are removed by causal, window, key_ranges and lengths; out_i = Σ_j softmax(s)_ij · v_j
// and lse_i = ln Σ_j exp(s_ij). A row without a visible key gives out = 0 and lse = −inf. Where K
// or V hold NaN or infinity, that reaches the rows that see them and no others.
struct Problem {
  int64_t B = 1,  // sequences
      Hq = 1,     // query heads, a multiple of Hkv
      Hkv = 1,    // key and value heads
      Tq = 0,     // queries of each sequence
      Tk = 0,     // keys of each sequence
      dk = 0,     // channels of a query and a key, 1 … kMostChannels
      dv = 0;     // channels of a value, 1 … kMostChannels

  Tensor q,           // [B, Hq, Tq, dk]
      k,              // [B, Hkv, Tk, dk]
      v;              // [B, Hkv, Tk, dv]
  MutableTensor out;  // [B, Hq, Tq, dv]
  MutableTensor lse;  // f32; not written without data
  Tensor bias;        // none without data; broadcast by strides of 0

  bool has_scale = false;  // else 1/√dk
  float scale = 0;         // finite; zero and negative values are legal

  const float* head_scales = nullptr;  // [Hq]; 1 without
  const float* bias_scales = nullptr;  // [Hq]; 1 without, and without effect where there is no bias

  // The caller's own step, called in place on blocks of scores, for rows that exist alone. Its
  // positions are i + offset and j; sequence is b.
  fovea_score_function score_function = nullptr;
  void* score_context = nullptr;  // the first argument of score_function

  Causal causal = Causal::kNone;  // no key behind the query's position
  int64_t window_left = -1,       // query i sees keys from i + offset − window_left on; −1: all
      window_right = -1;          // and those up to i + offset + window_right, inclusive; −1: all
  KeyRanges key_ranges;           // an interval of keys for each query
  // offset is the position of query 0 among the keys: one for all sequences or [B] of them; by
  // default, with kBottomRight, keys − queries of the sequence (of a ring, keys so far: the last
  // query belongs to the newest key), else 0.
  int64_t query_offset = kNoOffset;
  const int64_t* query_offsets = nullptr;  // [B] in the place of query_offset

  // [B], 0 … Tq: rows at or behind it give out = 0 and lse = −inf
  const int32_t* q_lengths = nullptr;
  const int32_t* kv_lengths = nullptr;  // [B], 0 … Tk: K and V at or behind it are never read
  // [B], of capacity Tk: the keys are those of the ring, and j above is their position; columns of
  // bias count from the oldest key. Not with kv_lengths
  const Ring* rings = nullptr;
};

}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#include "fovea/embedded/end.h"

#endif  // FOVEA_EMBEDDED_PROBLEM_H_
