// A caller's score function: when it comes, and that a function that adds is the bias that it adds,
// bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/equivalent.h"
#include "support/executors.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/score_function.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::EachScore;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 21, s.Tk = 67, s.dk = 24, s.dv = 17, s.weights = true;
  return s;
}
ProblemSpec Hashed() {
  ProblemSpec s = Spec();
  s.function = true;
  return s;
}

// Sets the function of p, which looks at `f`.
template <class F>
void SetFunction(RandomProblem& p, const F& f) {
  p.problem.score.function = EachScore(f);
}

// ---- as a bias

// The same problem with a bias of what the function adds in its place.
RandomProblem AsBias(const RandomProblem& p) {
  const ProblemSpec& s = p.spec;
  RandomProblem biased = p;
  biased.function = nullptr;
  biased.bias = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.Tk});
  for (int64_t n = 0; n < biased.bias.size(); ++n) {
    const int64_t b = n / (s.Hq * s.Tq * s.Tk), h = n / (s.Tq * s.Tk) % s.Hq, i = n / s.Tk % s.Tq,
                  j = n % s.Tk;
    biased.bias.Set(n, static_cast<double>(p.function->Added(b, h, i + p.Offset(b), j)));
  }
  biased.Refresh();
  return biased;
}

void ExpectTheBiasItAdds(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem biased = AsBias(p);
  test::ExpectTheSameBits(p, biased, options);
  test::ExpectMatchesReference(p, options);
}

TEST(ScoreFunctionTest, AnyGroupAndSize) {
  uint64_t seed = test::BaseSeed();
  for (int64_t group : {1, 2, 3, 8}) {
    for (int64_t size : test::Thinned({1, 15, 16, 17, 33, 64, 101})) {
      ProblemSpec s = Hashed();
      s.Hq = 2 * group, s.Tq = size, s.Tk = 2 * size - 1, s.function_removes = size % 2 * 0.2;
      s.causal = Causal::kBottomRight, s.scores = ScoreStage::kMasked;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheBiasItAdds(p);
    }
  }
}

TEST(ScoreFunctionTest, DecodeOverManyKeys) {
  for (int64_t Tq : {1, 3}) {
    ProblemSpec s = Hashed();
    s.Hq = 8, s.Tq = Tq, s.Tk = 3000, s.causal = Causal::kBottomRight, s.weights = false,
    s.function_removes = 0.1;
    RandomProblem p(s, test::BaseSeed());
    ExpectTheBiasItAdds(p);
  }
}

TEST(ScoreFunctionTest, EveryTypeOfQueriesKeysAndValues) {
  uint64_t seed = test::BaseSeed();
  for (DType type : {DType::kF16, DType::kBF16}) {
    ProblemSpec s = Hashed();
    s.q_type = s.k_type = s.v_type = s.out_type = type, s.dk = 40;
    RandomProblem p(s, ++seed);
    ExpectTheBiasItAdds(p);
  }
}

TEST(ScoreFunctionTest, OffsetsLengthsAndPackedSequences) {
  uint64_t seed = test::BaseSeed();
  for (int which = 0; which < 6; ++which) {
    ProblemSpec s = Hashed();
    s.B = 4, s.scores = ScoreStage::kMasked, s.function_removes = 0.1;
    if (which == 0) s.query_offsets = DType::kI32;
    if (which == 1) s.query_offset = -7, s.causal = Causal::kTopLeft;
    if (which == 2) s.causal = Causal::kBottomRight, s.q_lengths = s.kv_lengths = DType::kI64;
    if (which == 3) s.query_offset = int64_t{1} << 40;
    if (which == 4) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI32, s.causal = Causal::kBottomRight;
    if (which == 5) s.cu_seqlens_q = DType::kI64, s.key_ranges = DType::kI32;
    RandomProblem p(s, ++seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExpectTheBiasItAdds(p);
  }
}

TEST(ScoreFunctionTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = Hashed();
  s.function_removes = 0.1;
  test::ForTinyTilesBlocksAndSplits(s, ExpectTheBiasItAdds);
}

// ---- its place among the steps

TEST(ScoreFunctionTest, ComesBehindTheBiasAndBeforeTheMasks) {
  // Not linear, so that another place shows; it makes no error larger.
  const auto bent = [](float s, int64_t, int64_t h, int64_t position, int64_t j) {
    return 0.5f * s + 0.25f * std::sin(s) + static_cast<float>(h) * 0.125f -
           static_cast<float>(std::abs(position - j) % 7) * 0.5f;
  };
  uint64_t seed = test::BaseSeed();
  for (ScoreStage stage :
       {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kMasked, ScoreStage::kWeights}) {
    for (int more = 0; more < 4; ++more) {
      ProblemSpec s = Spec();
      s.scores = stage, s.softcap = 2, s.sinks = true, s.alibi = true, s.bias = Axes::kHQK;
      if (more == 1) s.bias_removes = 0.3, s.bias_scales = s.head_scales = true;
      if (more == 2) s.mask = Axes::kBHQK, s.causal = Causal::kTopLeft, s.query_offset = 30;
      if (more == 3) s.block_map = Axes::kQK, s.block_keys = 16, s.parents = DType::kI32;
      RandomProblem p(s, ++seed);
      SetFunction(p, bent);
      SCOPED_TRACE("seed " + std::to_string(seed));
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(ScoreFunctionTest, BringsNoRemovedPairBack) {
  // All scores become 0, whatever was there: only what is removed tells pairs apart.
  const auto zero = [](float, int64_t, int64_t, int64_t, int64_t) { return 0.0f; };
  uint64_t seed = test::BaseSeed();
  for (int how = 0; how < 9; ++how) {
    ProblemSpec s = Spec();
    s.scores = ScoreStage::kMasked;
    if (how == 0) s.bias = Axes::kHQK, s.bias_removes = 0.4;
    if (how == 1) s.bias = Axes::kK, s.bias_removes = 0.4, s.bias_scales = true;
    if (how == 2) s.mask = Axes::kBHQK;
    if (how == 3) s.mask = Axes::kK, s.mask_type = DType::kBit;
    if (how == 4) s.causal = Causal::kBottomRight, s.window = {10, -1};
    if (how == 5) s.q_lengths = s.kv_lengths = DType::kI32;
    if (how == 6) s.key_ranges = DType::kI64;
    if (how == 7) s.block_map = Axes::kHQK, s.block_queries = 4, s.block_keys = 9;
    if (how == 8) s.parents = DType::kI32, s.query_offset = 40;
    RandomProblem p(s, ++seed);
    SetFunction(p, zero);
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::ExpectMatchesReference(p);
    for (const Kernel& kernel : test::Kernels()) {
      RunSerial(kernel, p);
      for (int64_t n = 0; n < p.scores.size(); ++n) {
        const int64_t b = n / (s.Hq * s.Tq * s.Tk), h = n / (s.Tq * s.Tk) % s.Hq,
                      i = n / s.Tk % s.Tq, j = n % s.Tk;
        ASSERT_EQ(p.scores.Get(n), p.Visible(b, h, i, j) ? 0 : -kInf)
            << ToString(kernel) << " " << n << "\n"
            << ToString(s);
      }
    }
  }
}

TEST(ScoreFunctionTest, WhatItRemovesNeverReachesTheRow) {
  // Every third key holds NaN and infinity, and every score of it is replaced.
  const auto skip = [](float s, int64_t, int64_t h, int64_t, int64_t j) {
    return j % 3 == 1 || (h == 2 && j < 40) ? -kInf : s;
  };
  for (DType type : {DType::kF32, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type, s.scores = ScoreStage::kMasked;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t j = 1; j < s.Tk; j += 3) {
          for (int64_t c = 0; c < s.dk; ++c)
            p.k.SetAt({b, h, j, c}, static_cast<double>(j % 2 == 0 ? kNaN : kInf));
          for (int64_t c = 0; c < s.dv; ++c)
            p.v.SetAt({b, h, j, c}, static_cast<double>(j % 2 == 0 ? -kInf : kNaN));
        }
      }
    }
    SetFunction(p, skip);
    test::ExpectMatchesReference(p);
    for (const Kernel& kernel : test::KernelsAndAuto()) {
      RunSerial(kernel, p);
      for (double x : p.out.Dense()) ASSERT_FALSE(std::isnan(x)) << ToString(kernel);
    }
  }
}

TEST(ScoreFunctionTest, NanInAValueReachesTheRowsThatSeeIt) {
  const auto skip = [](float s, int64_t, int64_t, int64_t position, int64_t j) {
    return j == 30 && position % 2 == 0 ? -kInf : s;
  };
  RandomProblem p(Spec(), test::BaseSeed());
  for (int64_t h = 0; h < p.spec.Hkv; ++h) p.v.SetAt({1, h, 30, 5}, static_cast<double>(kNaN));
  SetFunction(p, skip);
  test::ExpectMatchesReference(p);
}

TEST(ScoreFunctionTest, RowsOfWhichItLeavesNothingAreEmpty) {
  const auto nothing = [](float s, int64_t, int64_t h, int64_t position, int64_t) {
    return h == 3 || position % 4 == 2 ? -kInf : s;
  };
  for (bool sinks : {false, true}) {
    ProblemSpec s = Spec();
    s.sinks = sinks;
    RandomProblem p(s, test::BaseSeed());
    SetFunction(p, nothing);
    test::ExpectMatchesReference(p);
  }
}

TEST(ScoreFunctionTest, NanAndPlusInfinityAreTheTextbooks) {
  for (float bad : {kNaN, kInf}) {
    const auto spoil = [bad](float s, int64_t b, int64_t h, int64_t position, int64_t j) {
      return b == 1 && h == 4 && position == 7 && j == 50 ? bad : s;
    };
    RandomProblem p(Spec(), test::BaseSeed());
    SetFunction(p, spoil);
    for (const Kernel& kernel : test::KernelsAndAuto()) {
      RunSerial(kernel, p);
      for (int64_t n = 0; n < p.lse.size(); ++n) {
        const bool spoilt = n == (1 * p.spec.Hq + 4) * p.spec.Tq + 7;
        ASSERT_EQ(std::isnan(p.lse.Get(n)), spoilt) << ToString(kernel) << " row " << n;
        ASSERT_EQ(std::isnan(p.out.Get(n * p.spec.dv)), spoilt) << ToString(kernel) << " row " << n;
      }
    }
  }
}

// ---- an example that models use

// T5's relative position buckets (Raffel et al. 2020, "Exploring the Limits of Transfer Learning",
// §2.1): half of the buckets for exact distances, the others ever wider; one bias per bucket and
// head.
struct T5Buckets {
  int64_t heads;
  bool both_sides;
  std::vector<float> bias;  // [buckets][heads]

  static constexpr int64_t kBuckets = 32, kFarthest = 128;

  int64_t Bucket(int64_t position, int64_t j) const {
    int64_t buckets = kBuckets, first = 0, distance = position - j;
    if (both_sides) {
      buckets /= 2;
      if (distance < 0) first = buckets, distance = -distance;
    } else {
      distance = std::max<int64_t>(distance, 0);
    }
    const int64_t exact = buckets / 2;
    if (distance < exact) return first + distance;
    const double octaves = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                           std::log(static_cast<double>(kFarthest / exact));
    const int64_t wide =
        exact + static_cast<int64_t>(octaves * static_cast<double>(buckets - exact));
    return first + std::min(wide, buckets - 1);
  }
  float operator()(float s, int64_t, int64_t h, int64_t position, int64_t j) const {
    return s + bias[static_cast<size_t>(Bucket(position, j) * heads + h)];
  }
};

TEST(ScoreFunctionTest, BucketsOfT5AreTheirBias) {
  for (bool both_sides : {false, true}) {
    for (int64_t offset : {0, 150}) {
      ProblemSpec s = Spec();
      s.Tq = 60, s.Tk = 210, s.query_offset = offset, s.bias = Axes::kHQK, s.weights = false;
      if (!both_sides) s.causal = Causal::kTopLeft;
      RandomProblem biased(s, test::BaseSeed());
      T5Buckets t5{s.Hq, both_sides, {}};
      test::Random random(test::BaseSeed());
      for (int64_t n = 0; n < T5Buckets::kBuckets * s.Hq; ++n)
        t5.bias.push_back(static_cast<float>(random.Normal()));
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t j = 0; j < s.Tk; ++j)
            biased.bias.SetAt({h, i, j}, static_cast<double>(t5(0, 0, h, i + offset, j)));
        }
      }
      RandomProblem p = biased;
      p.bias = OwnedTensor();
      p.Refresh();
      SetFunction(p, t5);
      for (const Kernel& kernel : test::KernelsAndAuto())
        EXPECT_TRUE(Same(RunSerial(kernel, p), RunSerial(kernel, biased))) << ToString(kernel);
      test::ExpectMatchesReference(p);
    }
  }
}

}  // namespace
}  // namespace fovea
