// What the mathematics of attention demands, whatever the formula in the code: laws that need no
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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
using test::RunOn;

constexpr double kEps = 0x1p-24;
constexpr double kT = 1e-5;  // the contract's t while scores stay below 20

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

}  // namespace
}  // namespace fovea
