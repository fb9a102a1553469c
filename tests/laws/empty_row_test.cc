// Rows without a visible key, and sinks, which alone can fill them: on every kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::SmallSpec;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- empty rows ----

TEST(EmptyRowTest, RowsWithoutAVisibleKeyAreZeroWithLseOfNothingOrOfTheSink) {
  for (bool sinks : {false, true}) {
    for (int how = 0; how < 5; ++how) {
      ProblemSpec s = SmallSpec();
      s.sinks = sinks;
      if (how == 0) s.mask = Axes::kB1Q1, s.mask_allows = 0.5;
      if (how == 1) s.bias = Axes::kB1Q1, s.bias_removes = 0.5;
      if (how == 2) s.causal = Causal::kTopLeft, s.query_offset = -10;
      if (how == 3) s.window = {0, 0}, s.query_offset = 60;
      if (how == 4) s.kv_lengths = DType::kI32;
      RandomProblem p(s, test::BaseSeed());
      if (how == 4) p.kv_lengths.Set(1, 0), p.Refresh();
      test::ExpectMatchesReference(p);
      std::vector<int64_t> empty;
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        bool sees = false;
        for (int64_t j = 0; j < s.Tk; ++j)
          sees = sees || p.Visible(row / (s.Hq * s.Tq), row / s.Tq % s.Hq, row % s.Tq, j);
        if (!sees) empty.push_back(row);
      }
      EXPECT_FALSE(empty.empty());
      for (const Kernel& kernel : test::Kernels()) {
        RunOn(kernel, p);
        for (int64_t row : empty) {
          const int64_t h = row / s.Tq % s.Hq;
          // lse = σ is no computation: to one rounding.
          if (sinks) {
            ASSERT_NEAR(p.lse.Get(row), p.sinks.Get(h), 0x1p-23 * std::fabs(p.sinks.Get(h)))
                << ToString(kernel);
          } else {
            ASSERT_EQ(p.lse.Get(row), -kInf) << ToString(kernel);
          }
          for (int64_t c = 0; c < s.dv; ++c)
            ASSERT_EQ(p.out.Get(row * s.dv + c), 0.0) << ToString(kernel);
          for (int64_t j = 0; j < s.Tk; ++j)
            ASSERT_EQ(p.weights.Get(row * s.Tk + j), 0.0) << ToString(kernel);
        }
      }
    }
  }
}

TEST(EmptyRowTest, RowsBehindQLengthsAreZeroWithLseOfNothingEvenWithASinkAndNaN) {
  ProblemSpec s = SmallSpec();
  s.q_lengths = DType::kI64, s.sinks = true;
  RandomProblem p(s, test::BaseSeed());
  p.q_lengths.Set(0, 7);
  p.q_lengths.Set(1, 0);
  for (int64_t h = 0; h < s.Hq; ++h) {
    for (int64_t i = 7; i < s.Tq; ++i) p.q.SetAt({0, h, i, 3}, kNaN);
  }
  for (const Kernel& kernel : test::Kernels()) {
    RunOn(kernel, p);
    for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
      const bool padding = row / (s.Hq * s.Tq) == 1 || row % s.Tq >= 7;
      ASSERT_EQ(p.lse.Get(row) == -kInf, padding) << ToString(kernel) << " row " << row;
      if (!padding) continue;
      for (int64_t c = 0; c < s.dv; ++c)
        ASSERT_EQ(p.out.Get(row * s.dv + c), 0.0) << ToString(kernel);
      for (int64_t j = 0; j < s.Tk; ++j)
        ASSERT_EQ(p.weights.Get(row * s.Tk + j), 0.0) << ToString(kernel);
    }
  }
  test::ExpectMatchesReference(p);
}

// ---- sinks ----

TEST(SinkTest, ExtremeSinks) {
  for (double sink : {-1e30, -200.0, 0.0, 50.0, 200.0, 1e30}) {
    ProblemSpec s = SmallSpec();
    s.sinks = true;
    RandomProblem p(s, test::BaseSeed());
    p.sinks.Fill([&] { return sink; });
    SCOPED_TRACE(sink);
    test::ExpectMatchesReference(p);
  }
}

TEST(SinkTest, ASinkOfMinusInfinityIsNoSink) {
  ProblemSpec s = SmallSpec();
  s.sinks = true, s.mask = Axes::kB1Q1;
  RandomProblem p(s, test::BaseSeed());
  p.sinks.Fill([] { return -kInf; });
  test::ExpectMatchesReference(p);
}

// Rows of a head without keys, among rows that see some, and rows of another head of the group,
// which share their tiles.
TEST(SinkTest, ASinkOfPlusInfinityFillsARowWithoutKeysAlone) {
  for (int how = 0; how < 3; ++how) {
    for (int64_t Tq : {1, 19, 70}) {
      ProblemSpec s = SmallSpec();
      s.Tq = Tq, s.Tk = 130, s.sinks = true, s.mask = Axes::kHQK;
      // Blocks of keys that nothing sees are not visited, by position or by the map of the mask.
      if (how == 1) s.causal = Causal::kTopLeft, s.query_offset = 20;
      if (how == 2) s.kv_lengths = DType::kI32;
      RandomProblem infinite(s, test::BaseSeed());
      if (how == 2) {
        infinite.kv_lengths.Set(0, 0), infinite.kv_lengths.Set(1, 130);
        test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
        for (OwnedTensor* tensor : {&infinite.k, &infinite.v})
          tensor->Fill([&] { return random.Normal(); });
      }
      // Heads 0 and 1 share keys: all rows of head 0 and every third of head 1 see none.
      const auto sees = [](int64_t h, int64_t i) { return h == 1 ? i % 3 != 0 : h != 0; };
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < Tq; ++i) {
          for (int64_t j = 0; j < s.Tk && !sees(h, i); ++j) infinite.mask.SetAt({h, i, j}, 0);
        }
      }
      infinite.Refresh();
      RandomProblem finite = infinite;
      for (OwnedTensor* tensor : {&finite.out, &finite.lse, &finite.weights, &finite.sinks})
        *tensor = tensor->CopiedTo({});
      finite.Refresh();
      infinite.sinks.Set(0, kInf);
      test::ExpectMatchesReference(infinite);
      for (const Kernel& kernel : test::Kernels()) {
        RunOn(kernel, finite);
        RunOn(kernel, infinite);
        for (int64_t row = 0; row < s.B * s.Hq * Tq; ++row) {
          const bool filled = row / Tq % s.Hq == 0;
          ASSERT_EQ(infinite.lse.Get(row), filled ? kInf : finite.lse.Get(row))
              << ToString(kernel) << " way " << how << " row " << row;
          for (int64_t c = 0; c < s.dv; ++c) {
            ASSERT_EQ(infinite.out.Get(row * s.dv + c),
                      filled ? 0.0 : finite.out.Get(row * s.dv + c))
                << ToString(kernel) << " way " << how << " row " << row;
          }
          for (int64_t j = 0; j < s.Tk; ++j) {
            ASSERT_EQ(infinite.weights.Get(row * s.Tk + j),
                      filled ? 0.0 : finite.weights.Get(row * s.Tk + j))
                << ToString(kernel) << " way " << how << " row " << row;
          }
        }
      }
    }
  }
}

TEST(SinkTest, NaNSinkGivesNaNRowsOfItsHead) {
  ProblemSpec s = SmallSpec();
  s.sinks = true;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed());
    p.sinks.Set(1, kNaN);
    RunOn(kernel, p);
    for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row)
      ASSERT_EQ(std::isnan(p.lse.Get(row)), row / s.Tq % s.Hq == 1) << ToString(kernel);
  }
}

}  // namespace
}  // namespace fovea
