// Elements of every type and stride, exactly, and how they are rounded.
#include "reference/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace fovea::reference {
namespace {

TEST(Element, HalfPrecisionIsExact) {
  EXPECT_EQ(FromF16(0x0000), 0);
  EXPECT_TRUE(std::signbit(FromF16(0x8000)));
  EXPECT_EQ(FromF16(0x0001), std::ldexp(1, -24));
  EXPECT_EQ(FromF16(0x03ff), std::ldexp(1023, -24));
  EXPECT_EQ(FromF16(0x0400), std::ldexp(1, -14));
  EXPECT_EQ(FromF16(0x3c00), 1);
  EXPECT_EQ(FromF16(0xc500), -5);
  EXPECT_EQ(FromF16(0x7bff), 65504);
  EXPECT_EQ(FromF16(0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(FromF16(0x7c01)));
  for (uint16_t bits = 0; bits < 0x7c00; ++bits)
    ASSERT_LT(FromF16(bits), FromF16(static_cast<uint16_t>(bits + 1))) << bits;
}

TEST(Element, Bfloat16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(FromBF16(0x3f80), 1);
  EXPECT_EQ(FromBF16(0xc0a0), -5);
  EXPECT_EQ(FromBF16(0x0001), std::ldexp(1, -133));
  EXPECT_EQ(FromBF16(0x7f80), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(FromBF16(0x7fc0)));
}

TEST(Element, RoundedIsNearestEven) {
  for (const auto& [dtype, from] :
       {std::pair(DType::kF16, &FromF16), std::pair(DType::kBF16, &FromBF16)}) {
    const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
    EXPECT_EQ(Rounded(dtype, 0), 0);
    EXPECT_TRUE(std::isnan(Rounded(dtype, std::nan(""))));
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const double x = from(bits), next = bits + 1 == infinity
                                              ? 2 * x - from(static_cast<uint16_t>(bits - 1))
                                              : from(static_cast<uint16_t>(bits + 1));
      const double middle = (x + next) / 2,
                   above = bits + 1 == infinity ? std::numeric_limits<double>::infinity() : next;
      ASSERT_EQ(Rounded(dtype, x), x);
      ASSERT_EQ(Rounded(dtype, -x), -x);
      ASSERT_EQ(Rounded(dtype, std::nextafter(middle, 0)), x) << bits;
      ASSERT_EQ(Rounded(dtype, std::nextafter(middle, next)), above) << bits;
      ASSERT_EQ(Rounded(dtype, middle), bits % 2 == 0 ? x : above) << bits;
      ASSERT_EQ(Rounded(dtype, -middle), -(bits % 2 == 0 ? x : above)) << bits;
    }
  }
  EXPECT_EQ(Rounded(DType::kF32, 1 + 0x1p-24), 1);
}

TEST(Element, StoredResultsLieBetweenTheRoundedEndsOfTheirBound) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(StoredBound(DType::kF32, 1, 2, 0.5), 0.5);
  EXPECT_EQ(StoredBound(DType::kF16, 3, 1.0, 0x1p-12), 0);          // 1 + 2^−12 rounds to 1
  EXPECT_EQ(StoredBound(DType::kF16, 3, 1.0, 0x1p-10), 0x1p-10);    // a unit above 1
  EXPECT_EQ(StoredBound(DType::kF16, 0, 1.0, 0x1.8p-12), 0x1p-11);  // half a unit below 1
  EXPECT_EQ(StoredBound(DType::kBF16, 3, 1.001, 0x1p-20), 0);       // nothing above is right: 1 is
  EXPECT_EQ(StoredBound(DType::kF16, inf, 65519, 2), inf);
  EXPECT_EQ(StoredBound(DType::kF16, 0, 65519, 2), 65519 - 65504);
  EXPECT_EQ(StoredBound(DType::kF16, 0, inf, 2), 2);
}

TEST(Element, EveryTypeAndStrideIsRead) {
  const int32_t i32[] = {-3, 7};
  const int64_t i64[] = {-(int64_t{1} << 40), 9};
  const bool flags[] = {true, false};
  const float f32[] = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(At(View(i32, {2}), 0), -3);
  EXPECT_EQ(IntegerAt(View(i64, {2}), 0), -(int64_t{1} << 40));
  EXPECT_EQ(IntegerAt(View(i32, {2}), 1), 7);
  EXPECT_EQ(ReadAll(View(flags, {2})), (std::vector<double>{1, 0}));
  // transposed
  EXPECT_EQ(ReadAll(View(f32, {3, 2}, {1, 3})), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  // backwards
  EXPECT_EQ(ReadAll(View(f32 + 5, {3}, {-2})), (std::vector<double>{6, 4, 2}));
  // repeated
  EXPECT_EQ(ReadAll(View(f32 + 1, {2, 2}, {0, 1})), (std::vector<double>{2, 3, 2, 3}));
  EXPECT_EQ(ReadAll(View(f32, {2, 0, 3})), (std::vector<double>{}));
}

TEST(Element, BroadcastAlignsAtTheRight) {
  const float row[] = {1, 2, 3};
  const float heads[] = {10, 20};
  EXPECT_EQ(BroadcastAt(View(row, {3}), 5, 6, 7, 2), 3);
  EXPECT_EQ(BroadcastAt(View(heads, {2, 1, 1}), 5, 1, 7, 2), 20);
  EXPECT_EQ(BroadcastAt(View(row, {3, 1}), 5, 6, 1, 9), 2);
  EXPECT_EQ(BroadcastAt(View(row, {1, 1, 1, 3}), 4, 4, 4, 0), 1);
}

TEST(Element, BitsAreReadFromTheLowestUpwards) {
  // two rows of ten, the last six bits of each row's second byte unused
  const uint8_t bytes[] = {0b00000101, 0b10, 0b11110000, 0b01};
  const TensorView rows = BitView(bytes, {2, 10});
  EXPECT_EQ(ReadAll(rows),
            (std::vector<double>{1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(At(rows, 1, 8), 1);
  EXPECT_EQ(BroadcastAt(BitView(bytes, {2, 1, 10}), 3, 1, 5, 4), 1);
  EXPECT_EQ(BroadcastAt(BitView(bytes, {1}), 3, 1, 5, 4), 1);
  TensorView turned = rows;  // the rows backwards
  turned.data = bytes + 2;
  turned.stride[0] = -2;
  EXPECT_EQ(At(turned, 0, 0), 0);
  EXPECT_EQ(At(turned, 1, 9), 1);
}

}  // namespace
}  // namespace fovea::reference
