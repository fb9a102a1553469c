// The ends of f32's range in V: what is finite goes in, what is finite comes out, and nothing but
// bf16's own products makes small numbers 0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "reference/reference.h"
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

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());

ProblemSpec Spec(int64_t Tq, int64_t Tk) {
  ProblemSpec s;
  s.B = 1, s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = Tk, s.dk = 20, s.dv = 18;
  return s;
}

// Each channel within the contract's t of its own largest value, and finite where the reference is.
void ExpectFinite(RandomProblem& p, const PlanOptions& options = {}) {
  const int64_t dv = p.spec.dv, group = p.spec.Hq / p.spec.Hkv;
  std::vector<reference::Row> rows;
  for (int64_t b = 0; b < p.spec.B; ++b) {
    for (int64_t h = 0; h < p.spec.Hq; ++h) {
      for (int64_t i = 0; i < p.spec.Tq; ++i)
        rows.push_back(reference::ForwardRow(p.problem, b, h, i));
    }
  }
  for (const Kernel& kernel : test::KernelsFor(p.problem)) {
    RunOn(kernel, p, options);
    for (size_t r = 0; r < rows.size(); ++r) {
      const reference::Row& row = rows[r];
      const int64_t n = static_cast<int64_t>(r), b = n / (p.spec.Hq * p.spec.Tq),
                    h = n / p.spec.Tq % p.spec.Hq;
      const double t =
          reference::RelativeTolerance(row) + reference::WeightTolerance(kernel.product);
      for (int64_t c = 0; c < dv; ++c) {
        double largest = 0;  // of the channel
        for (int64_t j = 0; j < p.spec.Tk; ++j) {
          if (row.visible[static_cast<size_t>(j)])
            largest = std::max(largest, std::fabs(p.v.At({b, h / group, j, c})));
        }
        const double got = p.out.Get(n * dv + c), want = row.out[static_cast<size_t>(c)];
        const std::string where =
            ToString(kernel) + " row " + std::to_string(r) + " channel " + std::to_string(c);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got)) << where;
        } else if (std::isinf(want)) {
          ASSERT_EQ(got, want) << where;
        } else {
          ASSERT_TRUE(std::isfinite(got) || p.spec.out_type != DType::kF32) << where;
          ASSERT_LE(std::fabs(got - want),
                    reference::StoredBound(p.spec.out_type, got, want, t * largest))
              << where << " is " << got << ", expected " << want;
        }
      }
    }
  }
}

// ---- large ----

TEST(LargeValueTest, ConstantValuesOfAnySizeGiveTheConstant) {
  for (double value : {3e38, -3e38, kMost, 1e37}) {
    for (auto [Tq, Tk] : test::Thinned(
             {std::pair(1, 2), std::pair(1, 1000), std::pair(3, 70), std::pair(40, 300)})) {
      SCOPED_TRACE(std::to_string(value) + ", " + std::to_string(Tk) + " keys");
      RandomProblem p(Spec(Tq, Tk), test::BaseSeed());
      p.v.Fill([&] { return value; });
      ExpectFinite(p);
    }
  }
}

TEST(LargeValueTest, MixturesOfBothSigns) {
  for (auto [Tq, Tk] :
       test::Thinned({std::pair(1, 2), std::pair(1, 5000), std::pair(3, 70), std::pair(40, 300)})) {
    for (double bias : {0.0, 0.3, 1.0}) {  // towards one sign
      RandomProblem p(Spec(Tq, Tk), test::BaseSeed());
      test::Random random(test::BaseSeed());
      p.v.Fill([&] { return random.Chance(0.5 + bias / 2) ? 3e38 : -3e38; });
      ExpectFinite(p);
      p.v.Fill([&] { return 3e38 * (2 * random.Uniform() - 1); });
      ExpectFinite(p);
      // A sum of several 3e38 that others take back.
      p.v.Fill(
          [n = int64_t{0}, half = Tk / 2]() mutable { return n++ / 18 < half ? 3e38 : -3e38; });
      ExpectFinite(p);
    }
  }
}

// Products p·v that are subnormal numbers lose bits, all in the same direction.
TEST(SmallValueTest, ManySmallWeightsOfSmallValues) {
  constexpr int64_t kKeys = 20000;
  for (double value : {0x1p-126, 1e-37, 1e-42}) {
    for (double score : {-4.2, -9.0}) {
      RandomProblem p(Spec(2, kKeys), test::BaseSeed());
      const int64_t dk = p.spec.dk;
      p.q.Fill([n = int64_t{0}, dk]() mutable { return n++ % dk == 0 ? 1.0 : 0.0; });
      p.k.Fill([n = int64_t{0}, dk, score]() mutable {
        const int64_t element = n++;
        return element % dk == 0 && element / dk % kKeys != 0 ? score : 0.0;
      });
      p.v.Fill([value] { return value; });
      p.problem.score.scale = 1.0f;
      ExpectFinite(p);
    }
  }
}

// A small sum next to large ones, which do not change by a bit.
TEST(SmallValueTest, ASmallChannelBesideLargeOnes) {
  constexpr int64_t kChannel = 3;
  for (double small : {1e-40, 1e-45}) {
    RandomProblem p(Spec(5, 300), test::BaseSeed()), with_small(Spec(5, 300), test::BaseSeed());
    for (int64_t n = kChannel; n < with_small.v.size(); n += p.spec.dv) with_small.v.Set(n, small);
    for (const Kernel& kernel : test::KernelsFor(p.problem)) {
      RunOn(kernel, p);
      RunOn(kernel, with_small);
      for (int64_t n = 0; n < p.out.size(); ++n) {
        const double got = with_small.out.Get(n);
        if (n % p.spec.dv == kChannel) {
          EXPECT_NEAR(got, small, 1e-5 * small + 0x1p-149) << ToString(kernel);
        } else {
          EXPECT_EQ(got, p.out.Get(n)) << ToString(kernel);
        }
      }
    }
  }
}

// A sum that overflows next to small ones, where pairs are removed: what mends one kind must leave
// the other alone.
TEST(SmallValueTest, LargeChannelsBesideSmallOnes) {
  for (auto [Tq, Tk] : {std::pair(1, 40), std::pair(2, 700), std::pair(30, 90)}) {
    for (bool removes : {false, true}) {
      for (double large : {3.3e38, -3.3e38}) {
        ProblemSpec s = Spec(Tq, Tk);
        if (removes) s.bias = Axes::kHQK, s.bias_removes = 0.3;
        RandomProblem p(s, test::BaseSeed());
        test::Random random(test::BaseSeed());
        for (int64_t n = 0; n < p.v.size(); ++n) {
          const int64_t c = n % p.spec.dv;
          const double x = 0.5 + random.Uniform();
          p.v.Set(n, c % 3 == 0 ? 1e-32 * x : c % 3 == 1 ? large * std::min(x, 1.0) : x);
        }
        ExpectFinite(p);
      }
    }
  }
}

TEST(LargeValueTest, SplitKeysJoinLargeParts) {
  for (double spread : {0.0, 2.0}) {
    RandomProblem p(Spec(1, 2000), test::BaseSeed());
    test::Random random(test::BaseSeed());
    p.v.Fill([&] { return 3e38 * (random.Chance(0.9) ? 1 : -spread / 2); });
    for (int64_t split : {64, 512}) {
      PlanOptions options;
      options.split_keys = split;
      ExpectFinite(p, options);
    }
  }
}

TEST(LargeValueTest, OtherTypesOfVAndOut) {
  for (DType v_type : {DType::kF32, DType::kBF16}) {
    for (DType out_type : {DType::kBF16, DType::kF32}) {
      for (int64_t Tq : {1, 33}) {
        ProblemSpec s = Spec(Tq, 90);
        s.q_type = s.k_type = s.v_type = v_type, s.out_type = out_type;
        RandomProblem p(s, test::BaseSeed());
        test::Random random(test::BaseSeed());
        p.v.Fill([&] { return random.Chance(0.8) ? 3e38 : -2e38; });
        ExpectFinite(p);
      }
    }
  }
}

TEST(LargeValueTest, OtherChannelsAndRowsKeepTheirBits) {
  // One channel is large, and a mask hides it from every third row.
  for (int64_t Tq : {1, 3, 50}) {
    ProblemSpec s = Spec(Tq, 100);
    s.mask = Axes::kHQK;
    RandomProblem ordinary(s, test::BaseSeed());
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < Tq; ++i) {
        if ((h + i) % 3 == 0) {
          for (int64_t j = 30; j < 60; ++j) ordinary.mask.SetAt({h, i, j}, 0);
        }
      }
    }
    RandomProblem large = ordinary;
    large.v = ordinary.v.CopiedTo({}), large.out = ordinary.out.CopiedTo({});
    large.lse = ordinary.lse.CopiedTo({});
    large.Refresh();
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t j = 30; j < 60; ++j) large.v.SetAt({0, h, j, 7}, 3e38);
    }
    ExpectFinite(large);
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, ordinary);
      RunOn(kernel, large);
      EXPECT_TRUE(ordinary.lse.Bytes() == large.lse.Bytes()) << ToString(kernel);
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < Tq; ++i) {
          for (int64_t c = 0; c < s.dv; ++c) {
            if (c == 7 && (h + i) % 3 != 0) continue;
            ASSERT_EQ(ordinary.out.At({0, h, i, c}), large.out.At({0, h, i, c}))
                << ToString(kernel) << " head " << h << " row " << i << " channel " << c;
          }
        }
      }
    }
  }
}

TEST(LargeValueTest, BesideValuesThatAreNotFinite) {
  // Channel 2 has a NaN, channel 3 an infinity, the others are large.
  for (int64_t Tq : {1, 21}) {
    RandomProblem p(Spec(Tq, 60), test::BaseSeed());
    p.v.Fill([] { return 3e38; });
    for (int64_t h = 0; h < 2; ++h) p.v.SetAt({0, h, 17, 2}, kNaN), p.v.SetAt({0, h, 40, 3}, kInf);
    ExpectFinite(p);
  }
}

TEST(LargeValueTest, MergedPartsAreNoLargerThanTheLargest) {
  test::Random random(test::BaseSeed());
  for (int parts : {2, 3, 100}) {
    for (double value : {3e38, -3e38, kMost}) {
      std::vector<OwnedTensor> outs, lses;
      std::vector<PartialState> states;
      for (int n = 0; n < parts; ++n) {
        outs.emplace_back(DType::kF32, std::vector<int64_t>{1, 1, 3, 19});
        lses.emplace_back(DType::kF32, std::vector<int64_t>{1, 1, 3});
        outs.back().Fill([&] { return value; });
        lses.back().Fill([&] { return random.Normal(); });
        states.push_back({outs.back().view(), lses.back().view()});
      }
      OwnedTensor out(DType::kF32, {1, 1, 3, 19});
      ASSERT_TRUE(Merge(states.data(), parts, out.mutable_view(), {}).ok());
      for (double x : out.Dense()) {
        ASSERT_TRUE(std::isfinite(x)) << parts << " parts of " << value;
        ASSERT_NEAR(x, value, 1.5e-6 * std::fabs(value)) << parts << " parts";
      }
    }
  }
}

// ---- small ----

TEST(SmallValueTest, F32ProductsFlushNothing) {
  // Values around the smallest normal number and below: each product and sum may lose half a unit
  // of 2⁻¹⁴⁹, no more.
  for (double size : {1e-37, 1e-38, 1e-39, 1e-40}) {
    for (auto [Tq, Tk] : test::Thinned({std::pair(1, 900), std::pair(30, 200)})) {
      RandomProblem p(Spec(Tq, Tk), test::BaseSeed());
      test::Random random(test::BaseSeed());
      p.v.Fill([&] { return size * (0.5 + random.Uniform()); });
      const reference::ForwardResult expected = reference::Forward(p.problem);
      for (const Kernel& kernel : test::Kernels()) {
        RunOn(kernel, p);
        const double bound = 1e-5 * 1.5 * size + static_cast<double>(Tk) * 0x1p-149;
        for (int64_t n = 0; n < p.out.size(); ++n) {
          ASSERT_NEAR(p.out.Get(n), expected.out[static_cast<size_t>(n)], bound)
              << ToString(kernel) << " values of " << size;
        }
      }
    }
  }
}

TEST(SmallValueTest, ProductsOfBF16LoseAtMostTheSmallestNormalNumberForEachKey) {
  // A sum below 2⁻¹²⁶ may count as 0, whatever its sign; above it nothing is lost but by rounding.
  for (int exponent : {-100, -118, -125, -126, -130}) {
    for (int64_t Tk : {1, 70, 300}) {
      ProblemSpec s = test::WithTypes(Spec(40, Tk), DType::kBF16);
      s.out_type = DType::kF32;
      RandomProblem p(s, test::BaseSeed());
      const double value = std::ldexp(1, exponent);
      p.v.Fill([&] { return value; });
      for (const Kernel& kernel : test::BF16Kernels()) {
        RunOn(kernel, p);
        const double flushed = static_cast<double>(Tk) * 0x1p-126;
        const double t = 1e-5 + reference::WeightTolerance(Product::kBF16);
        for (double x : p.out.Dense()) {
          ASSERT_GE(x, value * (1 - t) - flushed) << ToString(kernel) << " 2^" << exponent;
          ASSERT_LE(x, value * (1 + t)) << ToString(kernel) << " 2^" << exponent;
          ASSERT_GE(x, 0) << ToString(kernel) << " 2^" << exponent;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
