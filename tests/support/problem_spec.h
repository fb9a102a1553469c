// A problem described by a few numbers.
#ifndef FOVEA_TESTS_SUPPORT_PROBLEM_SPEC_H_
#define FOVEA_TESTS_SUPPORT_PROBLEM_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/owned_tensor.h"

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

  // How keys lie. kNone: not in pages, else the type of the table; Tk is stated where it is no
  // multiple of page, and the sequences then have kv_lengths.
  DType page_table = DType::kNone;
  int64_t page = 16;         // keys of a page
  bool page_begins = false;  // the table is one list
  bool ring = false;
  DType key_offsets = DType::kNone;

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

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_PROBLEM_SPEC_H_
