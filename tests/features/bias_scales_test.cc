// Scales of biases: bias_scale · bias in the place of the bias, but that a stored −inf removes and
// nothing else does.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 21, s.Tk = 67, s.dk = 24, s.dv = 17, s.weights = true,
  s.bias = Axes::kHQK, s.bias_scales = true;
  return s;
}

void SetScales(RandomProblem& p, const std::vector<double>& scales) {
  for (int64_t h = 0; h < p.spec.Hq; ++h)
    p.bias_scales.Set(h, scales[static_cast<size_t>(h) % scales.size()]);
}

TEST(BiasScalesTest, EveryShapeAndTypeOfBias) {
  uint64_t seed = test::BaseSeed();
  for (Axes axes : test::kAllAxes) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      ProblemSpec s = Spec();
      s.bias = axes, s.bias_type = type, s.bias_removes = 0.1, s.scores = ScoreStage::kMasked;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(BiasScalesTest, AnyGroupAndSize) {
  uint64_t seed = test::BaseSeed();
  for (int64_t group : {1, 2, 3, 8}) {
    for (int64_t size : test::Thinned({1, 15, 16, 17, 33, 64, 101})) {
      ProblemSpec s = Spec();
      s.Hq = 2 * group, s.Tq = size, s.Tk = 2 * size - 1, s.causal = Causal::kBottomRight;
      s.bias =
          group % 2 == 0 ? Axes::kB11K : Axes::kQK;  // rows that are the same but for the scale
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(BiasScalesTest, EveryTypeOfQueriesKeysAndValues) {
  uint64_t seed = test::BaseSeed();
  for (DType type : {DType::kF16, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = s.out_type = s.bias_type = type, s.dk = 40;
    RandomProblem p(s, ++seed);
    test::ExpectMatchesReference(p);
  }
}

TEST(BiasScalesTest, WithEveryOtherStep) {
  uint64_t seed = test::BaseSeed();
  for (int more = 0; more < 4; ++more) {
    ProblemSpec s = Spec();
    s.softcap = 2, s.sinks = true, s.bias_removes = 0.2, s.scores = ScoreStage::kMasked;
    if (more == 1) s.alibi = s.head_scales = true;
    if (more == 2) s.mask = Axes::kBHQK, s.q_lengths = s.kv_lengths = DType::kI32;
    if (more == 3) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI64, s.bias = Axes::kBHQK;
    RandomProblem p(s, ++seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::ExpectMatchesReference(p);
  }
}

TEST(BiasScalesTest, TinyTilesBlocksAndSplits) { test::ForTinyTilesBlocksAndSplits(Spec()); }

TEST(BiasScalesTest, OfOneAndWithoutABiasAreAsGoodAsNone) {
  for (Axes axes : {Axes::kAbsent, Axes::kK, Axes::kHQK}) {
    ProblemSpec s = Spec();
    s.bias = axes, s.bias_removes = 0.2;
    RandomProblem ones(s, test::BaseSeed());
    SetScales(ones, {axes == Axes::kAbsent ? 5.0 : 1.0});
    RandomProblem none = ones;
    none.bias_scales = OwnedTensor();
    none.Refresh();
    for (const Kernel& kernel : test::KernelsAndAuto())
      EXPECT_TRUE(Same(RunSerial(kernel, ones), RunSerial(kernel, none))) << ToString(kernel);
  }
}

TEST(BiasScalesTest, SlopesTimesDistancesAreAlibi) {
  ProblemSpec s = Spec();
  s.alibi = true, s.bias = Axes::kAbsent, s.bias_scales = false, s.query_offset = 46;
  RandomProblem alibi(s, test::BaseSeed());
  s.bias = Axes::kQK;
  RandomProblem scaled(s, test::BaseSeed());
  scaled.q = alibi.q, scaled.k = alibi.k, scaled.v = alibi.v;
  for (int64_t i = 0; i < s.Tq; ++i) {
    for (int64_t j = 0; j < s.Tk; ++j)
      scaled.bias.SetAt({i, j}, -std::fabs(static_cast<double>(i + 46 - j)));
  }
  scaled.bias_scales = alibi.alibi_slopes;
  scaled.alibi_slopes = OwnedTensor();
  scaled.Refresh();
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, scaled);
    // to the precision of the problem with ALiBi, which the other one's outputs take the place of
    Problem problem = alibi.problem;
    problem.out = scaled.problem.out, problem.lse = scaled.problem.lse,
    problem.weights = scaled.problem.weights;
    EXPECT_TRUE(test::Matches(problem, reference::Forward(alibi.problem))) << ToString(kernel);
  }
}

TEST(BiasScalesTest, AStoredMinusInfinityRemovesWhateverTheScale) {
  for (Axes axes : {Axes::kK, Axes::kHQK, Axes::kB11K}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      ProblemSpec s = Spec();
      s.bias = axes, s.bias_type = type, s.scores = ScoreStage::kMasked;
      RandomProblem p(s, test::BaseSeed());
      SetScales(p, {1, 0, -1, -0.0, 1e38, -1e-38});
      for (int64_t n = 0; n < p.bias.size(); ++n) {
        const int64_t j = n % s.Tk;
        if (j >= 40 || j % 3 == 0) p.bias.Set(n, -kInf);
      }
      // What is removed may hold anything.
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t h = 0; h < s.Hkv; ++h) {
          for (int64_t j = 0; j < s.Tk; ++j) {
            if (j < 40 && j % 3 != 0) continue;
            for (int64_t c = 0; c < s.dk; ++c) p.k.SetAt({b, h, j, c}, j % 2 == 0 ? kNaN : kInf);
            for (int64_t c = 0; c < s.dv; ++c) p.v.SetAt({b, h, j, c}, j % 2 == 0 ? kInf : kNaN);
          }
        }
      }
      test::ExpectMatchesReference(p);
      for (const Kernel& kernel : test::Kernels()) {
        RunSerial(kernel, p);
        for (int64_t n = 0; n < p.weights.size(); ++n) {
          const int64_t j = n % s.Tk;
          ASSERT_EQ(p.scores.Get(n) == -kInf, j >= 40 || j % 3 == 0)
              << ToString(kernel) << " " << n;
          ASSERT_FALSE(std::isnan(p.weights.Get(n))) << ToString(kernel) << " " << n;
        }
      }
    }
  }
}

TEST(BiasScalesTest, RowsOfMinusInfinityAreEmptyWhateverTheScale) {
  for (bool sinks : {false, true}) {
    ProblemSpec s = Spec();
    s.bias = Axes::kB1Q1, s.bias_removes = 0.5, s.sinks = sinks;
    RandomProblem p(s, test::BaseSeed());
    SetScales(p, {0, -2, 1e38});
    test::ExpectMatchesReference(p);
  }
}

TEST(BiasScalesTest, AFiniteBiasNeverRemovesAndSaturates) {
  // By type of the bias, its largest value.
  struct Most {
    DType type;
    double value;
  };
  for (const Most& most :
       {Most{DType::kF32, kMost}, Most{DType::kF16, 65504}, Most{DType::kBF16, 0x1.fep127}}) {
    for (double sign : {1.0, -1.0}) {
      ProblemSpec s = Spec();
      s.Hq = 4, s.bias = Axes::kQK, s.bias_type = most.type, s.scores = ScoreStage::kMasked,
      s.scale = 0.01f;
      RandomProblem p(s, test::BaseSeed());
      SetScales(p, {2, -2, 3e38, -kInf});
      p.bias.Fill([&] { return sign * most.value; });  // of every key: all scores are equal
      for (const Kernel& kernel : test::Kernels()) {
        SCOPED_TRACE(ToString(kernel) + " " + Name(most.type));
        RunSerial(kernel, p);
        for (int64_t n = 0; n < p.scores.size(); ++n) {
          const int64_t h = n / (s.Tq * s.Tk) % s.Hq;
          const bool saturates = most.type != DType::kF16 || h >= 2;
          const double want =
              std::min(kMost, (h < 2 ? 2 : kInf) * most.value) * sign * (h % 2 == 0 ? 1 : -1);
          ASSERT_NEAR(p.scores.Get(n), want, std::fabs(want) * 0x1p-20 + 1) << n;
          if (saturates) {
            ASSERT_NEAR(p.weights.Get(n), 1 / static_cast<double>(s.Tk), 1e-5) << n;
          }
        }
        for (double x : p.lse.Dense()) ASSERT_TRUE(std::isfinite(x));
        for (double x : p.out.Dense()) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

TEST(BiasScalesTest, OneKeyWithAScaledLowestBiasIsSeen) {
  // A row of which only one key is not removed: its weight is 1, however low its score.
  ProblemSpec s = Spec();
  s.Tk = 40, s.bias = Axes::kK;
  RandomProblem p(s, test::BaseSeed());
  SetScales(p, {2, 1, 1e30});
  p.bias.Fill([n = 0]() mutable { return n++ == 23 ? -kMost : -kInf; });
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, p);
    for (int64_t n = 0; n < p.weights.size(); ++n)
      ASSERT_EQ(p.weights.Get(n), n % s.Tk == 23 ? 1 : 0) << ToString(kernel);
    for (int64_t n = 0; n < p.out.size(); ++n) {
      const int64_t b = n / (s.Hq * s.Tq * s.dv), h = n / (s.Tq * s.dv) % s.Hq;
      ASSERT_NEAR(p.out.Get(n), p.v.At({b, h / 3, 23, n % s.dv}), 1e-5) << ToString(kernel);
    }
  }
}

TEST(BiasScalesTest, OnlyTheProductDecides) {
  struct Extreme {
    double bias;
    float scale;
  };
  for (const Extreme& e : {Extreme{1e30, 1e-30f}, Extreme{1e-30, 1e30f}, Extreme{3e38, -1e-38f},
                           Extreme{1e-38, -3e38f}, Extreme{1e-40, 1e38f}}) {
    RandomProblem p(Spec(), test::BaseSeed());
    for (int64_t n = 0; n < p.bias.size(); ++n) p.bias.Set(n, e.bias * std::tanh(p.bias.Get(n)));
    SetScales(p, {static_cast<double>(e.scale)});
    test::ExpectMatchesReference(p);
  }
}

TEST(BiasScalesTest, NanAndPlusInfinityAreTheTextbooks) {
  for (Axes axes : {Axes::kK, Axes::kHQK}) {
    for (double bad : {kNaN, kInf}) {
      for (double scale : {2.0, 0.0, -2.0, kNaN}) {
        ProblemSpec s = Spec();
        s.bias = axes;
        RandomProblem p(s, test::BaseSeed());
        SetScales(p, {scale});
        for (int64_t n = 11; n < p.bias.size(); n += s.Tk) p.bias.Set(n, bad);
        // −2 · +inf is a score of −inf: a weight of 0
        const bool nan = !(bad == kInf && scale == -2);
        for (const Kernel& kernel : test::Kernels()) {
          SCOPED_TRACE(ToString(kernel) + " bias " + std::to_string(bad) + " scale " +
                       std::to_string(scale));
          RunSerial(kernel, p);
          for (double x : p.lse.Dense()) ASSERT_EQ(std::isnan(x), nan);
          for (double x : p.out.Dense()) ASSERT_EQ(std::isnan(x), nan);
          for (int64_t n = 11; !nan && n < p.weights.size(); n += s.Tk)
            ASSERT_EQ(p.weights.Get(n), 0);
        }
      }
    }
  }
  // In one row of one head, or as the scale of one head: nobody else's affair.
  ProblemSpec s = Spec();
  s.B = 1;
  RandomProblem p(s, test::BaseSeed());
  SetScales(p, {0.5});
  p.bias_scales.Set(4, kNaN);
  p.bias.SetAt({1, 7, 30}, kNaN);
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, p);
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < s.Tq; ++i)
        ASSERT_EQ(std::isnan(p.lse.At({0, h, i})), h == 4 || (h == 1 && i == 7))
            << ToString(kernel);
    }
  }
}

TEST(BiasScalesTest, OfAnyStrideAndPlace) {
  const RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::bias_scales);
  RandomProblem one = test::Repeated(p, &RandomProblem::bias_scales, 0b1);
  test::ExpectMatchesReference(one);
}

TEST(BiasScalesTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  const double scales[] = {1.0, -0.5, 0.0};
  test::ExpectOnePlanServes(p, [&](int run) { SetScales(p, {scales[run], 0.25}); });
}

TEST(BiasScalesTest, WrongOnesAreRefused) {
  const RandomProblem right(Spec(), test::BaseSeed());
  RandomProblem biasless = right;
  biasless.bias = OwnedTensor();
  biasless.Refresh();
  test::ExpectWrongPerHeadRefused(right, &Score::bias_scales, "bias_scales");
  test::ExpectWrongPerHeadRefused(biasless, &Score::bias_scales, "bias_scales");
  test::ExpectPlanned(right, &RandomProblem::bias_scales, "bias_scales");
}

}  // namespace
}  // namespace fovea
