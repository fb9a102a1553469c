// Views: what they compute from shapes and strides, and the helpers that make them.
#include "fovea/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "support/owned_tensor.h"
#include "support/pairwise.h"

namespace fovea {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16, DType::kBF16,
                            DType::kBool, DType::kI32, DType::kI64};

struct PackedType {
  DType dtype;
  const char* name;
  int64_t elements, bytes;  // of a unit
};
constexpr PackedType kQuantised[] = {
    {DType::kI8, "i8", 1, 1},
    {DType::kU8, "u8", 1, 1},
    {DType::kI4, "i4", 2, 1},
    {DType::kU4, "u4", 2, 1},
    {DType::kI4High, "i4_high", 2, 1},
    {DType::kU4High, "u4_high", 2, 1},
    {DType::kF8E4M3FN, "f8_e4m3fn", 1, 1},
    {DType::kF8E5M2, "f8_e5m2", 1, 1},
    {DType::kQ8_0, "q8_0", 32, 34},
    {DType::kQ4_0, "q4_0", 32, 18},
    {DType::kQ4_1, "q4_1", 32, 20},
    {DType::kQ5_0, "q5_0", 32, 22},
    {DType::kQ5_1, "q5_1", 32, 24},
    {DType::kIQ4NL, "iq4_nl", 32, 18},
};

TEST(DTypeTest, QuantisedTypesHaveUnits) {
  int32_t value = 8;
  for (const PackedType& type : kQuantised) {
    EXPECT_EQ(static_cast<int32_t>(type.dtype), value++);
    EXPECT_STREQ(Name(type.dtype), type.name);
    EXPECT_EQ(UnitElements(type.dtype), type.elements);
    EXPECT_EQ(UnitBytes(type.dtype), type.bytes);
    EXPECT_EQ(SizeOf(type.dtype), type.elements == 1 ? type.bytes : 0);
    EXPECT_TRUE(IsQuantised(type.dtype));
    EXPECT_EQ(HasScaleViews(type.dtype), type.elements < 32);
    EXPECT_EQ(BytesOf(type.dtype, 64), 64 / type.elements * type.bytes);
    EXPECT_EQ(BytesOf(type.dtype, 65), (65 + type.elements - 1) / type.elements * type.bytes);
    const char data[1] = {};
    const TensorView view = View(data, type.dtype, {2, 3, 5, 64});
    const int64_t row = BytesOf(type.dtype, 64);
    EXPECT_EQ(view.stride[3], type.bytes);
    EXPECT_EQ(view.stride[2], row);
    EXPECT_EQ(view.stride[1], 5 * row);
    EXPECT_EQ(view.stride[0], 15 * row);
  }
  for (DType type : kTypes) EXPECT_FALSE(IsQuantised(type));
  EXPECT_FALSE(IsQuantised(DType::kF32Z4));
  EXPECT_EQ(SizeOf(DType::kF32Z4), 4);
  EXPECT_STREQ(Name(DType::kF32Z4), "f32_z4");
}

TEST(DTypeTest, SizesAndNames) {
  const int64_t sizes[] = {4, 2, 2, 1, 4, 8};
  const char* const names[] = {"f32", "f16", "bf16", "bool", "i32", "i64"};
  for (int n = 0; n < 6; ++n) {
    EXPECT_EQ(SizeOf(kTypes[n]), sizes[n]);
    EXPECT_STREQ(Name(kTypes[n]), names[n]);
  }
  for (DType sizeless : {DType::kNone, DType::kBit}) EXPECT_EQ(SizeOf(sizeless), 0);
  EXPECT_STREQ(Name(DType::kNone), "none");
  EXPECT_STREQ(Name(DType::kBit), "bit");
}

TEST(DTypeTest, ValuesOutsideTheEnumerationHaveNoSizeAndAreUnknown) {
  for (int value : {-1, 23, 99, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_EQ(SizeOf(static_cast<DType>(value)), 0) << value;
    EXPECT_STREQ(Name(static_cast<DType>(value)), "unknown") << value;
  }
}

TEST(ViewTest, DefaultIsAbsent) {
  const TensorView view;
  EXPECT_FALSE(view.present());
  EXPECT_EQ(view.size(), 0);
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(view.dtype, DType::kNone);
}

TEST(ViewTest, DenseStridesAreInBytesAndInCOrder) {
  const float data[1] = {};
  const TensorView view = View(data, {2, 3, 5, 7});
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.rank, 4);
  EXPECT_EQ(view.dtype, DType::kF32);
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.size(), 210);
  const int64_t shape[] = {2, 3, 5, 7}, stride[] = {420, 140, 28, 4};
  for (int a = 0; a < 4; ++a) {
    EXPECT_EQ(view.shape[a], shape[a]);
    EXPECT_EQ(view.stride[a], stride[a]);
  }
}

TEST(ViewTest, ElementStridesScaleByTheElementSize) {
  const int64_t data[1] = {};
  const TensorView view = View(data, {4, 2}, {-3, 0});
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.dtype, DType::kI64);
  EXPECT_EQ(view.stride[0], -24);
  EXPECT_EQ(view.stride[1], 0);
}

TEST(ViewTest, ConstnessOfTheDataDecidesTheKindOfView) {
  float data[6] = {};
  const float* const constant = data;
  static_assert(std::is_same_v<decltype(View(data, {2, 3})), MutableTensorView>);
  static_assert(std::is_same_v<decltype(View(constant, {2, 3})), TensorView>);
  EXPECT_EQ(View(data, {2, 3}).data, data);
}

TEST(ViewTest, EachElementTypeHasItsDType) {
  const bool b[1] = {};
  const int32_t i[1] = {};
  EXPECT_EQ(View(b, {1}).dtype, DType::kBool);
  EXPECT_EQ(View(i, {1}).dtype, DType::kI32);
  for (DType dtype : kTypes) {
    const TensorView view = View(static_cast<const void*>(b), dtype, {3, 2});
    EXPECT_EQ(view.dtype, dtype);
    EXPECT_EQ(view.stride[1], SizeOf(dtype));
    EXPECT_EQ(view.stride[0], 2 * SizeOf(dtype));
  }
}

TEST(ViewTest, RowsOfBitsAreWholeBytes) {
  const unsigned char data[1] = {};
  const TensorView view = BitView(data, {2, 3, 17});
  EXPECT_EQ(view.dtype, DType::kBit);
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.size(), 2 * 3 * 17);
  const int64_t shape[] = {2, 3, 17}, stride[] = {9, 3, 1};
  for (int a = 0; a < 3; ++a) {
    EXPECT_EQ(view.shape[a], shape[a]);
    EXPECT_EQ(view.stride[a], stride[a]);
  }
  EXPECT_EQ(BitView(data, {5, 16}).stride[0], 2);
  EXPECT_EQ(BitView(data, {5, 1}).stride[0], 1);
  EXPECT_EQ(BitView(data, {5, 0}).stride[0], 0);
  static_assert(BitView(static_cast<const void*>(nullptr), {8}).stride[0] == 1);
}

TEST(ViewTest, ZeroSizedAxesMakeAnEmptyButPresentView) {
  const float data[1] = {};
  const TensorView view = View(data, {2, 0, 3});
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.size(), 0);
}

TEST(ViewTest, SizesDoNotOverflowAtThirtyTwoBits) {
  const float data[1] = {};
  const TensorView view = View(data, {int64_t{1} << 20, int64_t{1} << 20});
  EXPECT_EQ(view.size(), int64_t{1} << 40);
  EXPECT_EQ(view.stride[0], int64_t{1} << 22);
}

TEST(ViewTest, SwapAxesExchangesShapeAndStrideAndIsItsOwnInverse) {
  const float data[1] = {};
  const TensorView bthd = View(data, {2, 3, 5, 7});
  const TensorView bhtd = SwapAxes(bthd, 1, 2);
  EXPECT_EQ(bhtd.data, bthd.data);
  EXPECT_EQ(bhtd.shape[1], 5);
  EXPECT_EQ(bhtd.shape[2], 3);
  EXPECT_EQ(bhtd.stride[1], bthd.stride[2]);
  EXPECT_EQ(bhtd.stride[2], bthd.stride[1]);
  const TensorView back = SwapAxes(bhtd, 2, 1);
  for (int a = 0; a < 4; ++a) {
    EXPECT_EQ(back.shape[a], bthd.shape[a]);
    EXPECT_EQ(back.stride[a], bthd.stride[a]);
  }
  const TensorView same = SwapAxes(bthd, 2, 2);
  EXPECT_EQ(same.shape[2], 5);
  EXPECT_EQ(same.stride[2], 28);
}

TEST(ViewTest, ReadingAViewForWritingKeepsEverything) {
  float data[6] = {};
  const MutableTensorView view = View(data, {2, 3}, {-5, 2});
  const TensorView constant = view;
  EXPECT_EQ(constant.data, data);
  EXPECT_EQ(constant.dtype, DType::kF32);
  EXPECT_EQ(constant.rank, 2);
  for (int a = 0; a < kMaxRank; ++a) {
    EXPECT_EQ(constant.shape[a], view.shape[a]);
    EXPECT_EQ(constant.stride[a], view.stride[a]);
  }
}

TEST(ViewTest, AViewForWritingIsOneForReadingAndNotTheOtherWayRound) {
  static_assert(std::is_convertible_v<MutableTensorView, TensorView>);
  static_assert(!std::is_convertible_v<TensorView, MutableTensorView>);
  float data[6] = {};
  const TensorView view = View(data, {2, 3});
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.stride[0], 12);
}

TEST(ViewTest, ViewsAreMadeAtCompileTime) {
  static constexpr float kData[4] = {1, 2, 3, 4};
  constexpr TensorView view = SwapAxes(View(kData, {2, 2}), 0, 1);
  static_assert(view.stride[0] == 4 && view.stride[1] == 8 && view.size() == 4);
  SUCCEED();
}

// The tests' own tools: wrong tools prove nothing.

TEST(OwnedTensorTest, ElementsKeepTheirValuesInEveryLayoutAndPlace) {
  for (test::Layout layout : test::kLayouts) {
    for (test::Placement placement : test::kPlacements) {
      test::OwnedTensor tensor(DType::kF32, {2, 3, 4, 5}, {layout, placement});
      EXPECT_TRUE(tensor.Untouched());
      for (int64_t n = 0; n < tensor.size(); ++n) tensor.Set(n, static_cast<double>(n));
      EXPECT_TRUE(tensor.PaddingUntouched());
      EXPECT_FALSE(tensor.Untouched());
      const TensorView view = tensor.view();
      int64_t n = 0;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 3; ++h) {
          for (int64_t t = 0; t < 4; ++t) {
            for (int64_t d = 0; d < 5; ++d, ++n) {
              float value;
              std::memcpy(&value,
                          static_cast<const char*>(view.data) + b * view.stride[0] +
                              h * view.stride[1] + t * view.stride[2] + d * view.stride[3],
                          sizeof value);
              ASSERT_EQ(value, static_cast<float>(n)) << ToString(test::Storage{layout, placement});
            }
          }
        }
      }
    }
  }
}

TEST(OwnedTensorTest, BitsKeepTheirValuesInEveryLayoutAndPlace) {
  test::Random random(test::BaseSeed());
  for (test::Layout layout : test::kLayouts) {
    for (test::Placement placement : test::kPlacements) {
      for (int64_t keys : {1, 8, 13, 16, 21}) {
        SCOPED_TRACE(ToString(test::Storage{layout, placement}) + " keys " + std::to_string(keys));
        test::OwnedTensor tensor(DType::kBit, {2, 3, 4, keys}, {layout, placement});
        EXPECT_TRUE(tensor.Untouched());
        std::vector<unsigned char> bits;
        for (int64_t n = 0; n < tensor.size(); ++n) {
          bits.push_back(random.Chance(0.5) ? 1 : 0);
          tensor.Set(n, bits.back());
        }
        EXPECT_TRUE(tensor.PaddingUntouched());
        EXPECT_EQ(tensor.Bytes(), bits);
        EXPECT_EQ(tensor.CopiedTo({}).Bytes(), bits);
        const TensorView view = tensor.view();
        EXPECT_EQ(view.stride[3], 1);
        int64_t n = 0;
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t h = 0; h < 3; ++h) {
            for (int64_t t = 0; t < 4; ++t) {
              for (int64_t j = 0; j < keys; ++j, ++n) {
                const unsigned char byte = static_cast<const unsigned char*>(
                    view.data)[b * view.stride[0] + h * view.stride[1] + t * view.stride[2] +
                               j / 8];
                ASSERT_EQ(byte >> (j % 8) & 1, bits[static_cast<size_t>(n)]) << n;
                ASSERT_EQ(tensor.Get(n), bits[static_cast<size_t>(n)]) << n;
              }
            }
          }
        }
      }
    }
  }
}

TEST(OwnedTensorTest, BroadcastAxesHaveStrideZero) {
  const test::OwnedTensor tensor(DType::kF32, {2, 3, 4, 5},
                                 {test::Layout::kDense, test::Placement::kBeforeGuard, 0b0110});
  EXPECT_EQ(tensor.view().stride[1], 0);
  EXPECT_EQ(tensor.view().stride[2], 0);
  EXPECT_EQ(tensor.view().stride[0], 20);
  const test::OwnedTensor bits(DType::kBit, {2, 3, 20},
                               {test::Layout::kDense, test::Placement::kAligned, 0b0110});
  EXPECT_EQ(bits.view().stride[0], 3);
  EXPECT_EQ(bits.view().stride[1], 0);
  EXPECT_EQ(bits.view().stride[2], 1);
}

TEST(OwnedTensorTest, HalfPrecisionRoundTrips) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const uint16_t in = static_cast<uint16_t>(bits);
      const double value = test::DecodeElement(dtype, &in);
      uint16_t out = 0;
      test::EncodeElement(dtype, value, &out);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(test::DecodeElement(dtype, &out)));
      } else {
        ASSERT_EQ(in, out) << Name(dtype) << " " << value;
      }
    }
  }
}

TEST(PairwiseTest, EveryPairOccursInFewRows) {
  const std::vector<int> levels = {3, 7, 2, 5, 4, 4};
  const auto rows = test::CoverPairs(levels, 1);
  for (size_t f = 0; f < levels.size(); ++f) {
    for (size_t g = f + 1; g < levels.size(); ++g) {
      for (int x = 0; x < levels[f]; ++x) {
        for (int y = 0; y < levels[g]; ++y) {
          bool found = false;
          for (const auto& row : rows) found = found || (row[f] == x && row[g] == y);
          ASSERT_TRUE(found) << f << "=" << x << " " << g << "=" << y;
        }
      }
    }
  }
  EXPECT_LT(rows.size(), 2u * 7 * 5);  // 35 is the least possible
}

}  // namespace
}  // namespace fovea
