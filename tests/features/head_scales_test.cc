// Scales of query heads: each head is the problem whose scale is scale · head_scale, and only that
// product with q·k decides what overflows.
#include <gtest/gtest.h>

#include <algorithm>
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

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 21, s.Tk = 67, s.dk = 24, s.dv = 17, s.weights = true,
  s.head_scales = true;
  return s;
}

void SetScales(RandomProblem& p, const std::vector<double>& scales) {
  for (int64_t h = 0; h < p.spec.Hq; ++h)
    p.head_scales.Set(h, scales[static_cast<size_t>(h) % scales.size()]);
}

// The bytes of head h in a tensor [B, Hq, …].
std::vector<unsigned char> OfHead(const OwnedTensor& tensor, int64_t h) {
  const TensorView view = tensor.view();
  const std::vector<unsigned char> all = tensor.Bytes();
  const size_t head = all.size() / static_cast<size_t>(view.shape[0] * view.shape[1]);
  std::vector<unsigned char> bytes;
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(
                                        static_cast<size_t>(b * view.shape[1] + h) * head);
    bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(head));
  }
  return bytes;
}

TEST(HeadScalesTest, AnyGroupAndSize) {
  uint64_t seed = test::BaseSeed();
  for (int64_t group : {1, 2, 3, 8}) {
    for (int64_t size : test::Thinned({1, 15, 16, 17, 33, 64, 101})) {
      ProblemSpec s = Spec();
      s.Hq = 2 * group, s.Tq = size, s.Tk = 2 * size - 1, s.dk = size % 40 + 1,
      s.dv = size % 13 + 1;
      s.causal = Causal::kBottomRight;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(HeadScalesTest, DecodeOverManyKeys) {
  for (int64_t Tq : {1, 3}) {
    ProblemSpec s = Spec();
    s.Hq = 8, s.Tq = Tq, s.Tk = 3000, s.causal = Causal::kBottomRight, s.weights = false;
    RandomProblem p(s, test::BaseSeed());
    test::ExpectMatchesReference(p);
  }
}

TEST(HeadScalesTest, EveryTypeOfQueriesKeysAndValues) {
  uint64_t seed = test::BaseSeed();
  for (DType q : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType kv : {DType::kF32, DType::kF16, DType::kBF16}) {
      ProblemSpec s = Spec();
      s.q_type = s.out_type = q, s.k_type = s.v_type = kv, s.dk = 40, s.causal = Causal::kTopLeft;
      RandomProblem p(s, ++seed);
      test::ExpectMatchesReference(p);
      SetScales(p, {-1.7, 0, 1, 3, 0.3, 1e-3});
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(HeadScalesTest, WithEveryOtherStep) {
  uint64_t seed = test::BaseSeed();
  for (ScoreStage stage :
       {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kMasked, ScoreStage::kWeights}) {
    for (int more = 0; more < 4; ++more) {
      ProblemSpec s = Spec();
      s.scores = stage, s.softcap = 2, s.sinks = true;
      if (more == 1) s.alibi = true, s.bias = Axes::kHQK, s.bias_removes = 0.2;
      if (more == 2) s.mask = Axes::kBHQK, s.q_lengths = s.kv_lengths = DType::kI32;
      if (more == 3) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI64, s.scale = -0.3f;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(HeadScalesTest, TinyTilesBlocksAndSplits) { test::ForTinyTilesBlocksAndSplits(Spec()); }

TEST(HeadScalesTest, OfOneAreAsGoodAsNone) {
  for (DType type : {DType::kF32, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type, s.softcap = 3, s.scores = ScoreStage::kScaled;
    RandomProblem ones(s, test::BaseSeed());
    SetScales(ones, {1});
    RandomProblem none = ones;
    none.head_scales = OwnedTensor();
    none.Refresh();
    for (const Kernel& kernel : test::KernelsAndAuto())
      EXPECT_TRUE(Same(RunSerial(kernel, ones), RunSerial(kernel, none))) << ToString(kernel);
  }
}

TEST(HeadScalesTest, APowerOfTwoOfAllHeadsIsThatOfTheScale) {
  ProblemSpec s = Spec();
  s.scale = 0.75f, s.scores = ScoreStage::kScaled;
  RandomProblem heads(s, test::BaseSeed());
  SetScales(heads, {-0.25});
  RandomProblem whole = heads;
  whole.spec.scale = -0.1875f;
  whole.head_scales = OwnedTensor();
  whole.Refresh();
  for (const Kernel& kernel : test::KernelsAndAuto())
    EXPECT_TRUE(Same(RunSerial(kernel, heads), RunSerial(kernel, whole))) << ToString(kernel);
}

TEST(HeadScalesTest, AHeadDoesNotDependOnTheScalesOfOthers) {
  const std::vector<double> scales = {0.7, -2, 0, 1e-3, 1, 30};
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type, s.causal = Causal::kTopLeft;
    RandomProblem mixed(s, test::BaseSeed()), uniform(s, test::BaseSeed());
    SetScales(mixed, scales);
    for (const Kernel& kernel : test::KernelsAndAuto()) {
      RunSerial(kernel, mixed);
      for (int64_t h = 0; h < s.Hq; ++h) {
        SetScales(uniform, {scales[static_cast<size_t>(h)]});
        RunSerial(kernel, uniform);
        EXPECT_EQ(OfHead(uniform.out, h), OfHead(mixed.out, h))
            << ToString(kernel) << " head " << h;
        EXPECT_EQ(OfHead(uniform.lse, h), OfHead(mixed.lse, h))
            << ToString(kernel) << " head " << h;
      }
    }
  }
}

TEST(HeadScalesTest, ZeroMakesAllScoresZero) {
  ProblemSpec s = Spec();
  s.causal = Causal::kTopLeft, s.scores = ScoreStage::kScaled;
  RandomProblem p(s, test::BaseSeed());
  SetScales(p, {0, -0.0, 1});
  for (int64_t n = 0; n < p.q.size(); ++n) p.q.Set(n, 3e37 * std::tanh(p.q.Get(n)));
  for (int64_t h : {2, 5}) {  // those with a scale have queries of everyday sizes
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t i = 0; i < s.Tq; ++i) {
        for (int64_t c = 0; c < s.dk; ++c)
          p.q.SetAt({b, h, i, c}, 0.1 * static_cast<double>(c % 5));
      }
    }
  }
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, p);
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h : {0, 1, 3, 4}) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t j = 0; j < s.Tk; ++j) {
            ASSERT_EQ(p.scores.At({b, h, i, j}), 0) << ToString(kernel);
            ASSERT_NEAR(p.weights.At({b, h, i, j}), j <= i ? 1 / static_cast<double>(i + 1) : 0,
                        1e-6)
                << ToString(kernel);
          }
        }
      }
    }
  }
  test::ExpectMatchesReference(p);
}

TEST(HeadScalesTest, OnlyTheWholeProductCanOverflow) {
  struct Extreme {
    double q, k;
    float scale, head_scale;
  };
  // The product of all four is between 1e-3 and 1e3, and of two or three of them no float.
  for (const Extreme& e :
       {Extreme{1e20, 1e20, 1, 1e-38f}, Extreme{1e20, 1e20, 1e-20f, 1e-20f},
        Extreme{1e20, 1e20, 1e-38f, 1}, Extreme{1e-20, 1e-20, 1e20f, 1e20f},
        Extreme{1, 1, 1e38f, 1e-38f}, Extreme{1, 1, 1e-38f, 1e38f}, Extreme{3e38, 1, 1, 1e-38f},
        Extreme{1e-30, 1e-30, 1e30f, 1e30f}, Extreme{1e30, 1e-30, 1e-30f, 1e30f},
        Extreme{1e38, 1e38, 1e-38f, 1e-38f}, Extreme{1e-38, 1e-38, 1e38f, 1e38f},
        Extreme{1e38, 1e-38, 1e38f, 1e-38f}, Extreme{1e-19, 1e-19, 1, 3e38f},
        Extreme{1e-3, 1e36, 1e-20f, 1e-13f}, Extreme{1e20, 1e20, -1, -1e-40f}}) {
    ProblemSpec s;
    s.Hq = 4, s.Hkv = 2, s.Tq = 9, s.Tk = 19, s.dk = 4, s.dv = 3, s.scale = e.scale,
    s.head_scales = true, s.weights = true, s.scores = ScoreStage::kScaled;
    RandomProblem p(s, test::BaseSeed());
    const auto bounded = [](double x) { return std::max(-1.0, std::min(1.0, x)); };
    for (int64_t n = 0; n < p.q.size(); ++n) p.q.Set(n, e.q * bounded(p.q.Get(n)));
    for (int64_t n = 0; n < p.k.size(); ++n) p.k.Set(n, e.k * bounded(p.k.Get(n)));
    SCOPED_TRACE("q " + std::to_string(std::log10(e.q)) + " k " + std::to_string(std::log10(e.k)) +
                 " scale " + std::to_string(std::log10(std::fabs(e.scale))) + " head scale " +
                 std::to_string(std::log10(std::fabs(e.head_scale))) + " (log10)");
    const double scale = static_cast<double>(e.head_scale);
    SetScales(p, {scale});
    test::ExpectMatchesReference(p);
    SetScales(p, {scale, -scale / 3, 0, scale / 100});  // heads of one group in one tile
    test::ExpectMatchesReference(p);
    const reference::ForwardResult want = reference::Forward(p.problem);
    for (double t : want.relative_tolerance) ASSERT_LT(t, 1) << "the test promises nothing";
  }
}

TEST(HeadScalesTest, HeadsOfVeryDifferentSizes) {
  // Each head's queries are small where its scale is great.
  for (DType type : {DType::kF32, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type, s.scores = ScoreStage::kScaled;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t h = 0; h < s.Hq; ++h) {
      const double size = std::ldexp(1.0, static_cast<int>(30 * h - 75));
      p.head_scales.Set(h, 1 / size);
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t c = 0; c < s.dk; ++c) p.q.SetAt({b, h, i, c}, size * p.q.At({b, h, i, c}));
        }
      }
    }
    test::ExpectMatchesReference(p);
  }
}

TEST(HeadScalesTest, NanReachesItsHeadAloneAndNoEmptyRow) {
  ProblemSpec s = Spec();
  s.causal = Causal::kTopLeft, s.query_offset = -5;  // the first five queries see nothing
  for (DType type : {DType::kF32, DType::kBF16}) {
    s.q_type = s.k_type = s.v_type = type;
    RandomProblem clean(s, test::BaseSeed()), dirty(s, test::BaseSeed());
    dirty.head_scales.Set(1, std::numeric_limits<double>::quiet_NaN());
    for (const Kernel& kernel : test::KernelsAndAuto()) {
      RunSerial(kernel, clean);
      RunSerial(kernel, dirty);
      for (int64_t h = 0; h < s.Hq; ++h) {
        if (h != 1) {
          EXPECT_EQ(OfHead(dirty.out, h), OfHead(clean.out, h)) << ToString(kernel);
          EXPECT_EQ(OfHead(dirty.lse, h), OfHead(clean.lse, h)) << ToString(kernel);
          continue;
        }
        for (int64_t i = 0; i < s.Tq; ++i) {
          ASSERT_EQ(std::isnan(dirty.lse.At({0, h, i})), i >= 5) << ToString(kernel);
          for (int64_t c = 0; c < s.dv; ++c) {
            ASSERT_EQ(std::isnan(dirty.out.At({0, h, i, c})), i >= 5) << ToString(kernel);
            if (i < 5) {
              ASSERT_EQ(dirty.out.At({0, h, i, c}), 0) << ToString(kernel);
            }
          }
        }
      }
    }
  }
}

// An infinity is no large number: of channels of both signs it makes NaN, as small as Q may be.
TEST(HeadScalesTest, InfinityReachesItsHeadAlone) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t n = 0; n < p.q.size(); ++n) p.q.Set(n, 0x1p-8 * p.q.Get(n));
    SetScales(p, {infinity, 1, -infinity, 0, -2, 0.5});
    test::ExpectMatchesReference(p);
  }
}

TEST(HeadScalesTest, OfAnyStrideAndPlace) {
  const RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::head_scales);
  RandomProblem one = test::Repeated(p, &RandomProblem::head_scales, 0b1);
  test::ExpectMatchesReference(one);
}

TEST(HeadScalesTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  const double scales[] = {1.0, -0.5, 1e-30};
  test::ExpectOnePlanServes(p, [&](int run) { SetScales(p, {scales[run], 0.25}); });
}

TEST(HeadScalesTest, WrongOnesAreRefused) {
  const RandomProblem right(Spec(), test::BaseSeed());
  test::ExpectWrongPerHeadRefused(right, &Score::head_scales, "head_scales");
  test::ExpectPlanned(right, &RandomProblem::head_scales, "head_scales");
}

TEST(HeadScalesTest, NoQueriesKeysOrSequences) { test::ExpectNothingOfNothing(Spec()); }

}  // namespace
}  // namespace fovea
