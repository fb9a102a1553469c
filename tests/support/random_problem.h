// Problems described by a few numbers and filled from a seed, owning all their memory.
#ifndef FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_
#define FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/owned_tensor.h"
#include "support/random.h"
#include "support/score_function.h"

namespace fovea::test {

// Which axes of [B, Hq, Tq, Tk] a bias or mask has, or of [B, Hq, ⌈Tq/queries⌉, ⌈Tk/keys⌉] a block
// map.
enum class Axes {
  kAbsent,
  kK,     // [Tk]
  kQK,    // [Tq, Tk]
  kHQK,   // [Hq, Tq, Tk]
  kH1K,   // [Hq, 1, Tk]
  kB11K,  // [B, 1, 1, Tk]
  kB1Q1,  // [B, 1, Tq, 1]
  kBHQK,  // [B, Hq, Tq, Tk]
  k1,     // [1]
};
constexpr Axes kAllAxes[] = {Axes::kAbsent, Axes::kK,    Axes::kQK,   Axes::kHQK, Axes::kH1K,
                             Axes::kB11K,   Axes::kB1Q1, Axes::kBHQK, Axes::k1};

struct ProblemSpec {
  // With cu_seqlens the longest sequence has Tq queries or Tk keys.
  int64_t B = 1, Hq = 1, Hkv = 1, Tq = 1, Tk = 1, dk = 1, dv = 1;

  std::optional<float> scale;
  float softcap = 0;
  bool head_scales = false;
  bool alibi = false;
  bool sinks = false;
  Axes bias = Axes::kAbsent;
  DType bias_type = DType::kF32;
  double bias_removes = 0;  // share of bias elements that are −inf
  bool bias_scales = false;
  bool function = false;        // HashedBias
  double function_removes = 0;  // share of pairs
  Axes mask = Axes::kAbsent;
  DType mask_type = DType::kBool;  // or kBit
  double mask_allows = 0.7;        // share of mask elements that are true
  Axes block_map = Axes::kAbsent;
  DType block_map_type = DType::kBool;  // or kBit
  int64_t block_queries = 1, block_keys = 1;
  double block_map_allows = 0.7;

  Causal causal = Causal::kNone;
  Window window;
  std::optional<int64_t> query_offset;
  // kNone: absent, else i32 or i64.
  DType query_offsets = DType::kNone;
  DType q_lengths = DType::kNone;
  DType kv_lengths = DType::kNone;
  DType key_ranges = DType::kNone;
  bool one_key_ranges = false;  // [1, Tq, 2] for all sequences
  DType parents = DType::kNone;
  DType cu_seqlens_q = DType::kNone;
  DType cu_seqlens_k = DType::kNone;

  DType q_type = DType::kF32, k_type = DType::kF32, v_type = DType::kF32, out_type = DType::kF32;
  bool lse = true;
  bool weights = false;
  std::optional<ScoreStage> scores;
  bool fixed_mask = false;  // for PlanOptions: ExpectMatchesReference asks for it
  // rest: lse, weights, scores, bias, mask, block map and key ranges
  Storage q, k, v, out, rest;
};
std::string ToString(const ProblemSpec& spec);

// A little of everything: two sequences, groups of heads, sizes that fill no tile, block or vector.
ProblemSpec SmallSpec();

// Few problems that together use every field of a spec: for tests of what must hold for any
// problem.
std::vector<ProblemSpec> VariedSpecs();

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kNarrowTypes[] = {DType::kF16, DType::kBF16};
// q, k, v and out of this type.
ProblemSpec WithTypes(ProblemSpec spec, DType type);

// Unit-normal q, k, v, rounded to their types; bias of the same size; slopes 2^−1 … 2^−8; lengths,
// offsets, masks uniform. Scales of heads and biases are normal, and some are 0 or 1. Key ranges
// are part of the keys, most of them, all and more, or nothing. Trees are chains that branch and
// begin anew. Of packed sequences one is the longest, each other one empty or shorter, and up to
// three rows lie before the first and behind the last one. K and V at and behind kv_lengths, rows
// outside of every sequence, and all padding hold NaN: they must never be read. Outputs hold
// OwnedTensor::kFill.
struct RandomProblem {
  ProblemSpec spec;
  OwnedTensor q, k, v, out, lse, weights, scores, bias, mask, block_map, parents, alibi_slopes,
      query_offsets, q_lengths, kv_lengths, sinks, cu_seqlens_q, cu_seqlens_k, head_scales,
      bias_scales, key_ranges;
  std::shared_ptr<const HashedBias> function;  // of this problem and its copies
  Problem problem;

  RandomProblem(const ProblemSpec& spec, uint64_t seed);
  // The problem of the tensors as they are now; after replacing one of them.
  void Refresh();
  void ResetOutputs();
  bool OutputsUntouched() const;
  bool OutputPaddingUntouched() const;  // rows outside of every sequence are padding too
  // Rows [first, first + count) of axis 2 of q and out, or of k and v, are those of sequence b.
  struct Rows {
    int64_t batch, first, count;
  };
  Rows QueriesOf(int64_t b) const { return RowsOf(cu_seqlens_q, b, spec.Tq); }
  Rows KeysOf(int64_t b) const { return RowsOf(cu_seqlens_k, b, spec.Tk); }
  int64_t KvLength(int64_t b) const {
    return kv_lengths.present() ? static_cast<int64_t>(kv_lengths.Get(b)) : KeysOf(b).count;
  }
  int64_t QLength(int64_t b) const {
    return q_lengths.present() ? static_cast<int64_t>(q_lengths.Get(b)) : QueriesOf(b).count;
  }
  int64_t Offset(int64_t b) const;
  // By causal, window and lengths alone: what Cost counts.
  bool InBand(int64_t b, int64_t i, int64_t j) const;
  // By key ranges, tree, block map, mask, a bias of −inf and the function as well.
  bool Visible(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // Element [b, h, i, j] of a tensor that broadcasts to [B, Hq, Tq, Tk].
  static double Broadcast(const OwnedTensor& tensor, int64_t b, int64_t h, int64_t i, int64_t j);

 private:
  void SpoilWhatIsNotThere();
  static Rows RowsOf(const OwnedTensor& cu_seqlens, int64_t b, int64_t T);
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_
