// ALiBi: the standard slopes of any number of heads, and what a slope does to a score.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "fovea/score.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::ProblemSpec;
using test::RandomProblem;

std::vector<float> Slopes(int64_t Hq, float max_bias = 8.0f) {
  std::vector<float> slopes(static_cast<size_t>(Hq));
  AlibiSlopes(Hq, slopes.data(), max_bias);
  return slopes;
}

// The authors' get_slopes: a geometric sequence for powers of two; else that of the power of two
// below, then every other slope of twice as many heads.
std::vector<double> Published(int64_t heads, double max_bias) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<double> slopes;
  if (n == heads) {
    for (int64_t h = 1; h <= n; ++h)
      slopes.push_back(std::pow(2.0, -max_bias * static_cast<double>(h) / static_cast<double>(n)));
    return slopes;
  }
  slopes = Published(n, max_bias);
  const std::vector<double> twice = Published(2 * n, max_bias);
  for (size_t h = 0; static_cast<int64_t>(slopes.size()) < heads; h += 2)
    slopes.push_back(twice[h]);
  return slopes;
}

TEST(AlibiTest, SlopesOfTheAuthorsRule) {
  std::vector<int64_t> counts = {32, 40, 48, 64, 71, 112, 128};
  for (int64_t heads = 1; heads <= 20; ++heads) counts.push_back(heads);
  for (int64_t heads : counts) {
    for (float max_bias : {8.0f, 16.0f, 1.0f}) {
      const std::vector<float> got = Slopes(heads, max_bias);
      const std::vector<double> want = Published(heads, static_cast<double>(max_bias));
      ASSERT_EQ(want.size(), got.size());
      for (size_t h = 0; h < got.size(); ++h) {
        // One rounding to f32, and one unit for an exp2 in f32.
        EXPECT_NEAR(got[h], want[h], want[h] * 0x1p-23)
            << heads << " heads, head " << h << ", max_bias " << max_bias;
      }
    }
  }
}

TEST(AlibiTest, SlopesBeyondFloatsAreTheLargestFloat) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float max_bias : {-127.9f, -128.0f, -1e5f, -3e38f, -infinity}) {
    const std::vector<float> slopes = Slopes(6, max_bias);
    for (float slope : slopes) EXPECT_TRUE(std::isfinite(slope) && slope > 1) << max_bias;
    EXPECT_EQ(slopes[3], max_bias <= -128.0f ? std::numeric_limits<float>::max() : slopes[3]);
  }
  EXPECT_EQ(Slopes(1, infinity)[0], 0);
  EXPECT_TRUE(std::isnan(Slopes(1, std::numeric_limits<float>::quiet_NaN())[0]));
}

TEST(AlibiTest, PublishedExamples) {
  EXPECT_EQ(Slopes(8), (std::vector<float>{1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32,
                                           1.0f / 64, 1.0f / 128, 1.0f / 256}));
  EXPECT_EQ(Slopes(1), (std::vector<float>{1.0f / 256}));
  EXPECT_EQ(Slopes(2), (std::vector<float>{1.0f / 16, 1.0f / 256}));
  const std::vector<float> sixteen = Slopes(16), twelve = Slopes(12);
  EXPECT_NEAR(sixteen[0], std::sqrt(0.5), 1e-7);
  EXPECT_EQ(sixteen[15], 1.0f / 256);
  for (size_t h = 0; h < 8; ++h) EXPECT_EQ(twelve[h], Slopes(8)[h]);
  for (size_t h = 8; h < 12; ++h)
    EXPECT_NEAR(twelve[h], std::exp2(-0.5 - static_cast<double>(h - 8)), 1e-7);
  EXPECT_EQ(Slopes(8, 16), (std::vector<float>{0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-10f,
                                               0x1p-12f, 0x1p-14f, 0x1p-16f}));
}

TEST(AlibiTest, WritesOneSlopeForEachHeadAndNoMore) {
  for (int64_t heads = -3; heads <= 20; ++heads) {
    std::vector<float> memory(32, -7);
    AlibiSlopes(heads, memory.data());
    for (int64_t h = 0; h < 32; ++h)
      EXPECT_EQ(memory[static_cast<size_t>(h)] == -7, h >= heads)
          << heads << " heads, element " << h;
  }
  AlibiSlopes(0, nullptr);
  AlibiSlopes(std::numeric_limits<int64_t>::min(), nullptr);
}

TEST(AlibiTest, SlopesFallWithinPowersOfTwoAndLieBetweenZeroAndOne) {
  for (int64_t heads : {1, 2, 4, 8, 16, 32, 64, 128, 12, 40}) {
    const std::vector<float> slopes = Slopes(heads);
    for (float x : slopes) EXPECT_TRUE(x > 0 && x < 1) << x;
    int64_t n = 1;
    while (2 * n <= heads) n *= 2;
    for (int64_t h = 1; h < n; ++h)
      EXPECT_LT(slopes[static_cast<size_t>(h)], slopes[static_cast<size_t>(h - 1)]);
  }
}

TEST(AlibiTest, AScoreLosesItsSlopeForEachKeyOfDistance) {
  // Scores of 0 but for ALiBi, given out before softmax.
  ProblemSpec s;
  s.Hq = 12, s.Hkv = 3, s.Tq = 9, s.Tk = 200, s.dk = 4, s.dv = 4, s.scale = 0.0f, s.alibi = true,
  s.scores = ScoreStage::kMasked;
  for (int64_t offset : {0, 191, -5, 300}) {
    s.query_offset = offset;
    RandomProblem p(s, test::BaseSeed());
    const std::vector<float> slopes = Slopes(s.Hq);
    for (int64_t h = 0; h < s.Hq; ++h) p.alibi_slopes.Set(h, slopes[static_cast<size_t>(h)]);
    for (const test::Kernel& kernel : test::Kernels()) {
      p.ResetOutputs();
      ASSERT_TRUE(Attention(p.problem, test::Options(kernel), SerialExecutor()).ok());
      EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem))) << ToString(kernel);
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t j = 0; j < s.Tk; ++j) {
            const double want = -static_cast<double>(slopes[static_cast<size_t>(h)]) *
                                static_cast<double>(std::abs(i + offset - j));
            ASSERT_NEAR(p.scores.At({0, h, i, j}), want, std::fabs(want) * 0x1p-23)
                << ToString(kernel) << " " << h << " " << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(AlibiTest, StandardSlopesMatchTheReference) {
  for (int64_t heads : {1, 3, 8, 12, 20}) {
    ProblemSpec s;
    s.Hq = heads, s.Hkv = 1, s.Tq = 20, s.Tk = 90, s.dk = 8, s.dv = 8, s.alibi = true,
    s.causal = Causal::kBottomRight;
    RandomProblem p(s, test::BaseSeed());
    const std::vector<float> slopes = Slopes(heads);
    for (int64_t h = 0; h < heads; ++h) p.alibi_slopes.Set(h, slopes[static_cast<size_t>(h)]);
    test::ExpectMatchesReference(p);
  }
}

}  // namespace
}  // namespace fovea
