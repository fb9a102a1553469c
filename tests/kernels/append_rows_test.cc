// Rows that Append writes are, on every target and bit for bit, what the scalar writers of the
// reference make of them.
#include <gtest/gtest.h>

#include <vector>

#include "fovea/kv_cache.h"
#include "support/append_case.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Format;
using test::OwnedCache;
using test::OwnedRows;
using test::Random;
using test::Values;

// Appends rows to caches of that format for K and V, on every target, and compares.
void ExpectWrittenAsByReference(const Format& format, int64_t d, int64_t group, DType from,
                                bool sparse, const std::vector<Values>& kinds, uint64_t seed) {
  Random random(seed);
  CacheShape shape;
  shape.pages = 2, shape.page = 3, shape.heads = 2, shape.dk = d, shape.dv = d;
  if (HasOwnScale(format)) shape.k.group = shape.v.group = group;
  OwnedCache want(shape, format, format, seed), got(shape, format, format, seed);
  const OwnedRows k(from, 2, 2, 3, d, sparse, kinds, random),
      v(from, 2, 2, 3, d, !sparse, kinds, random);
  NewTokens tokens;
  tokens.k = k.view, tokens.v = v.view;
  const AppendResult expected = reference::Append(want.cache, tokens);
  for (Target target : UsableTargets()) {
    got.Clear();
    AppendOptions options;
    options.target = target;
    AppendResult result;
    const Status status = Append(got.cache, tokens, options, &result, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(SameCaches(got, want))
        << ToString(format) << " on " << Name(target) << ", d " << d << ", group " << group
        << ", from " << Name(from) << (sparse ? " sparse" : "") << ", values "
        << static_cast<int>(kinds[0]) << ", seed " << seed;
    EXPECT_EQ(result.lost_nans, expected.lost_nans) << ToString(format) << Name(target);
  }
}

TEST(AppendRowsTest, EveryFormatAndKindOfValues) {
  uint64_t seed = test::BaseSeed();
  for (const Format& format : test::WrittenFormats()) {
    for (Values values : test::kAllValues) {
      for (DType from : test::Thinned({DType::kF32, DType::kF16, DType::kBF16})) {
        for (bool sparse : test::Thinned({false, true}))
          ExpectWrittenAsByReference(format, 96, 0, from, sparse, {values}, ++seed);
      }
    }
  }
}

TEST(AppendRowsTest, EveryRowSize) {
  uint64_t seed = test::BaseSeed();
  const std::vector<Values> kinds(std::begin(test::kAllValues), std::end(test::kAllValues));
  for (const Format& format : test::WrittenFormats()) {
    for (int64_t units : test::Thinned(test::Numbers(1, 40), 4)) {
      const int64_t d = units * Unit(format);
      ExpectWrittenAsByReference(format, d, 0, DType::kF32, units % 2 == 0, kinds, ++seed);
    }
    // longer than what a kernel takes at once
    for (int64_t d : {1024, 1056, 2176, 5120})
      ExpectWrittenAsByReference(format, d, 0, DType::kBF16, false, kinds, ++seed);
  }
}

TEST(AppendRowsTest, GroupsOfEverySize) {
  uint64_t seed = test::BaseSeed();
  const std::vector<Values> kinds(std::begin(test::kAllValues), std::end(test::kAllValues));
  for (const Format& format : test::WrittenFormats()) {
    if (!HasOwnScale(format)) continue;
    for (int64_t group : {1, 2, 3, 5, 6, 10, 15, 30})
      ExpectWrittenAsByReference(format, 30, group, DType::kF32, false, kinds, ++seed);
    for (int64_t group : {1050, 525, 21, 175, 7})
      ExpectWrittenAsByReference(format, 1050, group, DType::kF16, true, kinds, ++seed);
  }
}

// All values between which f8 and f16 scales are rounded, ties among them.
TEST(AppendRowsTest, EveryF8AndWhatLiesBetween) {
  for (DType type : {DType::kF8E4M3FN, DType::kF8E5M2}) {
    const Format format = {type};
    CacheShape shape;
    const int64_t d = 1 << 16;
    shape.pages = 1, shape.page = 1, shape.heads = 1, shape.dk = d;
    OwnedCache want(shape, format, format, 1), got(shape, format, format, 1);
    std::vector<float> x(static_cast<size_t>(d));
    for (uint32_t n = 0; n < static_cast<uint32_t>(d); ++n) {
      const uint32_t bits = n << 16;  // every bf16: f8 has at most 3 bits of fraction
      std::memcpy(&x[n], &bits, sizeof(bits));
    }
    NewTokens tokens;
    tokens.k = View(x.data(), {1, 1, 1, d});
    reference::Append(want.cache, tokens);
    for (Target target : UsableTargets()) {
      got.Clear();
      AppendOptions options;
      options.target = target;
      ASSERT_TRUE(Append(got.cache, tokens, options, nullptr, SerialExecutor()).ok());
      EXPECT_EQ(got.Bytes(), want.Bytes()) << Name(type) << " on " << Name(target);
    }
  }
}

// What the writers of the reference make of rows that were worked out by hand.
TEST(AppendRowsTest, ReferenceByHand) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  EXPECT_EQ(reference::ToF16(1.0f), 0x3c00);
  EXPECT_EQ(reference::ToF16(-65504.0f), 0xfbff);
  EXPECT_EQ(reference::ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(reference::ToF16(0x1p-24f), 1);
  EXPECT_EQ(reference::ToF16(0x1p-25f), 0);
  EXPECT_EQ(reference::ToF16(nan), 0x7e00);
  EXPECT_EQ(reference::ToBF16(0x1.01p0f), 0x3f80);  // a tie
  EXPECT_EQ(reference::ToBF16(0x1.03p0f), 0x3f82);
  EXPECT_EQ(reference::ToE4M3FN(448.0f), 0x7e);
  EXPECT_EQ(reference::ToE4M3FN(-inf), 0xfe);
  EXPECT_EQ(reference::ToE4M3FN(nan), 0x7f);
  EXPECT_EQ(reference::ToE4M3FN(1.0f), 0x38);
  EXPECT_EQ(reference::ToE4M3FN(0x1p-9f), 0x01);
  EXPECT_EQ(reference::ToE4M3FN(0x1p-10f), 0x00);  // a tie
  EXPECT_EQ(reference::ToE5M2(1.0f), 0x3c);
  EXPECT_EQ(reference::ToE5M2(1e9f), 0x7b);
  EXPECT_EQ(reference::ToE5M2(-0.0f), 0x80);

  unsigned char codes[34];
  float x[32] = {127, -127, 0.5f, 1.5f, -2.5f};  // d = 1
  reference::WriteRow(DType::kQ8_0, x, 32, nullptr, 0, codes, nullptr, nullptr);
  const unsigned char q8_0[] = {0x00, 0x3c, 127, 0x81, 1, 2, 0xfd, 0};
  EXPECT_EQ(std::memcmp(codes, q8_0, sizeof(q8_0)), 0);
  float y[32] = {-8, 7, 7.5f};  // m = −8, d = 1: codes 0, 15, 15 and 8 for 0
  y[16] = -1;
  reference::WriteRow(DType::kQ4_0, y, 32, nullptr, 0, codes, nullptr, nullptr);
  const unsigned char q4_0[] = {0x00, 0x3c, 0x70, 0x8f, 0x8f, 0x88};
  EXPECT_EQ(std::memcmp(codes, q4_0, sizeof(q4_0)), 0);
  float z[32] = {-1, 14};  // d = 1, m = −1: codes 0, 15, and 1 for 0
  reference::WriteRow(DType::kQ4_1, z, 32, nullptr, 0, codes, nullptr, nullptr);
  const unsigned char q4_1[] = {0x00, 0x3c, 0x00, 0xbc, 0x10, 0x1f, 0x11};
  EXPECT_EQ(std::memcmp(codes, q4_1, sizeof(q4_1)), 0);
  float w[32] = {16, -15};  // m = 16, d = −1: codes 0, 31, and 16 for 0
  w[31] = 15;               // 1
  reference::WriteRow(DType::kQ5_0, w, 32, nullptr, 0, codes, nullptr, nullptr);
  const unsigned char q5_0[] = {0x00, 0xbc, 0xfe, 0xff, 0xff, 0x7f, 0x00, 0x0f, 0x00};
  EXPECT_EQ(std::memcmp(codes, q5_0, sizeof(q5_0)), 0);
  EXPECT_EQ(codes[21], 0x10);
  float u[32] = {0, 31, 17};  // d = 1, m = 0
  reference::WriteRow(DType::kQ5_1, u, 32, nullptr, 0, codes, nullptr, nullptr);
  const unsigned char q5_1[] = {0x00, 0x3c, 0, 0, 0x06, 0, 0, 0, 0x00, 0x0f, 0x01, 0};
  EXPECT_EQ(std::memcmp(codes, q5_1, sizeof(q5_1)), 0);

  float scale[2], zero[2];
  const float four[] = {-1, 0, 254, 100};  // scale 1, zero 1
  reference::WriteRow(DType::kU8, four, 4, nullptr, 1, codes, scale, zero);
  EXPECT_EQ(scale[0], 1);
  EXPECT_EQ(zero[0], 1);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[2], 255);
  EXPECT_EQ(codes[3], 101);
  const float constant[] = {3, 3, 3, 3};
  reference::WriteRow(DType::kU8, constant, 4, nullptr, 2, codes, scale, zero);
  EXPECT_EQ(scale[1], 1e-4f);
  EXPECT_EQ(zero[1], -3 / 1e-4f);
  const float small[] = {0, 7.5f, 15, 1};
  reference::WriteRow(DType::kU4High, small, 4, nullptr, 1, codes, scale, zero);
  EXPECT_EQ(codes[0], 0x08);
  EXPECT_EQ(codes[1], 0xf1);
  const float bytes[] = {0, 63.5f, -127, 0.5f};
  reference::WriteRow(DType::kI8, bytes, 4, nullptr, 1, codes, scale, nullptr);
  EXPECT_EQ(scale[0], 1);
  EXPECT_EQ(codes[1], 64);  // halves away from zero
  EXPECT_EQ(codes[3], 1);
  const float ones[] = {1, 1, 1, 1};
  const float fixed[] = {2.5f, -9, nan, 3.5f};  // 2, −8, a lost NaN, 4: halves to even
  EXPECT_EQ(reference::WriteRow(DType::kI4, fixed, 4, ones, 0, codes, nullptr, nullptr), 1);
  EXPECT_EQ(codes[0], 0x0a);
  EXPECT_EQ(codes[1], 0xc8);
}

}  // namespace
}  // namespace fovea
