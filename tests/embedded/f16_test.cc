// f16 of the header-only edition: widening and narrowing of every number.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "embedded/support.h"
#include "reference/element.h"

namespace fovea::test {
namespace {

TEST_F(Embedded, EveryHalfIsWidenedExactly) {
  std::vector<uint16_t> all(65536);
  for (size_t n = 0; n < all.size(); ++n) all[n] = static_cast<uint16_t>(n);
  std::vector<float> vectors(all.size());
  Instance().load_halves(all.data(), 65536, vectors.data());
  for (size_t n = 0; n < all.size(); ++n) {
    const double want = DecodeElement(DType::kF16, &all[n]);
    for (float got : {Instance().widened(all[n]), vectors[n]}) {
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << n;
      } else {
        EXPECT_EQ(static_cast<double>(got), want) << n;
        EXPECT_EQ(std::signbit(got), std::signbit(want)) << n;
      }
    }
  }
}

// Every half and both neighbours of every middle between two: ties go to even.
TEST_F(Embedded, NarrowingRoundsToNearestEven) {
  for (uint32_t n = 0; n < 65536; ++n) {
    const uint16_t h = static_cast<uint16_t>(n);
    const float x = Instance().widened(h);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(Instance().widened(Instance().narrowed(x))));
      continue;
    }
    EXPECT_EQ(Instance().narrowed(x), h);
    if ((n & 0x7FFF) >= 0x7C00) continue;
    const double above =
        (n & 0x7FFF) == 0x7BFF
            ? std::copysign(65536.0, x)
            : static_cast<double>(Instance().widened(static_cast<uint16_t>(n + 1)));
    const float middle = static_cast<float>((static_cast<double>(x) + above) / 2);
    EXPECT_EQ(Instance().narrowed(middle), n % 2 == 0 ? h : h + 1) << n;
    EXPECT_EQ(Instance().narrowed(std::nextafterf(middle, 0)), h) << n;
    EXPECT_EQ(Instance().narrowed(std::nextafterf(middle, std::copysign(1e9f, x))), h + 1) << n;
  }
}

}  // namespace
}  // namespace fovea::test
