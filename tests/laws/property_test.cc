// What the mathematics of attention demands, whatever the formula in the code: laws that need no
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;

__extension__ typedef __int128 Wide;

constexpr double kEps = 0x1p-24;
constexpr double kT = 1e-5;  // the contract's t while scores stay below 20

void RunOn(const Kernel& kernel, RandomProblem& p) {
  p.ResetOutputs();
  const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
  ASSERT_TRUE(status.ok()) << ToString(kernel) << ": " << status.message();
}

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 21, s.Tk = 67, s.dk = 24, s.dv = 17, s.weights = true;
  return s;
}

OwnedTensor Permuted(const OwnedTensor& tensor, int axis, const std::vector<int64_t>& order) {
  const TensorView view = tensor.view();
  OwnedTensor result(view.dtype, std::vector<int64_t>(view.shape, view.shape + view.rank));
  int64_t inner = 1;
  for (int a = axis + 1; a < view.rank; ++a) inner *= view.shape[a];
  for (int64_t n = 0; n < tensor.size(); ++n) {
    const int64_t j = n / inner % view.shape[axis];
    result.Set(n, tensor.Get(n + (order[static_cast<size_t>(j)] - j) * inner));
  }
  return result;
}

std::vector<int64_t> RandomOrder(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  test::Random random(seed);
  random.Shuffle(order);
  return order;
}

double LargestValue(const OwnedTensor& v) {
  double largest = 0;
  for (double x : v.Dense()) largest = std::max(largest, std::fabs(x));
  return largest;
}

TEST(PropertyTest, PermutingKeyValuePairsChangesNothing) {
  ProblemSpec s = Spec();
  s.mask = Axes::kBHQK, s.bias = Axes::kHQK, s.sinks = true;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed());
    RunOn(kernel, p);
    const auto order = RandomOrder(s.Tk, test::BaseSeed());
    RandomProblem moved(s, test::BaseSeed());
    moved.k = Permuted(p.k, 2, order);
    moved.v = Permuted(p.v, 2, order);
    moved.mask = Permuted(p.mask, 3, order);
    moved.bias = Permuted(p.bias, 2, order);
    moved.Refresh();
    RunOn(kernel, moved);
    const double largest = LargestValue(p.v);
    for (int64_t n = 0; n < p.out.size(); ++n)
      ASSERT_NEAR(p.out.Get(n), moved.out.Get(n), 2 * kT * largest) << ToString(kernel);
    for (int64_t n = 0; n < p.lse.size(); ++n) {
      const double lse = p.lse.Get(n);
      if (std::isinf(lse)) {
        ASSERT_EQ(lse, moved.lse.Get(n));
      } else {
        ASSERT_NEAR(lse, moved.lse.Get(n), 2 * kT) << ToString(kernel);
      }
    }
    const OwnedTensor weights = Permuted(p.weights, 3, order);
    for (int64_t n = 0; n < weights.size(); ++n)
      ASSERT_NEAR(weights.Get(n), moved.weights.Get(n), 2 * kT) << ToString(kernel);
  }
}

TEST(PropertyTest, PermutingQueriesPermutesRowsBitForBitUnlessCausal) {
  ProblemSpec s = Spec();
  for (const Kernel& kernel : test::Kernels()) {
    for (bool causal : {false, true}) {
      s.causal = causal ? Causal::kTopLeft : Causal::kNone;
      RandomProblem p(s, test::BaseSeed()), moved(s, test::BaseSeed());
      const auto order = RandomOrder(s.Tq, test::BaseSeed());
      moved.q = Permuted(p.q, 2, order);
      moved.Refresh();
      RunOn(kernel, p);
      RunOn(kernel, moved);
      // "Within an engine, tile shapes agree bit for bit": so do a row's places within a tile.
      EXPECT_EQ(Permuted(p.out, 2, order).Bytes() == moved.out.Bytes(), !causal)
          << ToString(kernel);
    }
  }
}

TEST(PropertyTest, PermutingQueriesUnderExplicitMasksPermutesRowsBitForBitUnlessCausal) {
  // Large enough that the mask removes whole areas, others before than after.
  ProblemSpec s = Spec();
  s.Tq = 50, s.Tk = 200, s.weights = false, s.bias = Axes::kHQK;
  for (DType type : {DType::kBool, DType::kBit}) {
    for (bool causal : {false, true}) {
      s.causal = causal ? Causal::kBottomRight : Causal::kNone, s.mask = Axes::kQK,
      s.mask_type = type;
      RandomProblem p(s, test::BaseSeed()), moved(s, test::BaseSeed());
      for (int64_t i = 0; i < s.Tq; ++i) {
        for (int64_t j = 0; j < s.Tk; ++j)
          p.mask.SetAt({i, j}, i / 16 % 2 == j / 64 % 2 && p.mask.At({i, j}) != 0);
      }
      const auto order = RandomOrder(s.Tq, test::BaseSeed());
      moved.q = Permuted(p.q, 2, order);
      moved.mask = Permuted(p.mask, 0, order);
      moved.bias = Permuted(p.bias, 1, order);
      moved.Refresh();
      for (const Kernel& kernel : test::Kernels()) {
        RunOn(kernel, p);
        RunOn(kernel, moved);
        EXPECT_EQ(Permuted(p.out, 2, order).Bytes() == moved.out.Bytes(), !causal)
            << ToString(kernel);
        EXPECT_EQ(Permuted(p.lse, 2, order).Bytes() == moved.lse.Bytes(), !causal)
            << ToString(kernel);
      }
    }
  }
}

TEST(PropertyTest, WeightsAreNonNegativeAndSumToOneOrToWhatTheSinkLeaves) {
  for (bool sinks : {false, true}) {
    ProblemSpec s = Spec();
    s.Tk = 301, s.sinks = sinks, s.causal = Causal::kTopLeft, s.mask = Axes::kBHQK,
    s.mask_allows = 0.3;
    for (const Kernel& kernel : test::Kernels()) {
      RandomProblem p(s, test::BaseSeed());
      RunOn(kernel, p);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        double sum = 0;
        for (int64_t j = 0; j < s.Tk; ++j) {
          const double w = p.weights.Get(row * s.Tk + j);
          ASSERT_GE(w, 0) << ToString(kernel);
          sum += w;
        }
        const double lse = p.lse.Get(row);
        const bool empty = sum == 0;
        double expected = 1;
        if (sinks) {
          const double sink = p.sinks.Get(row / s.Tq % s.Hq);
          expected = 1 - std::exp(sink - lse);
          if (empty) {
            ASSERT_NEAR(lse, sink, kEps * std::fabs(sink)) << ToString(kernel);
          }
        } else if (empty) {
          ASSERT_EQ(lse, -std::numeric_limits<double>::infinity()) << ToString(kernel);
          expected = 0;
        }
        // Each of up to Tk weights is rounded, as are lse and exp: kT covers both as for V = 1.
        ASSERT_NEAR(sum, expected, kT) << ToString(kernel) << " row " << row;
      }
    }
  }
}

TEST(PropertyTest, OutIsWeightsTimesV) {
  ProblemSpec s = Spec();
  s.causal = Causal::kBottomRight, s.softcap = 3, s.alibi = true;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed());
    RunOn(kernel, p);
    const double largest = LargestValue(p.v);
    for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
      const int64_t b = row / (s.Hq * s.Tq), h = row / s.Tq % s.Hq;
      for (int64_t c = 0; c < s.dv; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < s.Tk; ++j)
          sum += p.weights.Get(row * s.Tk + j) * p.v.At({b, h / (s.Hq / s.Hkv), j, c});
        ASSERT_NEAR(p.out.Get(row * s.dv + c), sum, 2 * kT * largest) << ToString(kernel);
      }
    }
  }
}

TEST(PropertyTest, ConstantVGivesTheConstant) {
  for (double constant : {1.0, -3.7, 1e30, -1e-30}) {
    ProblemSpec s = Spec();
    s.weights = false, s.causal = Causal::kTopLeft, s.Tk = 259, s.Tq = 40;
    for (const Kernel& kernel : test::Kernels()) {
      RandomProblem p(s, test::BaseSeed());
      p.v.Fill([&] { return constant; });
      const double stored = p.v.Get(0);
      RunOn(kernel, p);
      // Numerator and denominator add the same p in f32, at most Tk additions and a division: (2·Tk
      // + 2) half units at the very most.
      const double bound = (2.0 * static_cast<double>(s.Tk) + 2) * kEps * std::fabs(stored);
      for (double x : p.out.Dense()) ASSERT_NEAR(x, stored, bound) << ToString(kernel);
    }
  }
}

TEST(PropertyTest, OutIsNoLargerThanTheLargestVisibleValue) {
  ProblemSpec s = Spec();
  s.weights = false, s.causal = Causal::kTopLeft, s.scale = 4.0f;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed());
    p.v.Fill([n = 0]() mutable { return n++ % 2 == 0 ? 1.0 : 0.999; });
    RunOn(kernel, p);
    const double bound = 1 + (2.0 * static_cast<double>(s.Tk) + 2) * kEps;
    for (double x : p.out.Dense()) ASSERT_LE(std::fabs(x), bound) << ToString(kernel);
  }
}

TEST(PropertyTest, SplittingKeysAndMergingIsTheWhole) {
  std::vector<std::vector<int64_t>> ways = {
      {0, 67}, {0, 1, 67}, {0, 30, 67}, {0, 16, 32, 48, 67}, {0, 33, 33, 67}};
  ways.emplace_back(68);  // each key alone
  std::iota(ways.back().begin(), ways.back().end(), 0);
  test::Random random(test::BaseSeed());
  for (int64_t parts = 2; parts <= 12; ++parts) {
    std::vector<int64_t> cuts = {0, 67};
    for (int64_t n = 1; n < parts; ++n) cuts.push_back(random.Between(0, 67));
    std::sort(cuts.begin(), cuts.end());
    ways.push_back(cuts);
  }
  for (const Kernel& kernel : test::Kernels()) {
    for (const std::vector<int64_t>& cuts : test::Thinned(ways, 4)) {
      ProblemSpec s = Spec();
      s.weights = false, s.bias = Axes::kHQK, s.bias_removes = 0.5;
      RandomProblem whole(s, test::BaseSeed());
      // Every fifth row sees nothing behind the first ten keys, so that some parts are empty there.
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; i += 5) {
          for (int64_t j = 10; j < s.Tk; ++j)
            whole.bias.SetAt({h, i, j}, -std::numeric_limits<double>::infinity());
        }
      }
      const auto expected = reference::Forward(whole.problem);
      std::vector<OwnedTensor> outs, lses;
      std::vector<PartialState> parts;
      for (size_t n = 0; n + 1 < cuts.size(); ++n) {
        outs.emplace_back(DType::kF32, std::vector<int64_t>{s.B, s.Hq, s.Tq, s.dv});
        lses.emplace_back(DType::kF32, std::vector<int64_t>{s.B, s.Hq, s.Tq});
        Problem part = whole.problem;
        const int64_t first = cuts[n], keys = cuts[n + 1] - first;
        for (TensorView* view : {&part.k, &part.v}) {
          view->data = static_cast<const char*>(view->data) + first * view->stride[2];
          view->shape[2] = keys;
        }
        part.score.bias.data =
            static_cast<const char*>(part.score.bias.data) + first * part.score.bias.stride[2];
        part.score.bias.shape[2] = keys;
        part.out = outs.back().mutable_view();
        part.lse = lses.back().mutable_view();
        const Status status = Attention(part, test::Options(kernel), SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.message();
        parts.push_back({outs.back().view(), lses.back().view()});
      }
      ASSERT_TRUE(Merge(parts.data(), static_cast<int64_t>(parts.size()), whole.problem.out,
                        whole.problem.lse)
                      .ok());
      EXPECT_TRUE(test::Matches(whole.problem, expected))
          << ToString(kernel) << ", " << parts.size() << " parts";
    }
  }
}

TEST(PropertyTest, WorkedExample) {
  // softmax([1, 0]/√2) = [0.6697615, 0.3302385]
  const float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {1, 2, 3, 4};
  for (const Kernel& kernel : test::Kernels()) {
    float out[2] = {}, lse[1] = {};
    Problem p;
    p.q = View(q, {1, 1, 1, 2});
    p.k = View(k, {1, 1, 2, 2});
    p.v = View(v, {1, 1, 2, 2});
    p.out = View(out, {1, 1, 1, 2});
    p.lse = View(lse, {1, 1, 1});
    ASSERT_TRUE(Attention(p, test::Options(kernel), SerialExecutor()).ok());
    const double e = std::exp(1 / std::sqrt(2.0)), w = e / (e + 1);
    EXPECT_NEAR(out[0], w + 3 * (1 - w), 1e-6) << ToString(kernel);
    EXPECT_NEAR(out[1], 2 * w + 4 * (1 - w), 1e-6) << ToString(kernel);
    EXPECT_NEAR(lse[0], std::log(e + 1), 1e-6) << ToString(kernel);
  }
}

TEST(PropertyTest, CausalComesBeforeSoftmax) {
  // Masking after the softmax would leave rows that sum to less than 1: here row 0 sees one key and
  // must return it whole.
  const float q[] = {0, 0}, k[] = {0, 0}, v[] = {5, 7};
  for (const Kernel& kernel : test::Kernels()) {
    float out[2] = {};
    Problem p;
    p.q = View(q, {1, 1, 2, 1});
    p.k = View(k, {1, 1, 2, 1});
    p.v = View(v, {1, 1, 2, 1});
    p.out = View(out, {1, 1, 2, 1});
    p.score.causal = Causal::kTopLeft;
    ASSERT_TRUE(Attention(p, test::Options(kernel), SerialExecutor()).ok());
    EXPECT_EQ(out[0], 5.0f) << ToString(kernel);
    EXPECT_EQ(out[1], 6.0f) << ToString(kernel);
  }
}

TEST(PropertyTest, RowsDoNotDependOnLaterKeysUnderCausal) {
  ProblemSpec s = Spec();
  s.weights = false, s.causal = Causal::kTopLeft, s.Tk = 21;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed()), changed(s, test::BaseSeed());
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t j = 10; j < s.Tk; ++j) {
        for (int64_t c = 0; c < s.dk; ++c) changed.k.SetAt({0, h, j, c}, 100);
        for (int64_t c = 0; c < s.dv; ++c) changed.v.SetAt({0, h, j, c}, -100);
      }
    }
    RunOn(kernel, p);
    RunOn(kernel, changed);
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < 10; ++i) {
        for (int64_t c = 0; c < s.dv; ++c)
          ASSERT_EQ(p.out.At({0, h, i, c}), changed.out.At({0, h, i, c})) << ToString(kernel);
      }
    }
  }
}

// ---- the scale ----

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
    ProblemSpec s = Spec();
    s.scale = scale, s.causal = Causal::kBottomRight;
    RandomProblem p(s, test::BaseSeed());
    test::ExpectMatchesReference(p);
  }
}

TEST(ScaleTest, ScoresAThousandTimesLarger) {
  ProblemSpec s = Spec();
  s.scale = 1000 / std::sqrt(24.0f), s.causal = Causal::kTopLeft;
  RandomProblem p(s, test::BaseSeed());
  test::ExpectMatchesReference(p);
}

TEST(ScaleTest, AddingAConstantToAllScoresChangesOnlyLse) {
  for (const Kernel& kernel : test::Kernels()) {
    for (double constant : {-1e4, -100.0, 100.0, 1e4}) {
      ProblemSpec s = Spec();
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
        // In a wide enough integer: where does query i stand, and which keys does it see?
        for (const Kernel& kernel : test::Kernels()) {
          p.ResetOutputs();
          const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
          for (int64_t i = 0; i < s.Tq; ++i) {
            bool sees = false;
            for (int64_t j = 0; j < s.Tk; ++j) {
              const Wide position = static_cast<Wide>(i) + offset;
              bool visible = true;
              if (causal != Causal::kNone && j > position) visible = false;
              if (window.left != -1 && j < position - window.left) visible = false;
              if (window.right != -1 && j > position + window.right) visible = false;
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
