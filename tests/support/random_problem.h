// Problems made of a description and a seed, owning all their memory.
#ifndef FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_
#define FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "fovea/attention.h"
#include "support/owned_tensor.h"
#include "support/problem_spec.h"
#include "support/random.h"
#include "support/score_function.h"

namespace fovea::test {

// Unit-normal q, k, v, rounded to their types (quantised k and v: random codes, and scales that
// make numbers of that size of them); bias of the same size; slopes 2^−1 … 2^−8; lengths, offsets,
// masks uniform. Scales of heads and biases are normal, and some are 0 or 1. Key ranges
// are part of the keys, most of them, all and more, or nothing. Trees are chains that branch and
// begin anew. Of packed sequences one is the longest, each other one empty or shorter, and up to
// three rows lie before the first and behind the last one. Pages lie in any order, some sequences
// begin with pages of another, and some pages are nobody's; numbers of pages that are not needed
// are anything. Rings were filled up to three times. K and V at and behind kv_lengths, rows outside
// of every sequence, and all padding hold NaN: they must never be read. Outputs hold
// OwnedTensor::kFill.
struct RandomProblem {
  ProblemSpec spec;
  OwnedTensor q, k, v, out, lse, weights, scores, bias, mask, block_map, parents, alibi_slopes,
      query_offsets, q_lengths, kv_lengths, sinks, cu_seqlens_q, cu_seqlens_k, head_scales,
      bias_scales, key_ranges, page_table, page_begins, key_offsets, k_scale, k_zero, v_scale,
      v_zero;
  std::shared_ptr<const HashedBias> function;  // of this problem and its copies
  Problem problem;

  RandomProblem(const ProblemSpec& spec, uint64_t seed);
  // The problem of the tensors as they are now; after replacing one of them.
  void Refresh();
  void ResetOutputs();
  bool OutputsUntouched() const;
  bool OutputPaddingUntouched() const;  // rows outside of every sequence are padding too
  // Rows [first, first + count) of axis 2 of q and out, or of k and v outside of pages, are those
  // of sequence b.
  struct Rows {
    int64_t batch, first, count;
  };
  Rows QueriesOf(int64_t b) const { return RowsOf(cu_seqlens_q, b, spec.Tq); }
  Rows KeysOf(int64_t b) const { return RowsOf(cu_seqlens_k, b, spec.Tk); }
  // Resident keys, and the position of the first one.
  int64_t KvLength(int64_t b) const { return std::min(StatedLength(b), KeysOf(b).count); }
  int64_t FirstPosition(int64_t b) const {
    if (key_offsets.present()) return static_cast<int64_t>(key_offsets.Get(b));
    return StatedLength(b) - KvLength(b);
  }
  // Where resident key j of sequence b is in k and v.
  struct Place {
    int64_t batch, row;
  };
  Place PlaceOf(int64_t b, int64_t j) const;
  int64_t QLength(int64_t b) const {
    return q_lengths.present() ? static_cast<int64_t>(q_lengths.Get(b)) : QueriesOf(b).count;
  }
  int64_t Offset(int64_t b) const;
  // Keys j count from the first resident one. By causal, window and lengths alone: what Cost
  // counts.
  bool InBand(int64_t b, int64_t i, int64_t j) const;
  // By key ranges, tree, block map, mask, a bias of −inf and the function as well.
  bool Visible(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // Element [b, h, i, j] of a tensor that broadcasts to [B, Hq, Tq, Tk].
  static double Broadcast(const OwnedTensor& tensor, int64_t b, int64_t h, int64_t i, int64_t j);

 private:
  void MakePages(Random& random);
  void SpoilWhatIsNotThere();
  // What kv_lengths says: of rings, the keys so far.
  int64_t StatedLength(int64_t b) const {
    return kv_lengths.present() ? static_cast<int64_t>(kv_lengths.Get(b)) : KeysOf(b).count;
  }
  void SpoilFactors(const OwnedTensor& codes, OwnedTensor* factors);
  static Rows RowsOf(const OwnedTensor& cu_seqlens, int64_t b, int64_t T);
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_RANDOM_PROBLEM_H_
