// What the score of a query and a key is, and which pairs exist at all. Letters as everywhere: B
// sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys.
#ifndef FOVEA_SCORE_H_
#define FOVEA_SCORE_H_

#include <cstdint>
#include <optional>

#include "fovea/export.h"
#include "fovea/positions.h"
#include "fovea/score_function.h"  // IWYU pragma: export
#include "fovea/tensor.h"

namespace fovea {

// A coarse map of the score matrix: false removes every pair whose query lies in that block of
// `queries` queries and whose key in that block of `keys` keys. Blocks without a visible pair cost
// nothing.
struct BlockMap {
  // bool or bit, broadcast as bias and mask: each axis 1 or that of [B, Hq, ⌈Tq/queries⌉,
  // ⌈Tk/keys⌉]
  TensorView visible;
  int64_t queries = 0;  // > 0
  int64_t keys = 0;     // > 0
};

// What a score function changes: see fovea/score_function.h.
using ScoreBlock = ::fovea_score_block;

// A function of the caller's, with the rules of fovea_score_function, and its context.
struct ScoreFunction {
  void (*apply)(void* context, const ScoreBlock* block) noexcept = nullptr;  // null: none
  void* context = nullptr;  // the first argument; means nothing to Fovea

  // There is a function.
  constexpr bool present() const { return apply != nullptr; }
};

// The steps from q·k to a softmax weight, in the order in which they apply:
//   1. s = scale · head_scale_h · (q_i · k_j)  only the whole product can overflow
//   2. s = softcap · tanh(s / softcap)         softcap > 0
//   3. s = s − slope_h · |i + offset − j|      alibi_slopes (Press et al. 2021, "Train Short, Test
//                                              Long", §3)
//   4. s = s + bias_scale_h · bias[b,h,i,j]    a stored −inf removes the pair, whatever the scale;
//                                              a finite bias never does: the product saturates at
//                                              the largest finite float of either sign
//      s = function(s, b, h, i + offset, j)    the caller's own; −inf removes the pair
//   5. pairs are removed by mask, block_map, parents, causal, window, key_ranges and lengths
//                                              all that are given must allow a pair
//   6. p = exp(s − m) / (Σ exp(s − m) + exp(sink_h − m))
//                                              sinks only add to the denominator
//
// offset is query_offset or query_offsets[b] when given; else kv_length − q_length of the sequence
// with Causal::kBottomRight, else 0. All views are read while a plan is made (lengths, offsets) or
// run (the others) and belong to the caller. In packed batches (Problem::cu_seqlens_q,
// cu_seqlens_k) Tq and Tk here are those of the longest sequence, and i and j count from the
// sequence's own start.
struct Score {
  std::optional<float> scale;  // finite; default 1/√dk; zero and negative values are legal
  float softcap = 0;           // finite, ≥ 0; 0 = none

  // f32 [Hq], multiplies the scale: a temperature of each head, as in cosine attention (Liu et al.
  // 2022, "Swin Transformer V2", §3.2); zero and negative values are legal
  TensorView head_scales;
  TensorView alibi_slopes;  // f32 [Hq]
  // bias and mask broadcast as in NumPy: up to four axes, aligned at the right, each of size 1 or
  // that of [B, Hq, Tq, Tk].
  // f32, f16 or bf16, whatever the type of q. Where whole blocks of it are −inf or 0 is found once
  // per run (or plan: PlanOptions::fixed_bias): a mask of 0 and −inf costs what a boolean one does
  TensorView bias;
  // f32 [Hq], multiplies the bias: ALiBi as slope · distances, one bias for all heads; legal and
  // without effect where there is no bias
  TensorView bias_scales;
  // The caller's own step, called in place on blocks of scores. That there is one is bound by a
  // plan; which one may change from run to run.
  ScoreFunction function;
  // bool or bit, true = attend; what it removes is found once per run (or plan:
  // PlanOptions::fixed_mask) and skipped
  TensorView mask;
  BlockMap block_map;  // a mask of whole blocks
  // A tree of queries, as in speculative decoding: i32 or i64 [B, Tq], the parent of each query, −1
  // for a root; parents[b, i] < i. The keys of the tree's nodes start at `offset`: of the keys j ≥
  // offset, query i sees only its own (offset + i) and those of its ancestors. What no query sees
  // is skipped; costs 8 bytes of the workspace for each query. Fewer than 2^31 queries.
  TensorView parents;

  Causal causal = Causal::kNone;  // no key behind the query's position
  Window window;                  // keys near the query's position; open on both sides by default
  // i32 or i64 [B, Tq, 2] or [1, Tq, 2]: query i sees keys key_ranges[b, i, 0] ≤ j < key_ranges[b,
  // i, 1], any integers; an end at or below the begin is a query without keys. Documents, prefixes
  // and images in a text, without a dense mask; keys outside cost nothing.
  TensorView key_ranges;
  // position of query 0 among the keys, |offset| ≤ 2⁶²: chunked prefill, a cache with a past
  std::optional<int64_t> query_offset;
  // query_offset of each sequence: i32 or i64 [B]; not together with query_offset
  TensorView query_offsets;

  // i32 or i64 [B], 0 … Tq; rows at or behind it give out = 0 and lse = −inf
  TensorView q_lengths;
  // i32 or i64 [B], 0 … Tk: resident keys; K and V at or behind it are never read. Of a ring: keys
  // so far, 0 … 2⁶² (Problem::ring)
  TensorView kv_lengths;
  // i32 or i64 [B], 0 … 2⁶²: position of the first resident key, 0 by default: a cache that has
  // dropped what lay before. Positions (causal, windows, ALiBi, parents, functions, key_ranges)
  // count from 0; columns of bias, mask and block map count resident keys. The keys of sequence b
  // then end at position key_offset + kv_length, which Causal::kBottomRight takes for kv_length.
  TensorView key_offsets;

  // f32 [Hq], one logit per query head (Xiao et al. 2023, "Efficient Streaming Language Models with
  // Attention Sinks")
  TensorView sinks;
};

// The standard ALiBi slopes of any number of query heads (Press et al. 2021, §3 and the authors'
// extension to head counts that are no powers of two): with n the largest power of two ≤ Hq, slopes
// 2^(−max_bias·(h+1)/n) for the first n heads, then every other slope of 2n heads; FLT_MAX where a
// negative max_bias gives more. Writes Hq floats; Hq ≤ 0 writes none. Thread-safe. In the default
// floating-point state, as all of fovea/attention.h.
FOVEA_EXPORT void AlibiSlopes(int64_t Hq, float* slopes, float max_bias = 8.0f) noexcept;

}  // namespace fovea

#endif  // FOVEA_SCORE_H_
