// exp and tanh of the kernels, on every target that this CPU runs: their stated errors over the floats of their range.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// `n` is a multiple of 64: of the floats of any vector.
void ExpOf(const float* x, float* y, size_t n) {
  const hn::CappedTag<float, 64> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(ExpNonPositive(d, hn::LoadU(d, x + i)), d, y + i);
}

void TanhOf(const float* x, float* y, size_t n) {
  const hn::CappedTag<float, 64> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(TanhOrNaN(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fovea/target.h"
#include "kernels/registry.h"
#include "support/random.h"

namespace fovea {
namespace {

using Function = void (*)(const float*, float*, size_t);
#define FOVEA_TEST_CASE(TARGET, NAMESPACE, NAME) \
  case Target::TARGET:                           \
    return NAMESPACE::NAME;

Function ExpFor(Target target) {
  switch (target) {
    FOVEA_FOR_EACH_COMPILED_TARGET(FOVEA_TEST_CASE, ExpOf)
    default:
      return nullptr;
  }
}

Function TanhFor(Target target) {
  switch (target) {
    FOVEA_FOR_EACH_COMPILED_TARGET(FOVEA_TEST_CASE, TanhOf)
    default:
      return nullptr;
  }
}

constexpr size_t kChunk = 4096;
constexpr float kInf = std::numeric_limits<float>::infinity();

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
uint32_t ToBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

std::vector<float> Apply(Function f, std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 63) / 64 * 64);
  std::vector<float> y(x.size());
  f(x.data(), y.data(), x.size());
  y.resize(n);
  return y;
}

// Every step-th float from −0 down to −88.
void CheckExp(Target target, uint32_t step) {
  const Function exp = ExpFor(target);
  ASSERT_NE(exp, nullptr) << Name(target);
  const uint32_t first = ToBits(-0.0f), last = ToBits(-88.0f);
  std::vector<float> x(kChunk), y(kChunk);
  double worst = 0;
  float where = 0;
  for (uint64_t bits = first; bits <= last; bits += static_cast<uint64_t>(step) * kChunk) {
    for (size_t n = 0; n < kChunk; ++n) x[n] = FromBits(static_cast<uint32_t>(std::min<uint64_t>(bits + n * step, last)));
    exp(x.data(), y.data(), kChunk);
    for (size_t n = 0; n < kChunk; ++n) {
      const double want = std::exp(static_cast<double>(x[n]));
      const double got = static_cast<double>(y[n]);
      if (x[n] < -87.33f) {
        // Subnormal results may be flushed: to anything from 0 to the truth and its own error.
        ASSERT_GE(got, 0) << Name(target) << " " << x[n];
        ASSERT_LE(got, want * (1 + 1e-5)) << Name(target) << " " << x[n];
        continue;
      }
      // 2 ulp (2⁻²³ of a value at most) + |x|·2⁻²⁴, both relative.
      const double bound = 2 * 0x1p-23 + std::fabs(static_cast<double>(x[n])) * 0x1p-24;
      const double error = std::fabs(got - want) / want / bound;
      if (!(error <= worst)) worst = error, where = x[n];
    }
  }
  EXPECT_LE(worst, 1) << Name(target) << " at " << where;
}

TEST(ExpTest, ErrorIsBoundedOnASampleOfItsRange) {
  for (Target target : UsableTargets()) CheckExp(target, static_cast<uint32_t>(1021 * test::GridStep()));
}

TEST(ExpTest, SlowErrorIsBoundedOnEveryFloatOfItsRange) {
  for (Target target : UsableTargets()) CheckExp(target, 1);
}

TEST(ExpTest, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Target target : UsableTargets()) {
    // In every lane, beside ordinary values.
    for (size_t lane = 0; lane < 16; ++lane) {
      for (float special : {0.0f, -0.0f, nan, -nan, -kInf, std::numeric_limits<float>::lowest(), -1e10f, -88.1f, -150.0f,
                            -std::numeric_limits<float>::denorm_min()}) {
        std::vector<float> x(16, -1.0f);
        x[lane] = special;
        const std::vector<float> y = Apply(ExpFor(target), x);
        if (std::isnan(special)) {
          EXPECT_TRUE(std::isnan(y[lane])) << Name(target);
        } else if (special > -1e-30f) {
          EXPECT_EQ(y[lane], 1.0f) << Name(target);
        } else {
          EXPECT_EQ(y[lane], 0.0f) << Name(target) << " " << special;
        }
        for (size_t n = 0; n < 16; ++n) {
          if (n != lane) {
            EXPECT_NEAR(y[n], 0.36787944f, 2 * 0x1p-24 + 0x1p-25) << Name(target);
          }
        }
      }
    }
  }
}

TEST(ExpTest, NeverExceedsOne) {
  // Weights are exp(s − max): a value above 1 would break |out| ≤ max|v|.
  for (Target target : UsableTargets()) {
    std::vector<float> x;
    for (uint32_t bits = ToBits(-0.0f); bits < ToBits(-1.0f); bits += 4093) x.push_back(FromBits(bits));
    for (float y : Apply(ExpFor(target), x)) ASSERT_LE(y, 1.0f) << Name(target);
  }
}

TEST(TanhTest, ErrorIsBounded) {
  for (Target target : UsableTargets()) {
    std::vector<float> x = {0.0f, -0.0f, 1e-40f, 1e-30f, 20.0f, 100.0f, 1e30f, kInf};
    test::Random random(test::BaseSeed());
    for (int n = 0; n < 200000; ++n) x.push_back(static_cast<float>(std::exp2(30 * random.Uniform() - 20)));
    for (size_t n = 0, count = x.size(); n < count; ++n) x.push_back(-x[n]);
    const std::vector<float> y = Apply(TanhFor(target), x);
    for (size_t n = 0; n < x.size(); ++n) {
      ASSERT_NEAR(static_cast<double>(y[n]), std::tanh(static_cast<double>(x[n])), 0x1p-22) << Name(target) << " " << x[n];
      ASSERT_LE(std::fabs(y[n]), 1.0f) << Name(target) << " " << x[n];
    }
  }
}

TEST(TanhTest, NaNStaysNaN) {
  for (Target target : UsableTargets()) {
    const std::vector<float> y = Apply(TanhFor(target), std::vector<float>(16, std::numeric_limits<float>::quiet_NaN()));
    for (float value : y) EXPECT_TRUE(std::isnan(value)) << Name(target);
  }
}

}  // namespace
}  // namespace fovea
#endif  // HWY_ONCE
