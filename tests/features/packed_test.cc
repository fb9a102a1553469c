// Packed (ragged) batches: each sequence has the bits that it has alone, and nothing outside of the
// sequences is read or written.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "features/packed_problem.h"
#include "fovea/attention.h"
#include "support/executors.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::kPackings;
using test::Layout;
using test::Outcome;
using test::OwnedTensor;
using test::PackedSpec;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

// [first, first + count) of an axis.
template <class View>
View Cut(View view, int axis, int64_t first, int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<decltype(view.data), void*>, char, const char>;
  if (view.data != nullptr) view.data = static_cast<Byte*>(view.data) + first * view.stride[axis];
  view.shape[axis] = count;
  return view;
}

// The part of sequence b of a tensor that broadcasts to [B, Hq, Tq, Tk], all four axes there.
TensorView CutBroadcast(TensorView view, int64_t b, int64_t Tq, int64_t Tk) {
  if (!view.present()) return view;
  if (view.shape[0] != 1) view = Cut(view, 0, b, 1);
  if (view.shape[2] != 1) view = Cut(view, 2, 0, Tq);
  if (view.shape[3] != 1) view = Cut(view, 3, 0, Tk);
  return view;
}

// Sequence b of p as a problem of its own on the same memory.
Problem Alone(const RandomProblem& p, int64_t b) {
  const ProblemSpec& s = p.spec;
  const RandomProblem::Rows queries = p.QueriesOf(b), keys = p.KeysOf(b);
  Problem alone = p.problem;
  alone.cu_seqlens_q = alone.cu_seqlens_k = TensorView();
  const auto rows = [](auto view, const RandomProblem::Rows& of) {
    return Cut(Cut(view, 0, of.batch, 1), 2, of.first, of.count);
  };
  alone.q = rows(alone.q, queries);
  alone.k = rows(alone.k, keys);
  alone.v = rows(alone.v, keys);
  alone.out = rows(alone.out, queries);
  if (alone.lse.present()) alone.lse = rows(alone.lse, queries);
  for (MutableTensorView* matrix : {&alone.weights, &alone.scores}) {
    if (matrix->present())
      *matrix = Cut(Cut(Cut(*matrix, 0, b, 1), 2, 0, queries.count), 3, 0, keys.count);
  }
  Score& score = alone.score;
  for (TensorView* view : {&score.bias, &score.mask})
    *view = CutBroadcast(*view, b, queries.count, keys.count);
  const auto blocks = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  score.block_map.visible =
      CutBroadcast(score.block_map.visible, b, blocks(queries.count, s.block_queries),
                   blocks(keys.count, s.block_keys));
  if (score.parents.present())
    score.parents = Cut(Cut(score.parents, 0, b, 1), 1, 0, queries.count);
  for (TensorView* view : {&score.query_offsets, &score.q_lengths, &score.kv_lengths}) {
    if (view->present()) *view = Cut(*view, 0, b, 1);
  }
  return alone;
}

// A problem of sequences that begin and end at these rows, without spare ones.
RandomProblem WithSequences(ProblemSpec s, const std::vector<int64_t>& q_ends,
                            const std::vector<int64_t>& k_ends) {
  s.B = static_cast<int64_t>(q_ends.size()) - 1;
  s.Tq = s.Tk = 0;
  for (size_t b = 1; b < q_ends.size(); ++b) {
    s.Tq = std::max(s.Tq, q_ends[b] - q_ends[b - 1]);
    s.Tk = std::max(s.Tk, k_ends[b] - k_ends[b - 1]);
  }
  RandomProblem p(s, test::BaseSeed());
  p.q = OwnedTensor(DType::kF32, {1, s.Hq, q_ends.back(), s.dk});
  p.k = OwnedTensor(DType::kF32, {1, s.Hkv, k_ends.back(), s.dk});
  p.v = OwnedTensor(DType::kF32, {1, s.Hkv, k_ends.back(), s.dv});
  p.out = OwnedTensor(DType::kF32, {1, s.Hq, q_ends.back(), s.dv});
  p.lse = OwnedTensor(DType::kF32, {1, s.Hq, q_ends.back()});
  for (size_t b = 0; b < q_ends.size(); ++b) {
    p.cu_seqlens_q.Set(static_cast<int64_t>(b), static_cast<double>(q_ends[b]));
    p.cu_seqlens_k.Set(static_cast<int64_t>(b), static_cast<double>(k_ends[b]));
  }
  test::Random random(test::BaseSeed());
  for (OwnedTensor* tensor : {&p.q, &p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  p.Refresh();
  return p;
}

// Runs every sequence alone into the outputs of p; matrices first get what a sequence lacks.
void RunEachAlone(RandomProblem& p, PlanOptions options) {
  p.ResetOutputs();
  p.weights.Fill([] { return 0.0; });
  const bool weights = p.problem.score_stage == ScoreStage::kWeights;
  p.scores.Fill([&] { return weights ? 0.0 : -std::numeric_limits<double>::infinity(); });
  for (int64_t b = 0; b < p.spec.B; ++b) {
    const Status status = Attention(Alone(p, b), options, SerialExecutor());
    ASSERT_TRUE(status.ok()) << "sequence " << b << ": " << status.message();
  }
}

void ExpectEachSequenceAsAlone(RandomProblem& p, PlanOptions options = {}) {
  options.fixed_mask = p.spec.fixed_mask;
  for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
    const Outcome packed = RunSerial(kernel, p, options);
    EXPECT_TRUE(p.OutputPaddingUntouched()) << ToString(kernel) << "\n" << ToString(p.spec);
    RunEachAlone(p, test::Options(kernel, options));
    EXPECT_TRUE(Same(packed, test::OutcomeOf(p))) << ToString(kernel) << "\n" << ToString(p.spec);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PackedTest, EachSequenceHasTheBitsThatItHasAlone) {
  uint64_t seed = test::BaseSeed();
  for (const auto& packing : kPackings) {
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      ProblemSpec s = PackedSpec(packing[0], packing[1]);
      s.causal = causal;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectEachSequenceAsAlone(p);
    }
  }
}

TEST(PackedTest, WeightsAndScoresToo) {
  uint64_t seed = test::BaseSeed();
  for (const auto& packing : kPackings) {
    for (ScoreStage stage : test::Thinned({ScoreStage::kScaled, ScoreStage::kSoftcapped,
                                           ScoreStage::kMasked, ScoreStage::kWeights})) {
      ProblemSpec s = PackedSpec(packing[0], packing[1]);
      s.Tq = 20, s.Tk = 70, s.causal = Causal::kBottomRight, s.weights = true, s.scores = stage,
      s.softcap = 3;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectEachSequenceAsAlone(p);
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(PackedTest, EverythingThatAScoreCanHave) {
  uint64_t seed = test::BaseSeed();
  for (const auto& packing : kPackings) {
    for (int which : test::Thinned({0, 1, 2, 3})) {
      ProblemSpec s = PackedSpec(packing[0], packing[1]);
      s.B = 3, s.Tq = 25;
      s.alibi = true, s.sinks = true, s.bias = Axes::kBHQK, s.bias_removes = 0.1,
      s.mask = Axes::kBHQK;
      s.mask_type = which % 2 == 0 ? DType::kBit : DType::kBool, s.fixed_mask = which == 3;
      s.block_map = Axes::kBHQK, s.block_queries = 7, s.block_keys = 20, s.weights = true,
      s.scores = ScoreStage::kMasked;
      s.window = {60, 30}, s.causal = which == 1 ? Causal::kBottomRight : Causal::kNone;
      if (which == 2) s.query_offsets = DType::kI32;
      if (which == 3) s.parents = DType::kI64, s.query_offset = 11;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectEachSequenceAsAlone(p);
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(PackedTest, LengthsWithinTheRowsOfASequence) {
  uint64_t seed = test::BaseSeed();
  for (const auto& packing : kPackings) {
    for (int lengths : test::Thinned({1, 2, 3})) {
      ProblemSpec s = PackedSpec(packing[0], packing[1]);
      s.causal = Causal::kBottomRight, s.weights = true;
      if (lengths & 1) s.q_lengths = DType::kI32;
      if (lengths & 2) s.kv_lengths = DType::kI64;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectEachSequenceAsAlone(p);
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(PackedTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = PackedSpec();
  s.Tq = 20, s.Tk = 90, s.causal = Causal::kBottomRight;
  test::ForTinyTilesBlocksAndSplits(s, [](RandomProblem& p, const PlanOptions& options) {
    ExpectEachSequenceAsAlone(p, options);
    test::ExpectMatchesReference(p, options);
  });
}

TEST(PackedTest, PrefillAndDecodeInOneBatch) {
  ProblemSpec s = PackedSpec();
  s.causal = Causal::kBottomRight;
  // Decode over many splits, prefill, nothing, one token without keys, a few tokens.
  RandomProblem p = WithSequences(s, {0, 1, 101, 101, 102, 109}, {0, 1500, 1600, 1703, 1703, 2000});
  ExpectEachSequenceAsAlone(p);
  test::ExpectMatchesReference(p);
}

TEST(PackedTest, SequencesOfOneLengthAreTheDenseBatch) {
  // BTHD memory is a packed batch of B sequences of T rows as it lies there.
  for (int64_t Tq : {1, 33}) {
    ProblemSpec s;
    s.B = 3, s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = 70, s.dk = 16, s.dv = 12,
    s.causal = Causal::kBottomRight;
    s.q.layout = s.k.layout = s.v.layout = s.out.layout = Layout::kSwapped;
    s.lse = false;
    RandomProblem dense(s, test::BaseSeed());
    RandomProblem packed = dense;
    packed.out = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.dv}, s.out);
    packed.Refresh();
    const int32_t cu_q[] = {0, static_cast<int32_t>(Tq), static_cast<int32_t>(2 * Tq),
                            static_cast<int32_t>(3 * Tq)};
    const int64_t cu_k[] = {0, 70, 140, 210};
    const auto flat = [&](auto view) {
      view.shape[2] *= s.B;
      view.shape[0] = 1;
      return view;
    };
    packed.problem.q = flat(packed.problem.q);
    packed.problem.k = flat(packed.problem.k);
    packed.problem.v = flat(packed.problem.v);
    packed.problem.out = flat(packed.problem.out);
    packed.problem.cu_seqlens_q = View(cu_q, {4});
    packed.problem.cu_seqlens_k = View(cu_k, {4});
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 2)) {
      EXPECT_TRUE(Same(RunSerial(kernel, packed), RunSerial(kernel, dense)))
          << ToString(kernel) << " Tq " << Tq;
    }
  }
}

TEST(PackedTest, ThreadsInAnyOrderGiveTheSameBits) {
  ProblemSpec s = PackedSpec();
  s.causal = Causal::kBottomRight, s.weights = true, s.scores = ScoreStage::kSoftcapped, s.Tk = 900;
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    const Outcome serial = RunSerial(kernel, p);
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
    for (int workers : test::Thinned({1, 2, 5})) {
      p.ResetOutputs();
      const Status status = test::RunHostDriven(plan, p.problem, workers, test::BaseSeed());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(Same(test::OutcomeOf(p), serial)) << ToString(kernel) << " workers " << workers;
    }
  }
}

TEST(PackedTest, LayoutsAndStridesOfAnySort) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::Thinned(test::kPlacements, 2)) {
      ProblemSpec s = PackedSpec();
      s.Tq = 12, s.Tk = 30, s.causal = Causal::kBottomRight, s.weights = true;
      s.q = s.k = s.v = s.out = s.rest = {layout, placement};
      RandomProblem p(s, test::BaseSeed());
      p.cu_seqlens_q = p.cu_seqlens_q.CopiedTo({layout, placement});
      p.cu_seqlens_k = p.cu_seqlens_k.CopiedTo({layout, placement});
      p.Refresh();
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(PackedTest, MemoryOutsideOfTheSequencesIsNeverTouched) {
  // The tensors end with the last row of the last sequence, an inaccessible page behind it, while
  // their shapes promise more.
  ProblemSpec s;
  s.B = 1, s.Hq = 2, s.Hkv = 1, s.Tq = 21, s.Tk = 45, s.dk = 20, s.dv = 33,
  s.causal = Causal::kBottomRight;
  s.q.placement = s.k.placement = s.v.placement = s.out.placement = s.rest.placement =
      Placement::kBeforeGuard;
  s.q.layout = s.out.layout = Layout::kSwapped;  // heads inside rows
  s.lse = false;
  RandomProblem p(s, test::BaseSeed());
  const int32_t cu_q[] = {0, 10, 10, 21}, cu_k[] = {0, 7, 30, 45};
  p.problem.cu_seqlens_q = View(cu_q, {4});
  p.problem.cu_seqlens_k = View(cu_k, {4});
  p.problem.q.shape[2] = p.problem.out.shape[2] = 100;
  p.problem.k.shape[2] = p.problem.v.shape[2] = 200;
  const auto expected = reference::Forward(p.problem);
  for (const Kernel& kernel : test::Kernels()) {
    p.ResetOutputs();
    const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernel);
  }
}

// ---- sizes of zero ----

TEST(PackedTest, EmptySequencesOnly) {
  for (int which = 1; which < 4; ++which) {
    ProblemSpec s = PackedSpec();
    s.weights = true, s.scores = ScoreStage::kScaled, s.sinks = which == 2;
    if (which & 1) s.Tq = 0;
    if (which & 2) s.Tk = 0;
    RandomProblem p(s, test::BaseSeed());
    test::ExpectMatchesReference(p);
    ExpectEachSequenceAsAlone(p);
  }
}

TEST(PackedTest, NoSequencesOrNoRowsReturnAtOnce) {
  for (int64_t rows : {0, 3}) {
    for (int64_t B : {0, 2}) {
      ProblemSpec s;
      s.B = 1, s.Hq = 2, s.Tq = rows, s.Tk = rows, s.dk = 4, s.dv = 4;
      RandomProblem p(s, 1);
      const int32_t cu[] = {0, 0, 0};
      p.problem.cu_seqlens_q = p.problem.cu_seqlens_k = View(cu, {B + 1});
      if (rows == 0) {
        for (TensorView* view : {&p.problem.q, &p.problem.k, &p.problem.v}) view->data = nullptr;
        p.problem.out.data = p.problem.lse.data = nullptr;
      }
      for (const Kernel& kernel : test::Kernels()) {
        const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(p.OutputsUntouched());
      }
    }
  }
}

}  // namespace
}  // namespace fovea
