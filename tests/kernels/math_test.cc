// exp, tanh and softcap of the kernels, on every target that this CPU runs: their stated errors
// over the floats of their range.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/math-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// `n` is a multiple of 64: of the floats of any vector.
void ExpOf(const float* x, float* y, size_t n) {
  const hn::CappedTag<float, 64> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d))
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, x + i)), d, y + i);
}

void TanhOf(const float* x, float* y, size_t n) {
  const hn::CappedTag<float, 64> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(Softcap(d, v, v, hn::Set(d, 1.0f)), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(ExpOf)
FOVEA_OFFER(TanhOf)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random.h"

namespace fovea {

using Function = void(const float*, float*, size_t);
FOVEA_DEFINE_FIND(Function, ExpOf)
FOVEA_DEFINE_FIND(Function, TanhOf)

namespace {

// Usable targets with code of their own for these functions: those that add products to another one
// have the other's.
std::vector<Target> TargetsWithFunctions() {
  std::vector<Target> targets;
  for (Target target : UsableTargets()) {
    if (!IsNativeProduct(target, Product::kBF16)) targets.push_back(target);
  }
  return targets;
}

Function* ExpFor(Target target) { return FindExpOf(HighwayTarget(target, Product::kF32)); }
Function* TanhFor(Target target) { return FindTanhOf(HighwayTarget(target, Product::kF32)); }

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

std::vector<float> Apply(Function* f, std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 63) / 64 * 64);
  std::vector<float> y(x.size());
  f(x.data(), y.data(), x.size());
  y.resize(n);
  return y;
}

// Where e^x ends, and what it is there at most.
constexpr float kExpEnd = detail::kExpFlush;
constexpr double kLeastWeight = 0x1p-64;

// Every step-th float from −0 down to −88.
void CheckExp(Target target, uint32_t step) {
  Function* const exp = ExpFor(target);
  ASSERT_NE(exp, nullptr) << Name(target);
  const uint32_t first = ToBits(-0.0f), last = ToBits(-88.0f);
  std::vector<float> x(kChunk), y(kChunk);
  double worst = 0;
  float where = 0;
  for (uint64_t bits = first; bits <= last; bits += static_cast<uint64_t>(step) * kChunk) {
    for (size_t n = 0; n < kChunk; ++n)
      x[n] = FromBits(static_cast<uint32_t>(std::min<uint64_t>(bits + n * step, last)));
    exp(x.data(), y.data(), kChunk);
    for (size_t n = 0; n < kChunk; ++n) {
      const double want = std::exp(static_cast<double>(x[n]));
      const double got = static_cast<double>(y[n]);
      if (x[n] < kExpEnd) {
        ASSERT_LT(want, kLeastWeight) << x[n];
        ASSERT_EQ(got, 0) << Name(target) << " " << x[n];
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
  for (Target target : TargetsWithFunctions())
    CheckExp(target, static_cast<uint32_t>(1021 * test::GridStep()));
}

TEST(ExpTest, SlowErrorIsBoundedOnEveryFloatOfItsRange) {
  for (Target target : TargetsWithFunctions()) CheckExp(target, 1);
}

TEST(ExpTest, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Target target : TargetsWithFunctions()) {
    // In every lane, beside ordinary values.
    for (size_t lane = 0; lane < 16; ++lane) {
      for (float special : {0.0f, -0.0f, nan, -nan, -kInf, std::numeric_limits<float>::lowest(),
                            -1e10f, std::nextafter(kExpEnd, -kInf), -69.0f, -88.1f, -150.0f,
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
  for (Target target : TargetsWithFunctions()) {
    std::vector<float> x;
    for (uint32_t bits = ToBits(-0.0f); bits < ToBits(-1.0f); bits += 4093)
      x.push_back(FromBits(bits));
    for (float y : Apply(ExpFor(target), x)) ASSERT_LE(y, 1.0f) << Name(target);
  }
}

constexpr double kTanhError = 6 * 0x1p-24;  // relative
constexpr float kTanhIsOne = 8.21f;

// Every step-th bit pattern of a float, NaN included, with both signs.
void CheckTanh(uint32_t step) {
  struct Checked {
    Target target;
    Function* tanh;
    double worst;
    float where;
  };
  std::vector<Checked> all;
  for (Target target : TargetsWithFunctions()) all.push_back({target, TanhFor(target), 0, 0});
  constexpr uint32_t kSign = 0x80000000u;
  std::vector<float> x(kChunk), minus_x(kChunk), y(kChunk), minus_y(kChunk);
  std::vector<double> want(kChunk);
  for (uint64_t bits = 0; bits < kSign; bits += static_cast<uint64_t>(step) * kChunk) {
    for (size_t n = 0; n < kChunk; ++n) {
      x[n] = FromBits(static_cast<uint32_t>(std::min<uint64_t>(bits + n * step, kSign - 1)));
      minus_x[n] = FromBits(ToBits(x[n]) | kSign);
      want[n] = std::tanh(static_cast<double>(x[n]));
    }
    for (Checked& t : all) {
      ASSERT_NE(t.tanh, nullptr) << Name(t.target);
      t.tanh(x.data(), y.data(), kChunk);
      t.tanh(minus_x.data(), minus_y.data(), kChunk);
      for (size_t n = 0; n < kChunk; ++n) {
        if (std::isnan(x[n])) {
          if (!std::isnan(y[n]) || !std::isnan(minus_y[n]))
            FAIL() << Name(t.target) << " hides NaN " << ToBits(x[n]);
          continue;
        }
        if (ToBits(minus_y[n]) != (ToBits(y[n]) | kSign))
          FAIL() << Name(t.target) << " is not odd at " << x[n];
        if (!(y[n] <= 1.0f)) FAIL() << Name(t.target) << " exceeds 1 at " << x[n];
        if (x[n] >= kTanhIsOne && y[n] != 1.0f) FAIL() << Name(t.target) << " is not 1 at " << x[n];
        const double error = std::fabs(static_cast<double>(y[n]) - want[n]);
        // at 0 there must be no error
        if (!(error <= t.worst * want[n])) t.worst = error / want[n], t.where = x[n];
      }
    }
  }
  for (const Checked& t : all) {
    EXPECT_LE(t.worst, kTanhError)
        << Name(t.target) << " at " << t.where << ": " << t.worst * 0x1p24 << " * 2^-24";
  }
}

TEST(TanhTest, IsOddAndBoundedAndItsErrorSmallOnASampleOfAllFloats) {
  CheckTanh(static_cast<uint32_t>(1021 * test::GridStep()));
}

TEST(TanhTest, SlowIsOddAndBoundedAndItsErrorSmallOnEveryFloat) { CheckTanh(1); }

TEST(TanhTest, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float least = std::numeric_limits<float>::min();
  const float most = std::numeric_limits<float>::max();
  for (Target target : TargetsWithFunctions()) {
    // In every lane, beside ordinary values.
    for (size_t lane = 0; lane < 16; ++lane) {
      for (float special : {0.0f, tiny, 1000 * tiny, least, 1e-30f, 1e-5f, kTanhIsOne, 20.0f, 2e19f,
                            most, kInf, nan}) {
        for (float sign : {1.0f, -1.0f}) {
          const float value = sign * special;
          std::vector<float> x(16, 0.5f);
          x[lane] = value;
          const std::vector<float> y = Apply(TanhFor(target), x);
          if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(y[lane])) << Name(target);
          } else {
            // tanh(x) rounds to x below 2⁻¹³.
            EXPECT_EQ(ToBits(y[lane]), ToBits(special < 1 ? value : sign))
                << Name(target) << " " << value;
          }
          for (size_t n = 0; n < 16; ++n) {
            if (n != lane) {
              EXPECT_NEAR(y[n], 0.46211716f, 0.46211716 * kTanhError + 0x1p-25) << Name(target);
            }
          }
        }
      }
    }
  }
}

// One key and one channel of 1: the lse of query s is its score, c·tanh(s/c).
TEST(SoftcapTest, IsRightForEveryFiniteCap) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float least = std::numeric_limits<float>::min();
  const float most = std::numeric_limits<float>::max();
  for (const test::Kernel& kernel : test::Kernels()) {
    for (float cap : {tiny, 100 * tiny, 1e-39f, 0x1p-128f, std::nextafter(0x1p-128f, 1.0f), least,
                      1e-30f, 0.01f, 1.0f, 50.0f, 1000.0f, 1e30f, 0x1p126f,
                      std::nextafter(0x1p126f, kInf), 0x1p127f, most}) {
      std::vector<float> s = {0.0f, tiny, 1e-42f, least, 1e-20f, 1e-3f,
                              1.0f, 7.0f, 1e10f,  most,  kInf};
      for (float ratio : {1e-6f, 1e-3f, 0.1f, 0.5f, 1.0f, 3.0f, 7.25f, 8.2f, 8.3f, 100.0f})
        s.push_back(std::min(ratio * cap, most));
      for (size_t n = 0, count = s.size(); n < count; ++n) s.push_back(-s[n]);
      s.push_back(std::numeric_limits<float>::quiet_NaN());
      const int64_t Tq = static_cast<int64_t>(s.size());
      const float one[] = {1.0f};
      std::vector<float> out(s.size()), lse(s.size());
      Problem p;
      p.q = View(s.data(), {1, 1, Tq, 1});
      p.k = View(one, {1, 1, 1, 1});
      p.v = View(one, {1, 1, 1, 1});
      p.out = View(out.data(), {1, 1, Tq, 1});
      p.lse = View(lse.data(), {1, 1, Tq});
      p.score.scale = 1.0f;
      p.score.softcap = cap;
      ASSERT_TRUE(Attention(p, test::Options(kernel), SerialExecutor()).ok());
      const double c = static_cast<double>(cap);
      for (size_t n = 0; n < s.size(); ++n) {
        if (std::isnan(s[n])) {
          EXPECT_TRUE(std::isnan(lse[n])) << ToString(kernel) << " cap " << cap;
          continue;
        }
        const double want = c * std::tanh(static_cast<double>(s[n]) / c);
        // s/c is rounded twice at most (1/c and its product); a subnormal result is rounded to a
        // multiple of the least float.
        const double bound =
            std::fabs(want) * (kTanhError + 2 * 0x1p-24) + static_cast<double>(tiny) / 2;
        EXPECT_LE(std::fabs(static_cast<double>(lse[n]) - want), bound)
            << ToString(kernel) << " cap " << cap << " score " << s[n] << " got " << lse[n];
        EXPECT_LE(std::fabs(lse[n]), cap) << ToString(kernel) << " score " << s[n];
      }
    }
  }
}

}  // namespace
}  // namespace fovea
#endif  // HWY_ONCE
