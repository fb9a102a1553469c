// The reference at its edges, and the laws that follow from the mathematics.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "spec/example.h"

namespace fovea::reference {
namespace {

// ---- edges

TEST(Forward, EmptyRowsAreZeroAndMinusInfinity) {
  Example e(MakeSizes(1, 1, 1, 3, 2, 2, 2));
  const bool mask[] = {false, true, false};
  e.problem.score.mask = View(mask, {3, 1});
  const ForwardResult r = Forward(e.problem);
  for (const int64_t i : {0, 2}) {
    EXPECT_EQ(r.lse[i], -kInf);
    EXPECT_EQ(r.out[i * 2], 0);
    EXPECT_EQ(r.weights[i * 2], 0);
  }
  EXPECT_NEAR(r.weights[2] + r.weights[3], 1, kRounding);
}

TEST(Forward, SinkOfAnEmptyRowIsItsLseButNotOfPadding) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 1, 1));
  const float sink[] = {1.5f};
  const int32_t q_length[] = {1};
  const bool mask[] = {false};
  e.problem.score.sinks = View(sink, {1});
  e.problem.score.q_lengths = View(q_length, {1});
  e.problem.score.mask = View(mask, {1});
  const ForwardResult r = Forward(e.problem);
  EXPECT_EQ(r.lse[0], 1.5);
  EXPECT_EQ(r.lse[1], -kInf);
  EXPECT_EQ(r.out, (std::vector<double>{0, 0}));
}

TEST(Forward, NoKeysMakesEveryRowEmpty) {
  Example e(MakeSizes(1, 2, 1, 2, 0, 3, 2));
  const ForwardResult r = Forward(e.problem);
  EXPECT_EQ(r.out, std::vector<double>(8, 0));
  EXPECT_EQ(r.lse, std::vector<double>(4, -kInf));
}

TEST(Forward, RemovedPairsMayHoldAnything) {
  OneRow clean({1, 2}), dirty({1, kNan, 2, kInf});
  dirty.v = {1, kInf, 2, kNan};
  const bool mask[] = {true, false, true, true};
  const int32_t kv_length[] = {3};
  dirty.problem.score.mask = View(mask, {4});
  dirty.problem.score.kv_lengths = View(kv_length, {1});
  EXPECT_EQ(Forward(dirty.problem).out, Forward(clean.problem).out);
  EXPECT_EQ(Forward(dirty.problem).lse, Forward(clean.problem).lse);
}

TEST(Forward, NanInAVisibleKeyReachesItsRowsOnly) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 2, 2));
  e.problem.score.causal = Causal::kTopLeft;
  e.k[2] = kNan;  // key 1, which query 0 does not see
  const ForwardResult r = Forward(e.problem);
  EXPECT_TRUE(std::isfinite(r.lse[0]) && std::isfinite(r.out[0]) && std::isfinite(r.out[1]));
  EXPECT_TRUE(std::isnan(r.lse[1]) && std::isnan(r.out[2]) && std::isnan(r.out[3]));
}

TEST(Forward, NanInAVisibleValueReachesItsChannelOnly) {
  Example e(MakeSizes(1, 1, 1, 1, 2, 2, 2));
  e.v[1] = kNan;
  const ForwardResult r = Forward(e.problem);
  EXPECT_TRUE(std::isfinite(r.out[0]) && std::isfinite(r.lse[0]));
  EXPECT_TRUE(std::isnan(r.out[1]));
}

TEST(Forward, PlusInfinityGivesNanAsTheTextbookDoes) {
  OneRow row({1, kInf});
  EXPECT_TRUE(std::isnan(Forward(row.problem).out[0]));
  OneRow biased({1, 1});
  const float bias[] = {0, kInf};
  biased.problem.score.bias = View(bias, {2});
  EXPECT_TRUE(std::isnan(Forward(biased.problem).out[0]));
  EXPECT_TRUE(std::isnan(Forward(biased.problem).lse[0]));
}

TEST(Forward, ASinkFillsARowWithoutKeysWhateverItIs) {
  for (float sink : {-kInf, -3.5f, 0.0f, 1e30f, kInf}) {
    Example e(MakeSizes(1, 1, 1, 1, 2, 2, 2));
    const int32_t none = 0;
    e.problem.score.kv_lengths = View(&none, {1});
    e.problem.score.sinks = View(&sink, {1});
    const Row row = ForwardRow(e.problem, 0, 0, 0);
    EXPECT_EQ(row.lse, sink);
    EXPECT_EQ(row.out, (std::vector<double>{0, 0}));
    EXPECT_EQ(row.weights, (std::vector<double>{0, 0}));
  }
}

TEST(Forward, SumsOverAMillionKeysAreAsGoodAsDouble) {
  // One dominant key and a million that weigh e⁻¹⁷ each; the largest floats; both have a closed
  // form.
  const int64_t Tk = int64_t{1} << 20;
  std::vector<float> k(static_cast<size_t>(Tk), -17), v(static_cast<size_t>(Tk), 0.25f);
  k[0] = 0, v[0] = 1;
  const float one = 1;
  Problem problem;
  problem.q = View(&one, {1, 1, 1, 1});
  problem.k = View(const_cast<const float*>(k.data()), {1, 1, Tk, 1});
  problem.v = View(const_cast<const float*>(v.data()), {1, 1, Tk, 1});
  problem.score.scale = 1.0f;
  const Row row = ForwardRow(problem, 0, 0, 0);
  const double rest = static_cast<double>(Tk - 1) * std::exp(-17.0);
  EXPECT_NEAR(row.out[0], (1 + 0.25 * rest) / (1 + rest), 1e-10);
  EXPECT_NEAR(row.lse, std::log1p(rest), 1e-10);
  v.assign(v.size(), std::numeric_limits<float>::max());
  const double most = static_cast<double>(std::numeric_limits<float>::max());
  EXPECT_NEAR(ForwardRow(problem, 0, 0, 0).out[0] / most, 1, 1e-10);
}

// ---- laws

TEST(Forward, WeightsOfARowSumToOneLessTheSink) {
  Example e(MakeSizes(2, 4, 2, 5, 7, 3, 2));
  const float sinks[] = {0, 1, -kInf, 3};
  e.problem.score.causal = Causal::kBottomRight;
  e.problem.score.sinks = View(sinks, {4});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        const Row row = ForwardRow(e.problem, b, h, i);
        EXPECT_NEAR(std::accumulate(row.weights.begin(), row.weights.end(), row.sink_weight), 1,
                    kRounding);
        EXPECT_NEAR(row.sink_weight, std::exp(sinks[h] - row.lse), kRounding);
      }
    }
  }
}

TEST(Forward, LayoutDoesNotMatter) {
  const Sizes n = MakeSizes(2, 2, 2, 3, 4, 3, 2);
  Example dense(n), other(n);
  // q as [B, T, H, d], k with the channels outermost, v backwards along the keys
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        for (int64_t c = 0; c < n.dk; ++c) {
          other.q[((b * n.Tq + i) * n.Hq + h) * n.dk + c] =
              dense.q[((b * n.Hq + h) * n.Tq + i) * n.dk + c];
        }
      }
      for (int64_t j = 0; j < n.Tk; ++j) {
        for (int64_t c = 0; c < n.dk; ++c) {
          other.k[((c * n.B + b) * n.Hkv + h) * n.Tk + j] =
              dense.k[((b * n.Hkv + h) * n.Tk + j) * n.dk + c];
        }
        for (int64_t c = 0; c < n.dv; ++c) {
          other.v[((b * n.Hkv + h) * n.Tk + n.Tk - 1 - j) * n.dv + c] =
              dense.v[((b * n.Hkv + h) * n.Tk + j) * n.dv + c];
        }
      }
    }
  }
  other.problem.q = SwapAxes(Input(other.q.data(), {n.B, n.Tq, n.Hq, n.dk}), 1, 2);
  other.problem.k =
      Input(other.k.data(), {n.B, n.Hkv, n.Tk, n.dk}, {n.Hkv * n.Tk, n.Tk, 1, n.B * n.Hkv * n.Tk});
  other.problem.v = Input(other.v.data() + (n.Tk - 1) * n.dv, {n.B, n.Hkv, n.Tk, n.dv},
                          {n.Hkv * n.Tk * n.dv, n.Tk * n.dv, -n.dv, 1});
  EXPECT_EQ(Forward(other.problem).out, Forward(dense.problem).out);
  EXPECT_EQ(Forward(other.problem).lse, Forward(dense.problem).lse);
}

TEST(Merge, StatesOverDisjointKeysGiveTheWhole) {
  const Sizes n = MakeSizes(1, 2, 1, 3, 6, 2, 2);
  Example e(n);
  const ForwardResult whole = Forward(e.problem);
  // the first two keys, the other four, and a part that sees nothing and holds NaN
  std::vector<std::vector<float>> outs, lses;
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 6}}) {
    Problem part = e.problem;
    part.k = Input(e.k.data() + first * n.dk, {1, 1, last - first, n.dk});
    part.v = Input(e.v.data() + first * n.dv, {1, 1, last - first, n.dv});
    const ForwardResult r = Forward(part);
    outs.emplace_back(r.out.begin(), r.out.end());
    lses.emplace_back(r.lse.begin(), r.lse.end());
  }
  outs.emplace_back(outs[0].size(), kNan);
  lses.emplace_back(lses[0].size(), -kInf);
  std::vector<PartialState> parts;
  for (size_t p = 0; p < outs.size(); ++p) {
    parts.push_back({Input(outs[p].data(), {1, 2, 3, 2}), Input(lses[p].data(), {1, 2, 3})});
  }
  const MergeResult merged = Merge(parts.data(), 3);
  // the parts were stored as float; values and lse are below 4
  const double rounding = 4 * std::ldexp(1.0, -24) * 4;
  ExpectAllNear(merged.out, whole.out, rounding);
  ExpectAllNear(merged.lse, whole.lse, rounding);

  const MergeResult nothing = Merge(&parts[2], 1);
  EXPECT_EQ(nothing.out, std::vector<double>(12, 0));
  EXPECT_EQ(nothing.lse, std::vector<double>(6, -kInf));
  for (const float bad : {kNan, kInf}) {
    lses[1][0] = bad;
    EXPECT_TRUE(std::isnan(Merge(parts.data(), 3).lse[0]));
    EXPECT_TRUE(std::isnan(Merge(parts.data(), 3).out[0]));
  }
}

// ---- what float32 can know

TEST(RelativeTolerance, GrowsWithTheScoresThatMatter) {
  OneRow small({1, 2});
  EXPECT_EQ(RelativeTolerance(ForwardRow(small.problem, 0, 0, 0)), 1e-5);
  OneRow large({3000, 2000});
  EXPECT_EQ(RelativeTolerance(ForwardRow(large.problem, 0, 0, 0)), 8 * std::ldexp(3000.0, -24));
  OneRow far({3000, -1e30f});  // a weight of 0, however wrong its score
  EXPECT_EQ(RelativeTolerance(ForwardRow(far.problem, 0, 0, 0)), 8 * std::ldexp(3000.0, -24));

  const float q[] = {1, 1}, k[] = {5000, -5000}, v[] = {-7, 3};
  Problem cancelling;  // a score of 0 that passes through 5000
  cancelling.q = View(q, {1, 1, 1, 2});
  cancelling.k = View(k, {1, 1, 1, 2});
  cancelling.v = View(v, {1, 1, 1, 2});
  cancelling.score.scale = 1.0f;
  const Row row = ForwardRow(cancelling, 0, 0, 0);
  EXPECT_EQ(row.max_partial_score, 5000);
  EXPECT_EQ(row.max_abs_value, 7);
}

TEST(RelativeTolerance, IsInfiniteWhereScoresOverflowFloat) {
  OneRow row({3e38f, 1});
  EXPECT_FALSE(std::isinf(RelativeTolerance(ForwardRow(row.problem, 0, 0, 0))));
  row.problem.score.scale = 2.0f;
  EXPECT_TRUE(std::isinf(RelativeTolerance(ForwardRow(row.problem, 0, 0, 0))));
  const float lowest[] = {std::numeric_limits<float>::lowest()};
  OneRow biased({-5, 1});
  biased.problem.score.bias = View(lowest, {1});
  // rounds to lowest()
  EXPECT_FALSE(std::isinf(RelativeTolerance(ForwardRow(biased.problem, 0, 0, 0))));
}

}  // namespace
}  // namespace fovea::reference
