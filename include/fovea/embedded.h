// Attention for small devices: header-only, on xsimd (13 or later), for the one instruction set
// that the including file is compiled for.
//
// It needs no operating system: no heap, no threads, no exceptions, no dispatch, no iostream,
// nothing static. The stack stays below 4 KiB of Fovea's own in optimised builds, and the caller
// lends the scratch (ScratchBytes). It builds with -ffreestanding -fno-exceptions -fno-rtti and
// calls nothing but memcpy, memset and memmove.
//
// A call computes in the floating-point state of its thread, which must round to nearest. With
// FOVEA_EMBEDDED_DEFAULT_FP_STATE defined before the header it computes in the default state and
// puts the thread's back, flags included. -ffast-math is refused (docs/header-only.md).
//
// A second implementation of the same contract as fovea/attention.h, of which it covers: forward
// attention, q, k, v and out in f32 or f16, causal, window, query offsets, intervals of keys,
// lengths, head scales, additive bias and its scales, a score function of the caller, groups of
// query heads that share a KV head, dv ≠ dk, lse; and rings of keys, which mean what they mean
// there. Pages of keys (fovea/cache.h) it has not. Letters: B sequences, Hq query heads, Hkv
// key/value heads, Tq queries, Tk keys, dk query and key size, dv value size.
//
// Decoding with the last 256 tokens:
//
//   fovea::embedded::Ring ring{256};
//   alignas(64) static unsigned char scratch[fovea::embedded::ScratchBytes(dk, dv, Hq / Hkv)];
//   for (;;) {
//     const int64_t slot = ring.Push();  // write the token's key and value into row `slot`
//     Problem p;
//     p.Hq = Hq, p.Hkv = Hkv, p.Tq = 1, p.Tk = ring.capacity, p.dk = dk, p.dv = dv;
//     p.q = Rows(q, 1, dk);                    // [Hq, 1, dk]
//     p.k = Rows(k_cache, ring.capacity, dk);  // [Hkv, capacity, dk]
//     p.v = Rows(v_cache, ring.capacity, dv);
//     p.out = Rows(out, 1, dv);
//     p.rings = &ring;
//     if (Attention(p, scratch, sizeof(scratch)) != Error::kOk) …
//   }
#ifndef FOVEA_EMBEDDED_H_
#define FOVEA_EMBEDDED_H_

#include "fovea/embedded/begin.h"
// Behind begin.h, which hides macros from all of them.
#include "fovea/embedded/attend.h"
#include "fovea/embedded/check.h"
#include "fovea/embedded/problem.h"
#include "fovea/embedded/self_check.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {

// One number to f16, rounded to nearest, ties to even: for what the caller writes into its caches.
inline uint16_t ToF16(float x) { return internal::Narrowed(x); }
// One number from f16; exact.
inline float FromF16(uint16_t x) { return internal::Widened(x); }

namespace internal {

// For up to `most_tiles` tiles at once.
constexpr size_t BytesOf(int64_t dk, int64_t dv, int64_t rows, int64_t most_tiles) {
  size_t bytes = LayOut(LanesAreKeys(), dk, dv, 1).bytes;
  for (const int vectors : {1, 2}) {
    if (rows <= (vectors == 1 ? kFewRows : kLanes)) break;
    const LanesAreQueries lanes = {vectors};
    const size_t more = LayOut(lanes, dk, dv, Least(TilesOf(lanes, rows), most_tiles)).bytes;
    if (more > bytes) bytes = more;
  }
  return bytes + kAlignment - 1;
}

}  // namespace internal

// The bytes of scratch that make calls fast, for heads of these sizes, whatever Tq and Tk are.
// `rows` is the most query rows that share a KV head, Tq·Hq/Hkv: few of them (decoding) need less.
// Any alignment; the bytes include what aligning them costs.
constexpr size_t ScratchBytes(int64_t dk, int64_t dv, int64_t rows = INT64_MAX) {
  return internal::BytesOf(dk, dv, rows, internal::kMostTiles);
}

// The fewest that will do. Between the two, K and V are read the more often the less there is;
// results are the same bits.
constexpr size_t LeastScratchBytes(int64_t dk, int64_t dv, int64_t rows = INT64_MAX) {
  return internal::BytesOf(dk, dv, rows, 1);
}

// Computes the problem. Thread-safe for calls with scratch and outputs of their own; allocates
// nothing. A sequence's result has the same bits in any batch.
inline Error Attention(const Problem& problem, void* scratch, size_t scratch_bytes) {
  if (const Error error = internal::Check(problem); error != Error::kOk) return error;
  if (problem.B == 0 || problem.Hq == 0 || problem.Tq == 0) return Error::kOk;
  if (scratch == nullptr ||
      scratch_bytes <
          LeastScratchBytes(problem.dk, problem.dv, problem.Tq * (problem.Hq / problem.Hkv))) {
    return Error::kScratch;
  }
  const internal::ScopedFpState state;
  if (!internal::IsArithmeticSound()) return Error::kArithmetic;
  Problem in_memory = problem;
  internal::PutStridesIntoMemory(in_memory);
  internal::Run(in_memory, scratch, scratch_bytes);
  return Error::kOk;
}

}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#include "fovea/embedded/end.h"

#endif  // FOVEA_EMBEDDED_H_
