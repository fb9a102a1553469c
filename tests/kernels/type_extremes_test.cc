// The largest and smallest numbers of f16 and bf16, NaN and infinities, in q, k, v and out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::ExpectMatchesReference;
using test::Kernel;
using test::kNarrowTypes;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::SmallSpec;
using test::WithTypes;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();

double Largest(DType type) { return type == DType::kF16 ? 65504 : 0x1.FEp127; }

// ---- sizes of numbers ----

TEST(MagnitudeTest, ScoresBeyondTheLargestF16StayFinite) {
  for (DType type : kNarrowTypes) {
    ProblemSpec s = SmallSpec();
    s.scale = 1.0f;
    RandomProblem p(WithTypes(s, type), test::BaseSeed());
    for (OwnedTensor* tensor : {&p.q, &p.k}) {
      for (int64_t n = 0; n < tensor->size(); ++n) tensor->Set(n, tensor->Get(n) * 300);
    }
    const auto expected = reference::Forward(p.problem);
    double largest = 0;
    for (double x : expected.scores) largest = std::max(largest, std::fabs(x));
    ASSERT_GT(largest, 65504);
    ExpectMatchesReference(p);
    for (const Kernel& kernel : test::KernelsFor(p.problem)) {
      RunOn(kernel, p);
      for (double x : p.out.Dense())
        ASSERT_TRUE(std::isfinite(x)) << ToString(kernel) << " " << Name(type);
      for (double x : p.lse.Dense())
        ASSERT_TRUE(std::isfinite(x)) << ToString(kernel) << " " << Name(type);
    }
  }
}

TEST(MagnitudeTest, SubnormalAndLargestInputs) {
  // From the smallest subnormal to the largest number of each type, in q or in k, and a scale that
  // makes scores near 1.
  for (DType type : kNarrowTypes) {
    const double smallest = type == DType::kF16 ? 0x1p-24 : 0x1p-133;
    for (double size : {smallest, 4 * smallest, 300 * smallest, 2000 * smallest, 1.0,
                        Largest(type) / 1000, Largest(type)}) {
      for (bool in_q : test::Thinned({0, 1})) {
        ProblemSpec s = SmallSpec();
        s.scale = static_cast<float>(std::min(1 / size, 0x1p126));
        s = WithTypes(s, type);
        // Where dot products of bf16 flush subnormal numbers, small K and V are no part of this:
        // f32 values leave them out, and beside a small q values are of usual size.
        if (type == DType::kBF16 && !in_q && size < 0x1p-100) s.v_type = DType::kF32;
        RandomProblem p(s, test::BaseSeed());
        test::Random random(test::BaseSeed());
        const auto sized = [&](double most) {
          return std::min(size, most) * std::fmin(1, std::fmax(-1, random.Normal()));
        };
        (in_q ? p.q : p.k).Fill([&] { return sized(kInf); });
        // Σ p·v is no larger than Tk times that
        p.v.Fill([&] { return in_q && size < 1 ? random.Normal() : sized(1e30); });
        SCOPED_TRACE(std::string(Name(type)) + " 2^" + std::to_string(std::log2(size)) +
                     (in_q ? " q" : " k"));
        ExpectMatchesReference(p);
      }
    }
  }
}

TEST(MagnitudeTest, TheLargestValuesAreReturned) {
  for (DType type : kNarrowTypes) {
    ProblemSpec s = SmallSpec();
    s.Tk = 1, s.weights = false;
    for (double sign : {1.0, -1.0}) {
      RandomProblem p(WithTypes(s, type), test::BaseSeed());
      p.v.Fill([&] { return sign * Largest(type); });
      for (const Kernel& kernel : test::KernelsFor(p.problem)) {
        RunOn(kernel, p);
        for (double x : p.out.Dense())
          ASSERT_EQ(x, sign * Largest(type)) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

TEST(MagnitudeTest, ConstantVGivesTheConstant) {
  // To the bit: f32 sums of a few hundred keys err by far less than half a unit of 16 bits.
  for (DType type : kNarrowTypes) {
    for (double constant : test::Thinned({1.0, -3.7, 1000.0, 3e-5, 6e-8}, 3)) {
      ProblemSpec s = SmallSpec();
      s.weights = false, s.causal = Causal::kTopLeft, s.Tk = 259, s.Tq = 40;
      RandomProblem p(WithTypes(s, type), test::BaseSeed());
      p.v.Fill([&] { return constant; });
      for (const Kernel& kernel : test::KernelsFor(p.problem)) {
        RunOn(kernel, p);
        for (double x : p.out.Dense())
          ASSERT_EQ(x, p.v.Get(0)) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

// ---- NaN and infinities ----

TEST(NonFiniteTypesTest, BadValuesInRemovedKeysNeverReachTheRow) {
  for (DType type : kNarrowTypes) {
    for (double bad : {kNaN, kInf, -kInf, Largest(type)}) {
      for (bool causal : {false, true}) {
        ProblemSpec s = SmallSpec();
        s.Tq = s.Tk = 70;
        if (causal) {
          s.causal = Causal::kTopLeft, s.query_offset = -30;  // the last 30 keys see nobody
        } else {
          s.mask = Axes::kK;
        }
        for (int64_t Tq : test::Thinned({int64_t{1}, s.Tk})) {
          s.Tq = Tq;
          RandomProblem p(WithTypes(s, type), test::BaseSeed());
          if (!causal) p.mask.Fill([n = 0]() mutable { return n++ < 40 ? 1.0 : 0.0; });
          for (int64_t b = 0; b < s.B; ++b) {
            for (int64_t h = 0; h < s.Hkv; ++h) {
              for (int64_t j = 40; j < s.Tk; ++j) {
                p.k.SetAt({b, h, j, j % s.dk}, bad);
                p.v.SetAt({b, h, j, j % s.dv}, bad);
              }
            }
          }
          SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(bad));
          ExpectMatchesReference(p);
          for (const Kernel& kernel : test::KernelsFor(p.problem)) {
            RunOn(kernel, p);
            for (double x : p.out.Dense()) ASSERT_TRUE(std::isfinite(x)) << ToString(kernel);
          }
        }
      }
    }
  }
}

TEST(NonFiniteTypesTest, SomeRowsSeeTheBadKeyAndOthersDoNot) {
  // Keys in whole vectors of a row and in its tail; for one query in each head, two heads share K
  // and V and a mask tells them apart.
  for (DType type : kNarrowTypes) {
    for (double bad : {kNaN, kInf, -kInf}) {
      for (int64_t channel : {2, 17}) {
        for (int64_t key : test::Thinned({0, 18, 69})) {
          for (int64_t Tq : test::Thinned({1, 70})) {
            ProblemSpec s = SmallSpec();
            s.Tq = Tq, s.Tk = 70, s.mask = Axes::kHQK, s.weights = false;
            RandomProblem p(WithTypes(s, type), test::BaseSeed());
            p.mask.Fill([] { return 1; });
            for (int64_t h = 0; h < s.Hq; ++h) {
              for (int64_t i = 0; i < Tq; ++i) p.mask.SetAt({h, i, key}, (h + i) % 2 == 0 ? 1 : 0);
            }
            for (int64_t h = 0; h < s.Hkv; ++h) p.v.SetAt({0, h, key, channel}, bad);
            for (const Kernel& kernel : test::KernelsFor(p.problem)) {
              RunOn(kernel, p);
              for (int64_t row = 0; row < s.B * s.Hq * Tq; ++row) {
                const bool sees = row / (s.Hq * Tq) == 0 && (row / Tq % s.Hq + row % Tq) % 2 == 0;
                for (int64_t c = 0; c < s.dv; ++c) {
                  ASSERT_EQ(std::isfinite(p.out.Get(row * s.dv + c)), !(sees && c == channel))
                      << ToString(kernel) << " " << Name(type) << " key " << key << " row " << row
                      << " channel " << c << " " << bad;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(NonFiniteTypesTest, VisibleNaNInAnyInputReachesItsRows) {
  for (DType type : kNarrowTypes) {
    ProblemSpec s = SmallSpec();
    s.weights = false;
    for (const Kernel& kernel : test::KernelsFor(RandomProblem(WithTypes(s, type), 1).problem)) {
      RandomProblem q(WithTypes(s, type), test::BaseSeed()),
          k(WithTypes(s, type), test::BaseSeed()), v(WithTypes(s, type), test::BaseSeed());
      q.q.SetAt({1, 2, 3, 19}, kNaN);
      k.k.SetAt({1, 1, 33, 19}, kNaN);
      v.v.SetAt({1, 1, 33, 17}, kNaN);
      RunOn(kernel, q);
      RunOn(kernel, k);
      RunOn(kernel, v);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        const int64_t b = row / (s.Hq * s.Tq), h = row / s.Tq % s.Hq, i = row % s.Tq;
        ASSERT_EQ(std::isnan(q.lse.Get(row)), b == 1 && h == 2 && i == 3)
            << ToString(kernel) << " " << Name(type);
        ASSERT_EQ(std::isnan(k.lse.Get(row)), b == 1 && h >= 2)
            << ToString(kernel) << " " << Name(type);
        ASSERT_FALSE(std::isnan(v.lse.Get(row))) << ToString(kernel) << " " << Name(type);
        for (int64_t c = 0; c < s.dv; ++c) {
          ASSERT_EQ(std::isnan(q.out.Get(row * s.dv + c)), b == 1 && h == 2 && i == 3)
              << ToString(kernel) << " " << Name(type);
          ASSERT_EQ(std::isnan(k.out.Get(row * s.dv + c)), b == 1 && h >= 2)
              << ToString(kernel) << " " << Name(type);
          ASSERT_EQ(std::isnan(v.out.Get(row * s.dv + c)), b == 1 && h >= 2 && c == 17)
              << ToString(kernel) << " " << Name(type);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
