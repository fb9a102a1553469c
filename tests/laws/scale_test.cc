// The scale of scores: what it is for, and what no scale may break.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::SmallSpec;

constexpr double kEps = 0x1p-24;
constexpr double kT = 1e-5;  // the contract's t while scores stay below 20

TEST(ScaleTest, UnitVarianceInputsHaveScoresOfVarianceDkAndOneAfterScaling) {
  // The scores are read back from lse: with one key, lse is the score.
  for (const Kernel& kernel : test::Kernels()) {
    for (int64_t dk : {16, 64}) {
      for (bool scaled : {false, true}) {
        ProblemSpec s;
        s.B = 400, s.Tq = 10, s.dk = dk;
        if (!scaled) s.scale = 1.0f;
        RandomProblem p(s, test::BaseSeed() + static_cast<uint64_t>(dk));
        RunOn(kernel, p);
        double sum = 0;
        for (double x : p.lse.Dense()) sum += x * x;
        const double n = 4000, variance = sum / n, expected = scaled ? 1 : static_cast<double>(dk);
        // Ten queries share a key, so 400 sequences are what is independent at the worst: var(s²) ≤
        // 3·expected², and a given key's share |k|²/dk varies by 2/dk. Five standard deviations.
        const double sigma = expected * std::sqrt((2 + 6.0 / static_cast<double>(dk)) / n +
                                                  2.0 / static_cast<double>(dk) / 400);
        EXPECT_NEAR(variance, expected, 5 * sigma) << ToString(kernel) << " dk " << dk;
      }
    }
  }
}

TEST(ScaleTest, OnlyTheScaledProductCanOverflow) {
  // q·k = 10⁴⁰ is no float, 10⁻³⁸ of it is 100. Likewise scale·q alone, scale·k alone, and products
  // too small to be floats.
  struct Extreme {
    double q, k;
    float scale;
  };
  for (const Extreme& e :
       {Extreme{1e20, 1e20, 1e-38f}, Extreme{3e38, 1, 1e-38f}, Extreme{1, 3e38, 1e-38f},
        Extreme{1e19, 1e19, 0.5f}, Extreme{1e4, 1e-38, 1e35f}, Extreme{1e-38, 1e4, 1e35f},
        Extreme{1e-20, 1e-20, 1e38f}, Extreme{1e-38, 1, 1e38f}, Extreme{1, 1e-38, 1e38f},
        Extreme{1e30, 1e-30, 1.0f}, Extreme{1e-30, 1e30, 1.0f}, Extreme{1e-19, 1e-19, 3e38f},
        Extreme{1e36, 1e-3, 1e-33f}, Extreme{1e-36, 1e3, 1e33f}}) {
    ProblemSpec s;
    s.Hq = 2, s.Tq = 5, s.Tk = 19, s.dk = 4, s.dv = 3, s.scale = e.scale;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t n = 0; n < p.q.size(); ++n)
      p.q.Set(n, e.q * std::max(-1.0, std::min(1.0, p.q.Get(n))));
    for (int64_t n = 0; n < p.k.size(); ++n)
      p.k.Set(n, e.k * std::max(-1.0, std::min(1.0, p.k.Get(n))));
    SCOPED_TRACE("q " + std::to_string(e.q) + " k " + std::to_string(e.k) + " scale " +
                 std::to_string(e.scale));
    test::ExpectMatchesReference(p);
  }
}

TEST(ScaleTest, ChannelsOfVeryDifferentSizes) {
  // Each product is near 1, each factor anywhere in the range of a float.
  ProblemSpec s;
  s.Hq = 2, s.Tq = 5, s.Tk = 19, s.dk = 12, s.dv = 3, s.scale = 1.0f;
  RandomProblem p(s, test::BaseSeed());
  for (int64_t n = 0; n < p.q.size(); ++n)
    p.q.Set(n, p.q.Get(n) * std::pow(10.0, static_cast<double>(n % s.dk) * 6 - 33));
  for (int64_t n = 0; n < p.k.size(); ++n)
    p.k.Set(n, p.k.Get(n) * std::pow(10.0, 33 - static_cast<double>(n % s.dk) * 6));
  test::ExpectMatchesReference(p);
}

TEST(ScaleTest, NegativeAndZeroScales) {
  for (float scale : {-1.0f, -0.25f, 0.0f, -0.0f}) {
    ProblemSpec s = SmallSpec();
    s.scale = scale, s.causal = Causal::kBottomRight;
    RandomProblem p(s, test::BaseSeed());
    test::ExpectMatchesReference(p);
  }
}

TEST(ScaleTest, ScoresAThousandTimesLarger) {
  ProblemSpec s = SmallSpec();
  s.scale = 1000 / std::sqrt(24.0f), s.causal = Causal::kTopLeft;
  RandomProblem p(s, test::BaseSeed());
  test::ExpectMatchesReference(p);
}

TEST(ScaleTest, AddingAConstantToAllScoresChangesOnlyLse) {
  for (const Kernel& kernel : test::Kernels()) {
    for (double constant : {-1e4, -100.0, 100.0, 1e4}) {
      ProblemSpec s = SmallSpec();
      s.bias = Axes::k1;
      RandomProblem p(s, test::BaseSeed()), moved(s, test::BaseSeed());
      p.bias.Set(0, 0);
      moved.bias.Set(0, constant);
      RunOn(kernel, p);
      RunOn(kernel, moved);
      // A score near 10⁴ is known to 2⁻²⁴·10⁴, so weights are to twice that.
      const double t = std::max(kT, 8 * kEps * (std::fabs(constant) + 20));
      for (int64_t n = 0; n < p.weights.size(); ++n)
        ASSERT_NEAR(p.weights.Get(n), moved.weights.Get(n), t) << ToString(kernel);
      for (int64_t n = 0; n < p.lse.size(); ++n)
        ASSERT_NEAR(p.lse.Get(n) + constant, moved.lse.Get(n), t) << ToString(kernel);
    }
  }
}

}  // namespace
}  // namespace fovea
