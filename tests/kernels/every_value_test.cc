// Every value of f16 and bf16: inputs are widened exactly, and outputs rounded to nearest, ties to
// even.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "reference/element.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Kernel;
using test::kFloatTypes;
using test::kNarrowTypes;
using test::Layout;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;

double ValueOf(DType type, uint16_t bits) {
  return type == DType::kF16 ? reference::FromF16(bits) : reference::FromBF16(bits);
}

// With one key, out is its value and lse its score, without any rounding in between. A value for
// each of 2^16 patterns.
constexpr int64_t kHeads = 64, kChannels = 1024;

ProblemSpec OneKey() {
  ProblemSpec s;
  s.Hq = s.Hkv = kHeads, s.dk = 1, s.dv = kChannels, s.scale = 1.0f;
  return s;
}

TEST(EveryValueTest, OfVIsWidenedExactly) {
  for (DType type : kNarrowTypes) {
    for (Layout layout : {Layout::kDense, Layout::kSparse}) {
      ProblemSpec s = OneKey();
      s.v_type = type, s.v.layout = layout;
      RandomProblem p(s, 1);
      for (int64_t n = 0; n < p.v.size(); ++n) {
        const uint16_t bits = static_cast<uint16_t>(n);
        const int64_t head = n / kChannels, channel = n % kChannels;
        char* const at = static_cast<char*>(p.v.mutable_view().data) + head * p.v.view().stride[1] +
                         channel * p.v.view().stride[3];
        std::memcpy(at, &bits, sizeof(bits));
      }
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 2)) {
        RunOn(kernel, p);
        for (int64_t n = 0; n < p.v.size(); ++n) {
          const double want = ValueOf(type, static_cast<uint16_t>(n)), got = p.out.Get(n);
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
              << ToString(kernel) << " " << Name(type) << " " << std::hex << n << std::dec << " = "
              << got << ", expected " << want;
        }
      }
    }
  }
}

TEST(EveryValueTest, OfQAndKIsWidenedExactly) {
  // Head h has value h in one channel of 33, so that it stands in vectors and in tails; a one in
  // the other tensor picks it.
  const int64_t heads = 1 << 14, d = 33;
  for (DType type : kNarrowTypes) {
    for (bool in_q : {false, true}) {
      for (int64_t part : test::Thinned(test::Numbers(0, 3))) {
        ProblemSpec s;
        s.Hq = s.Hkv = heads, s.dk = d, s.scale = 1.0f;
        (in_q ? s.q_type : s.k_type) = type;
        RandomProblem p(s, 1);
        p.q.Fill([] { return 0; });
        p.k.Fill([] { return 0; });
        for (int64_t h = 0; h < heads; ++h) {
          const double value = ValueOf(type, static_cast<uint16_t>(part * heads + h));
          (in_q ? p.q : p.k).SetAt({0, h, 0, h % d}, std::isfinite(value) ? value : 0);
          (in_q ? p.k : p.q).SetAt({0, h, 0, h % d}, 1);
        }
        for (const Kernel& kernel : test::Kernels()) {
          RunOn(kernel, p);
          for (int64_t h = 0; h < heads; ++h) {
            ASSERT_EQ(p.lse.Get(h), (in_q ? p.q : p.k).At({0, h, 0, h % d}))
                << ToString(kernel) << " " << Name(type) << (in_q ? " q " : " k ") << std::hex
                << part * heads + h;
          }
        }
      }
    }
  }
}

TEST(EveryValueTest, OfOutIsRoundedToNearestEven) {
  // Each value, the middle between it and its successor, and the floats beside the middle: NaN,
  // infinities, subnormals and overflow among them.
  for (DType type : kNarrowTypes) {
    for (Layout layout : {Layout::kDense, Layout::kSparse}) {
      for (int shift : test::Thinned({0, 1, 2, 3})) {
        ProblemSpec s = OneKey();
        s.out_type = type, s.out.layout = layout;
        RandomProblem p(s, 1);
        for (int64_t n = 0; n < p.v.size(); ++n) {
          const uint16_t bits = static_cast<uint16_t>(n);
          double x = ValueOf(type, bits);
          if (shift > 0 && std::isfinite(x)) {
            double next = ValueOf(type, static_cast<uint16_t>(bits + 1));
            if (!std::isfinite(next)) next = 2 * x - ValueOf(type, static_cast<uint16_t>(bits - 1));
            x = (x + next) / 2;
            if (shift == 2)
              x = static_cast<double>(
                  std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()));
            if (shift == 3)
              x = static_cast<double>(
                  std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity()));
          }
          p.v.Set(n, x);
        }
        std::vector<double> wanted;
        for (double x : p.v.Dense()) wanted.push_back(reference::Rounded(type, x));
        for (const Kernel& kernel : test::Kernels()) {
          RunOn(kernel, p);
          for (int64_t n = 0; n < p.v.size(); ++n) {
            const double want = wanted[static_cast<size_t>(n)], got = p.out.Get(n);
            ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
                << ToString(kernel) << " " << Name(type) << " of " << p.v.Get(n) << " = " << got
                << ", expected " << want;
          }
        }
        EXPECT_TRUE(p.OutputPaddingUntouched());
      }
    }
  }
}

TEST(EveryValueTest, RoundedIsWhatTheTestsStore) {
  // Two implementations that know nothing of each other.
  test::Random random(test::BaseSeed());
  for (DType type : kFloatTypes) {
    for (int64_t n = 0; n < 100000; n += test::GridStep()) {
      const uint32_t bits = static_cast<uint32_t>(random.Bits());
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      if (std::isnan(x)) continue;
      char stored[4];
      test::EncodeElement(type, static_cast<double>(x), stored);
      ASSERT_EQ(test::DecodeElement(type, stored), reference::Rounded(type, static_cast<double>(x)))
          << Name(type) << " " << x;
    }
  }
}

}  // namespace
}  // namespace fovea
