// The specification as code, checked by hand-computed numbers.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "spec/example.h"
#include "support/score_function.h"

namespace fovea::reference {
namespace {

// ---- forward, by hand

TEST(Forward, WorkedExample) {
  const float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {1, 2, 3, 4};
  Problem problem;
  problem.q = View(q, {1, 1, 1, 2});
  problem.k = View(k, {1, 1, 2, 2});
  problem.v = View(v, {1, 1, 2, 2});
  const ForwardResult r = Forward(problem);
  // scores 1/√2 and 0; e^0.70710678 = 2.02811498
  ExpectAllNear(r.weights, {0.66976155, 0.33023845}, 1e-7);
  ExpectAllNear(r.out, {1.66047690, 2.66047690}, 1e-6);
  ExpectAllNear(r.lse, {1.10794037}, 1e-6);
  ExpectAllNear(r.scores, {0.70710678, 0}, 1e-8);
}

TEST(Forward, ModifiersApplyInTheOrderOfTheContract) {
  OneRow row({3, -1, 2});
  const float slope[] = {0.5f}, bias[] = {0, 1, -0.25f};
  row.problem.score.scale = 2.0f;
  row.problem.score.softcap = 4;
  row.problem.score.alibi_slopes = View(slope, {1});
  row.problem.score.bias = View(bias, {3});
  row.problem.score.query_offset = 2;
  const ForwardResult r = Forward(row.problem);
  ExpectAllNear(r.scores,
                {4 * std::tanh(1.5) - 1, 4 * std::tanh(-0.5) - 0.5 + 1, 4 * std::tanh(1.0) - 0.25},
                kRounding);
}

TEST(Forward, ScaleIsInsideTheProduct) {
  // q·k = 4e38 overflows float; the scaled score is 4
  const float q[] = {2e19f}, k[] = {2e19f, 1e19f}, v[] = {1, 2};
  Problem problem;
  problem.q = View(q, {1, 1, 1, 1});
  problem.k = View(k, {1, 1, 2, 1});
  problem.v = View(v, {1, 1, 2, 1});
  problem.score.scale = 1e-38f;
  ExpectAllNear(Forward(problem).scores, {4, 2}, 1e-5);
}

TEST(Forward, HeadScalesMultiplyTheScaleInsideTheProduct) {
  // scale · head_scale = 1e60 and q·k = 1e-60, neither of which is a float
  const float q[] = {2, 2e-30f}, k[] = {3, 4e-30f}, v[] = {1, 2}, scales[] = {-0.5f, 1e30f};
  Problem problem;
  problem.q = View(q, {1, 2, 1, 1});
  problem.k = View(k, {1, 2, 1, 1});
  problem.v = View(v, {1, 2, 1, 1});
  problem.score.scale = 1e30f;
  problem.score.head_scales = View(scales, {2});
  const ForwardResult r = Forward(problem);
  EXPECT_NEAR(r.scores[0], -3e30, 1e24);
  EXPECT_NEAR(r.scores[1], 8, 1e-5);
  problem.score.scale = 0.25f;
  const StageResult scaled = ScoresAt(problem, ScoreStage::kScaled);
  EXPECT_EQ(scaled.scores[0], -0.75);
  EXPECT_EQ(scaled.tolerance[0], 1e-5);
}

TEST(Forward, BiasScalesMultiplyTheBiasAlone) {
  OneRow row({3, -1, 2});
  const float bias[] = {4, -0.5f, 0}, scale[] = {-2}, slope[] = {0.5f};
  row.problem.score.bias = View(bias, {3});
  row.problem.score.bias_scales = View(scale, {1});
  row.problem.score.softcap = 4;
  row.problem.score.alibi_slopes = View(slope, {1});
  ExpectAllNear(Forward(row.problem).scores,
                {4 * std::tanh(0.75) - 8, 4 * std::tanh(-0.25) - 0.5 + 1, 4 * std::tanh(0.5) - 1},
                kRounding);
  row.problem.score.bias = TensorView();  // nothing to multiply
  ExpectAllNear(Forward(row.problem).scores,
                {4 * std::tanh(0.75), 4 * std::tanh(-0.25) - 0.5, 4 * std::tanh(0.5) - 1},
                kRounding);
}

TEST(Forward, ScaledBiasesSaturateAndOnlyAStoredMinusInfinityRemoves) {
  const float most = std::numeric_limits<float>::max();
  const float bias[] = {-kInf, -most, most, 0, kInf, kNan};
  const double sums[][6] = {// of a score of 1, by the scale; −inf: removed
                            {-kInf, 1 - 2.0 * 0x1p127, 1 + 2.0 * 0x1p127, 1, kInf, kNan},
                            {-kInf, 1, 1, 1, kNan, kNan},
                            {-kInf, 1 + 2.0 * 0x1p127, 1 - 2.0 * 0x1p127, 1, -kInf, kNan}};
  const float scales[] = {2, 0, -3e38f};
  for (int n = 0; n < 3; ++n) {
    for (int64_t j = 0; j < 6; ++j) {
      OneRow row({1});
      row.problem.score.bias = View(bias + j, {1});
      row.problem.score.bias_scales = View(scales + n, {1});
      const ForwardResult r = Forward(row.problem);
      EXPECT_EQ(r.visible[0], j != 0);
      if (std::isnan(sums[n][j])) {
        EXPECT_TRUE(std::isnan(r.scores[0])) << n << " " << j;
      } else if (std::isinf(sums[n][j])) {
        EXPECT_EQ(r.scores[0], sums[n][j]) << n << " " << j;
      } else {
        EXPECT_NEAR(r.scores[0], sums[n][j], std::abs(sums[n][j]) * 0x1p-23) << n << " " << j;
      }
    }
  }
}

TEST(Forward, AScoreFunctionComesBehindTheBiasAndGetsPositions) {
  Example e(MakeSizes(2, 2, 1, 3, 4, 2, 2));
  const float bias[] = {0.5f, 1, -1, 2};
  const int64_t offsets[] = {5, -2};
  e.problem.score.softcap = 1;
  e.problem.score.bias = View(bias, {4});
  e.problem.score.query_offsets = View(offsets, {2});
  const ForwardResult without = Forward(e.problem);
  const auto f = [](float s, int64_t b, int64_t h, int64_t position, int64_t j) {
    return 2 * s + static_cast<float>(1000 * b + 100 * h + 10 * position + j);
  };
  e.problem.score.function = test::EachScore(f);
  const ForwardResult with = Forward(e.problem);
  for (size_t n = 0; n < with.scores.size(); ++n) {
    const int64_t j = static_cast<int64_t>(n) % 4, i = static_cast<int64_t>(n) / 4 % 3,
                  h = static_cast<int64_t>(n) / 12 % 2, b = static_cast<int64_t>(n) / 24;
    const double want =
        2 * without.scores[n] + static_cast<double>(1000 * b + 100 * h + 10 * (i + offsets[b]) + j);
    EXPECT_NEAR(with.scores[n], want, std::abs(want) * 0x1p-22 + 0x1p-22) << n;
  }
  EXPECT_NE(with.weights, without.weights);
}

TEST(Forward, AScoreFunctionRemovesPairsByMinusInfinityAndBringsNoneBack) {
  OneRow row({1, 2, 3, 4});
  row.v = {1, kNan, 3, kNan};
  const bool mask[] = {true, true, true, false};
  const auto f = [](float, int64_t, int64_t, int64_t, int64_t j) { return j == 1 ? -kInf : 0; };
  row.problem.score.mask = View(mask, {4});
  row.problem.score.function = test::EachScore(f);
  row.problem.score.query_offset = 1;
  const ForwardResult r = Forward(row.problem);
  EXPECT_EQ(r.visible, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(r.out, (std::vector<double>{2}));
  EXPECT_EQ(r.scores, (std::vector<double>{0, -kInf, 0, -kInf}));
  EXPECT_EQ(r.lse[0], std::log(2.0));
}

TEST(Forward, SinkAddsToTheDenominatorOnly) {
  OneRow row({std::log(1.0f), std::log(2.0f)});
  const float sink[] = {std::log(5.0f)};
  row.problem.score.sinks = View(sink, {1});
  const ForwardResult r = Forward(row.problem);
  ExpectAllNear(r.weights, {1.0 / 8, 2.0 / 8}, 1e-6);
  ExpectAllNear(r.out, {(1 * 1 + 2 * 2) / 8.0}, 1e-6);
  ExpectAllNear(r.lse, {std::log(8.0)}, 1e-6);
}

TEST(Forward, QueryHeadsShareKeyValueHeadsInGroups) {
  Example e(MakeSizes(1, 6, 2, 1, 3, 2, 2));
  const ForwardResult r = Forward(e.problem);
  for (int64_t h = 0; h < 6; ++h) {
    Problem one = e.problem;
    one.q = Input(e.q.data() + h * 2, {1, 1, 1, 2});
    one.k = Input(e.k.data() + h / 3 * 6, {1, 1, 3, 2});
    one.v = Input(e.v.data() + h / 3 * 6, {1, 1, 3, 2});
    ExpectAllNear(Forward(one).out, {r.out[h * 2], r.out[h * 2 + 1]}, kRounding);
  }
}

// ---- scores at their stages

TEST(ScoresAt, EveryStageByHand) {
  // q·k = 1, −2, 4, 8 for one query at position 2; the third pair is removed by the mask, the
  // fourth key does not exist.
  OneRow row({1, -2, 4, 8});
  const float slope[] = {0.25f}, bias[] = {0, 1, 0, 0};
  const bool mask[] = {true, true, false, true};
  const int32_t kv_length[] = {3};
  Score& score = row.problem.score;
  score.scale = 0.5f;
  score.softcap = 2;
  score.alibi_slopes = View(slope, {1});
  score.bias = View(bias, {4});
  score.mask = View(mask, {4});
  score.kv_lengths = View(kv_length, {1});
  score.query_offset = 2;
  const double capped[] = {2 * std::tanh(0.25), 2 * std::tanh(-0.5), 2 * std::tanh(1.0)};
  const double masked[] = {capped[0] - 0.5, capped[1] - 0.25 + 1};
  const double sum = std::exp(masked[0]) + std::exp(masked[1]);
  const auto scores_at = [&](ScoreStage stage) { return ScoresAt(row.problem, stage).scores; };
  const auto expect = [&](ScoreStage stage, const std::vector<double>& want) {
    const std::vector<double> got = scores_at(stage);
    ASSERT_EQ(got.size(), 4u);
    for (size_t j = 0; j < 4; ++j) {
      if (std::isinf(want[j])) {
        EXPECT_EQ(got[j], want[j]) << j;
      } else {
        EXPECT_NEAR(got[j], want[j], kRounding) << j;
      }
    }
  };
  const double kNothing = -std::numeric_limits<double>::infinity();
  expect(ScoreStage::kScaled, {0.5, -1, 2, kNothing});
  expect(ScoreStage::kSoftcapped, {capped[0], capped[1], capped[2], kNothing});
  expect(ScoreStage::kMasked, {masked[0], masked[1], kNothing, kNothing});
  expect(ScoreStage::kWeights, {std::exp(masked[0]) / sum, std::exp(masked[1]) / sum, 0, 0});
  score.softcap = 0;
  expect(ScoreStage::kSoftcapped, {0.5, -1, 2, kNothing});
  // Forward gives the stage that the problem asks for.
  EXPECT_TRUE(Forward(row.problem).stage.scores.empty());
  float scores[4];
  row.problem.scores = View(scores, {1, 1, 1, 4});
  row.problem.score_stage = ScoreStage::kScaled;
  EXPECT_EQ(Forward(row.problem).stage.scores, scores_at(ScoreStage::kScaled));
  row.problem.score_stage = ScoreStage::kMasked;
  EXPECT_EQ(Forward(row.problem).stage.scores, Forward(row.problem).scores);
}

TEST(ScoresAt, QueriesBehindTheirLengthHaveNoScore) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 1, 1));
  const int32_t q_length[] = {1};
  e.problem.score.q_lengths = View(q_length, {1});
  for (ScoreStage stage : {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kMasked}) {
    const StageResult r = ScoresAt(e.problem, stage);
    EXPECT_TRUE(std::isfinite(r.scores[0]) && std::isfinite(r.scores[1]));
    EXPECT_TRUE(r.scores[2] == -kInf && r.scores[3] == -kInf);
  }
  EXPECT_EQ(ScoresAt(e.problem, ScoreStage::kWeights).scores[2], 0);
}

TEST(ScoresAt, ToleranceIsOfThePair) {
  OneRow row({1, 3000, -6000});
  const StageResult scaled = ScoresAt(row.problem, ScoreStage::kScaled);
  EXPECT_EQ(scaled.tolerance,
            (std::vector<double>{1e-5, 8 * std::ldexp(3000.0, -24), 8 * std::ldexp(6000.0, -24)}));
  row.problem.score.softcap = 1;  // the error of the product passes through tanh at most whole
  EXPECT_EQ(ScoresAt(row.problem, ScoreStage::kSoftcapped).tolerance, scaled.tolerance);
  OneRow overflowing({3e38f, 1});
  overflowing.problem.score.scale = 2.0f;
  const StageResult r = ScoresAt(overflowing.problem, ScoreStage::kMasked);
  EXPECT_TRUE(std::isinf(r.tolerance[0]));
  EXPECT_EQ(r.tolerance[1], 1e-5);
}

}  // namespace
}  // namespace fovea::reference
