// Scores given out at each stage between q·k and the softmax weight: against the reference, and
// against each other where stages must agree.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

constexpr ScoreStage kStages[] = {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kMasked,
                                  ScoreStage::kWeights};
constexpr double kInf = std::numeric_limits<double>::infinity();

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 19, s.Tk = 70, s.dk = 20, s.dv = 13;
  return s;
}

// Every stage of s on every kernel against the reference; where tests are thinned one stage,
// another for each call.
void CheckStages(ProblemSpec s, uint64_t number, const PlanOptions& options = {}) {
  for (ScoreStage stage : test::Thinned(kStages)) {
    s.scores = stage;
    RandomProblem p(s, test::BaseSeed() + number);
    SCOPED_TRACE("seed " + std::to_string(test::BaseSeed() + number));
    test::ExpectMatchesReference(p, options);
  }
}

// ---- against the reference ----

TEST(StageTest, Plain) { CheckStages(Spec(), 1); }

TEST(StageTest, EachStepAlone) {
  for (int which = 0; which < 12; ++which) {
    ProblemSpec s = Spec();
    if (which == 0) s.softcap = 1.5f;
    if (which == 1) s.alibi = true, s.query_offset = 30;
    if (which == 2) s.bias = Axes::kBHQK, s.bias_removes = 0.3;
    if (which == 3) s.mask = Axes::kHQK;
    if (which == 4) s.causal = Causal::kBottomRight;
    if (which == 5) s.window = {5, 9}, s.query_offset = 20;
    if (which == 6) s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64;
    if (which == 7) s.sinks = true;
    if (which == 8) s.block_map = Axes::kHQK, s.block_queries = 4, s.block_keys = 9;
    if (which == 9) s.parents = DType::kI32, s.query_offset = 40;
    if (which == 10) s.cu_seqlens_q = DType::kI32, s.cu_seqlens_k = DType::kI64;
    if (which == 11) s.scale = -0.7f;
    CheckStages(s, 10 + static_cast<uint64_t>(which));
  }
}

TEST(StageTest, AllStepsTogetherWithOffsetsOfEverySort) {
  for (int offset = 0; offset < 5; ++offset) {
    ProblemSpec s = Spec();
    s.softcap = 2, s.alibi = true, s.sinks = true, s.bias = Axes::kQK, s.bias_removes = 0.2,
    s.bias_type = DType::kBF16;
    s.mask = Axes::kB11K, s.mask_type = DType::kBit, s.q_lengths = DType::kI32,
    s.kv_lengths = DType::kI32;
    s.causal = offset == 4 ? Causal::kNone : offset == 3 ? Causal::kTopLeft : Causal::kBottomRight;
    s.window = {40, -1};
    if (offset == 1) s.query_offset = -7;
    if (offset == 2) s.query_offsets = DType::kI64;
    CheckStages(s, 30 + static_cast<uint64_t>(offset));
  }
}

TEST(StageTest, HeadSizesThatDiffer) {
  for (auto [dk, dv] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 70}, {70, 3}, {128, 64}, {192, 128}, {256, 256}}) {
    ProblemSpec s = Spec();
    s.dk = dk, s.dv = dv, s.softcap = 3, s.causal = Causal::kBottomRight;
    CheckStages(s, static_cast<uint64_t>(dk));
  }
}

TEST(StageTest, TinyTilesBlocksAndSplits) {
  for (int32_t rows : {0, 1, 3}) {
    for (int32_t keys : test::Thinned({0, 1, 5, 16}, 2)) {
      PlanOptions options;
      options.tile_rows = rows, options.block_keys = keys, options.split_keys = keys == 5 ? 20 : 0;
      ProblemSpec s = Spec();
      s.alibi = true, s.softcap = 2, s.causal = Causal::kBottomRight, s.mask = Axes::kQK;
      CheckStages(s, static_cast<uint64_t>(rows * 20 + keys), options);
    }
  }
}

TEST(StageTest, EveryNumberOfQueriesAndKeysAroundTilesAndBlocks) {
  for (int64_t n : test::Thinned(test::Numbers(1, 70, 7), 3)) {
    ProblemSpec s = Spec();
    s.Tq = n, s.Tk = 71 - n, s.causal = Causal::kBottomRight;
    CheckStages(s, static_cast<uint64_t>(n));
    s.Tk = 2 * n, s.causal = Causal::kNone;
    CheckStages(s, static_cast<uint64_t>(n));
  }
}

TEST(StageTest, DecodeOverManySplits) {
  ProblemSpec s = Spec();
  s.Hq = 8, s.Tq = 1, s.Tk = 3001, s.softcap = 3, s.window = {1500, -1},
  s.causal = Causal::kBottomRight, s.kv_lengths = DType::kI64;
  CheckStages(s, 1);
}

TEST(StageTest, EveryLayoutAndPlace) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::Thinned(test::kPlacements, 2)) {
      ProblemSpec s = Spec();
      s.Tq = 5, s.Tk = 21, s.rest = {layout, placement}, s.mask = Axes::kHQK;
      CheckStages(s, 1);
    }
  }
}

TEST(StageTest, LargeScoresAndProductsBeyondFloat) {
  ProblemSpec s = Spec();
  s.scale = 300.0f;
  CheckStages(s, 1);
  s.softcap = 50;
  CheckStages(s, 1);
  s.scale = 1e-38f, s.softcap = 0;
  for (ScoreStage stage : kStages) {
    s.scores = stage;
    RandomProblem p(s, test::BaseSeed());
    for (OwnedTensor* tensor : {&p.q, &p.k}) {
      for (int64_t n = 0; n < tensor->size(); ++n) tensor->Set(n, 1e19 * tensor->Get(n));
    }
    test::ExpectMatchesReference(p);
  }
}

TEST(StageTest, NoKeysOrNoQueries) {
  for (ScoreStage stage : kStages) {
    for (int which = 0; which < 3; ++which) {
      ProblemSpec s = Spec();
      s.scores = stage;
      (which == 0 ? s.Tk : which == 1 ? s.Tq : s.B) = 0;
      RandomProblem p(s, 1);
      p.problem.scores.data = nullptr;
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(StageTest, NanInAKeyShowsWhereThePairIsScoredAndNowhereElse) {
  for (ScoreStage stage : kStages) {
    ProblemSpec s = Spec();
    s.scores = stage, s.softcap = 2, s.causal = Causal::kTopLeft;  // query i sees keys ≤ i
    RandomProblem p(s, test::BaseSeed());
    const int64_t bad = 10;
    for (int64_t b = 0; b < s.B; ++b) p.k.SetAt({b, 0, bad, 3}, std::nan(""));
    test::ExpectMatchesReference(p);
    for (const Kernel& kernel : test::Kernels()) {
      RunSerial(kernel, p);
      const bool all_pairs = stage == ScoreStage::kScaled || stage == ScoreStage::kSoftcapped;
      for (int64_t i = 0; i < s.Tq; ++i) {
        EXPECT_EQ(std::isnan(p.scores.At({0, 1, i, bad})), all_pairs || i >= bad)
            << ToString(kernel) << " query " << i;
        EXPECT_FALSE(std::isnan(p.scores.At({0, 2, i, bad})))
            << ToString(kernel) << ": another KV head";
      }
    }
  }
}

// ---- against each other ----

TEST(StageTest, WeightsAreTheWeightsBitForBit) {
  for (int which = 0; which < 2; ++which) {
    ProblemSpec s = Spec();
    s.weights = true, s.scores = ScoreStage::kWeights, s.causal = Causal::kBottomRight,
    s.sinks = true, s.mask = Axes::kHQK;
    if (which == 1) s.Tq = 1, s.Tk = 3000;
    RandomProblem p(s, test::BaseSeed());
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 2)) {
      RunSerial(kernel, p);
      EXPECT_EQ(p.scores.Bytes(), p.weights.Bytes()) << ToString(kernel);
    }
  }
}

TEST(StageTest, WhatRemovesPairsDoesNotChangeScaledOrSoftcappedScores) {
  for (ScoreStage stage : {ScoreStage::kScaled, ScoreStage::kSoftcapped}) {
    ProblemSpec s = Spec();
    s.scores = stage, s.softcap = 2;
    RandomProblem plain(s, test::BaseSeed());
    s.causal = Causal::kBottomRight, s.window = {3, 0}, s.mask = Axes::kBHQK, s.mask_allows = 0.1,
    s.bias = Axes::kHQK, s.bias_removes = 0.5, s.alibi = true, s.sinks = true,
    s.parents = DType::kI32, s.block_map = Axes::kBHQK, s.block_queries = 3, s.block_keys = 16;
    RandomProblem removed(s, test::BaseSeed());
    removed.q = plain.q, removed.k = plain.k;
    removed.Refresh();
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 2)) {
      RunSerial(kernel, plain);
      RunSerial(kernel, removed);
      EXPECT_EQ(removed.scores.Bytes(), plain.scores.Bytes())
          << ToString(kernel) << " stage " << static_cast<int>(stage);
    }
  }
}

TEST(StageTest, StagesWithoutAStepBetweenThemAreTheSame) {
  ProblemSpec s = Spec();
  s.scores = ScoreStage::kScaled;
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    const auto scores_at = [&](ScoreStage stage) {
      p.spec.scores = stage;
      p.Refresh();
      RunSerial(kernel, p);
      return p.scores.Bytes();
    };
    const auto scaled = scores_at(ScoreStage::kScaled);
    EXPECT_EQ(scores_at(ScoreStage::kSoftcapped), scaled) << ToString(kernel);
    EXPECT_EQ(scores_at(ScoreStage::kMasked), scaled) << ToString(kernel);
    EXPECT_NE(scores_at(ScoreStage::kWeights), scaled) << ToString(kernel);
  }
}

TEST(StageTest, MaskedScoresAreMinusInfinityExactlyForRemovedPairs) {
  ProblemSpec s = Spec();
  s.scores = ScoreStage::kMasked, s.causal = Causal::kBottomRight, s.mask = Axes::kHQK,
  s.bias = Axes::kQK, s.bias_removes = 0.2, s.kv_lengths = DType::kI32, s.q_lengths = DType::kI32,
  s.block_map = Axes::kK, s.block_queries = 1, s.block_keys = 7;
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    RunSerial(kernel, p);
    for (int64_t n = 0; n < p.scores.size(); ++n) {
      const int64_t b = n / (s.Hq * s.Tq * s.Tk), h = n / (s.Tq * s.Tk) % s.Hq, i = n / s.Tk % s.Tq,
                    j = n % s.Tk;
      ASSERT_EQ(p.scores.Get(n) == -kInf, !p.Visible(b, h, i, j))
          << ToString(kernel) << " " << b << h << " " << i << " " << j;
      ASSERT_LT(p.scores.Get(n), kInf);
    }
  }
}

TEST(StageTest, GivingScoresOutDoesNotChangeTheOtherOutputs) {
  for (ScoreStage stage : kStages) {
    for (int64_t Tk : {70, 3000}) {
      ProblemSpec s = Spec();
      s.Tk = Tk, s.Tq = Tk > 1000 ? 1 : 19, s.causal = Causal::kBottomRight, s.weights = true;
      RandomProblem without(s, test::BaseSeed());
      s.scores = stage;
      RandomProblem with(s, test::BaseSeed());
      for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto())) {
        test::Outcome got = RunSerial(kernel, with);
        got.scores.clear();
        EXPECT_TRUE(Same(got, RunSerial(kernel, without)))
            << ToString(kernel) << " stage " << static_cast<int>(stage);
      }
    }
  }
}

TEST(StageTest, WithoutScoresTheStageDoesNotMatter) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::Kernels()) {
    const test::Outcome expected = RunSerial(kernel, p);
    for (ScoreStage stage : kStages) {
      p.problem.score_stage = stage;
      EXPECT_TRUE(Same(RunSerial(kernel, p), expected)) << ToString(kernel);
    }
  }
}

TEST(StageTest, ThreadsInAnyOrderGiveTheSameBits) {
  for (ScoreStage stage : kStages) {
    ProblemSpec s = Spec();
    s.scores = stage, s.weights = true, s.causal = Causal::kBottomRight, s.Tq = 60, s.Tk = 200,
    s.mask = Axes::kQK;
    RandomProblem p(s, test::BaseSeed());
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
      const test::Outcome serial = RunSerial(kernel, p);
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
      for (int workers : {1, 3}) {
        p.ResetOutputs();
        const Status status = test::RunHostDriven(plan, p.problem, workers, test::BaseSeed());
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(Same(test::OutcomeOf(p), serial)) << ToString(kernel) << " workers " << workers;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
