// The steps of a score one by one: softcap, their order, groups of heads and which pairs are
// visible.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Kernel;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;

constexpr double kT = 1e-5;  // the contract's t while scores stay below 20

TEST(ScoreStepTest, SoftcapBoundsTheScore) {
  for (const Kernel& kernel : test::Kernels()) {
    for (float cap : {0.01f, 1.0f, 50.0f}) {
      ProblemSpec s;
      s.Tq = 40, s.dk = 4, s.scale = 1e3f, s.softcap = cap;  // one key: lse is the score
      RandomProblem p(s, test::BaseSeed());
      RunOn(kernel, p);
      for (double x : p.lse.Dense()) ASSERT_LE(std::fabs(x), cap * (1 + 2e-6)) << ToString(kernel);
    }
  }
}

TEST(ScoreStepTest, StepsApplyInTheContractsOrder) {
  // One query, one key, all steps: lse = ln(exp(c·tanh(s/c) − a·|i + offset − j| + bias) + exp(σ)).
  for (const Kernel& kernel : test::Kernels()) {
    const float q[] = {3}, k[] = {2}, v[] = {1}, slope[] = {0.5f}, bias[] = {-1.25f},
                sink[] = {0.75f};
    float out[1] = {}, lse[1] = {};
    Problem p;
    p.q = View(q, {1, 1, 1, 1});
    p.k = View(k, {1, 1, 1, 1});
    p.v = View(v, {1, 1, 1, 1});
    p.out = View(out, {1, 1, 1, 1});
    p.lse = View(lse, {1, 1, 1});
    p.score.scale = 0.5f;
    p.score.softcap = 2;
    p.score.alibi_slopes = View(slope, {1});
    p.score.bias = View(bias, {1, 1, 1, 1});
    p.score.sinks = View(sink, {1});
    p.score.query_offset = 4;
    ASSERT_TRUE(Attention(p, test::Options(kernel), SerialExecutor()).ok());
    const double s = 2 * std::tanh(3.0 / 2) - 0.5 * 4 - 1.25;
    const double l = std::exp(s) + std::exp(0.75);
    EXPECT_NEAR(lse[0], std::log(l), kT) << ToString(kernel);
    EXPECT_NEAR(out[0], std::exp(s) / l, kT) << ToString(kernel);
  }
}

TEST(ScoreStepTest, QueryHeadsReadTheirKvHead) {
  // Each KV head's V is its number, so out names the head that was read.
  for (const Kernel& kernel : test::Kernels()) {
    for (int64_t group : {1, 2, 3, 5, 8}) {
      ProblemSpec s;
      s.B = 2, s.Hkv = 3, s.Hq = 3 * group, s.Tq = 3, s.Tk = 7, s.dk = 4, s.dv = 2;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t h = 0; h < s.Hkv; ++h) {
          for (int64_t j = 0; j < s.Tk; ++j)
            p.v.SetAt({b, h, j, 0}, static_cast<double>(h)),
                p.v.SetAt({b, h, j, 1}, static_cast<double>(b));
        }
      }
      RunOn(kernel, p);
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t h = 0; h < s.Hq; ++h) {
          EXPECT_NEAR(p.out.At({b, h, 1, 0}), static_cast<double>(h / group), 1e-5)
              << ToString(kernel);
          EXPECT_NEAR(p.out.At({b, h, 1, 1}), static_cast<double>(b), 1e-5) << ToString(kernel);
        }
      }
    }
  }
}

TEST(ScoreStepTest, PairsAreVisibleWhereTheContractSays) {
  // Weights show visibility itself: positive inside, exactly 0 outside. Scores are 0, so no weight
  // is small.
  for (const Kernel& kernel : test::Kernels()) {
    uint64_t seed = test::BaseSeed();
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (Window window :
           {Window{-1, -1}, Window{0, 0}, Window{2, -1}, Window{-1, 3}, Window{4, 1}}) {
        for (int offset = 0; offset < 4; ++offset) {
          ProblemSpec s;
          s.B = 3, s.Hq = 2, s.Hkv = 1, s.Tq = 11, s.Tk = 26, s.dk = 3, s.dv = 3, s.scale = 0.0f,
          s.weights = true;
          s.causal = causal, s.window = window, s.q_lengths = DType::kI32,
          s.kv_lengths = DType::kI64;
          if (offset == 1) s.query_offset = 5;
          if (offset == 2) s.query_offset = -4;
          if (offset == 3) s.query_offsets = DType::kI64;
          RandomProblem p(s, ++seed);
          RunOn(kernel, p);
          for (int64_t n = 0; n < p.weights.size(); ++n) {
            const int64_t b = n / (s.Hq * s.Tq * s.Tk), i = n / s.Tk % s.Tq, j = n % s.Tk;
            ASSERT_EQ(p.weights.Get(n) > 0, p.InBand(b, i, j))
                << ToString(kernel) << " b " << b << " i " << i << " j " << j << " seed " << seed
                << "\n"
                << ToString(s);
          }
        }
      }
    }
  }
}

TEST(ScoreStepTest, HugeWindowsAndOffsetsDoNotOverflow) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (int64_t offset : {int64_t{0}, int64_t{1} << 62, -(int64_t{1} << 62), int64_t{1} << 33}) {
    for (Window window : {Window{-1, -1}, Window{most, most}, Window{most, 0}, Window{0, most}}) {
      for (Causal causal : {Causal::kNone, Causal::kTopLeft}) {
        ProblemSpec s;
        s.Tq = 3, s.Tk = 9, s.dk = 2, s.dv = 2, s.query_offset = offset, s.window = window,
        s.causal = causal;
        RandomProblem p(s, 1);
        // Where does query i stand, and which keys does it see? Distances do not overflow.
        for (const Kernel& kernel : test::Kernels()) {
          p.ResetOutputs();
          const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
          for (int64_t i = 0; i < s.Tq; ++i) {
            bool sees = false;
            for (int64_t j = 0; j < s.Tk; ++j) {
              const int64_t position = i + offset;
              bool visible = true;
              if (causal != Causal::kNone && j > position) visible = false;
              if (window.left != -1 && position - j > window.left) visible = false;
              if (window.right != -1 && j - position > window.right) visible = false;
              sees = sees || visible;
            }
            EXPECT_EQ(p.lse.Get(i) > -std::numeric_limits<double>::infinity(), sees)
                << ToString(kernel) << " offset " << offset << " i " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
