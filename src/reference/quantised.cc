// Quantised elements, one by one, in plain words.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::reference {
namespace {

uint8_t Byte(const void* p, int64_t n) { return static_cast<const uint8_t*>(p)[n]; }

float HalfAt(const void* p, int64_t n) {
  return static_cast<float>(FromF16(static_cast<uint16_t>(Byte(p, n) | Byte(p, n + 1) << 8)));
}

// A number of one sign bit, `exponent_bits` and `fraction_bits`; below the largest exponent or of
// it.
double SmallFloat(uint8_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7f) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double one = 1 << fraction_bits;
  const double magnitude = exponent == 0 ? std::ldexp(fraction / one, 1 - bias)
                                         : std::ldexp(1 + fraction / one, exponent - bias);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

double FromE4M3FN(uint8_t bits) {
  return (bits & 0x7f) == 0x7f ? std::numeric_limits<double>::quiet_NaN() : SmallFloat(bits, 4, 3);
}

double FromE5M2(uint8_t bits) {
  if ((bits & 0x7f) < 0x7c) return SmallFloat(bits, 5, 2);
  if ((bits & 0x7f) > 0x7c) return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return (bits & 0x80) != 0 ? -infinity : infinity;
}

int Nibble(uint8_t byte, bool high) { return high ? byte >> 4 : byte & 15; }

// Of blocks: element j is in the low nibble of byte j, j + 16 in the high one.
int BlockNibble(const void* unit, int64_t first, int element) {
  return Nibble(Byte(unit, first + element % 16), element >= 16);
}
// Its fifth bit, of 32 bits from byte `first` on.
int FifthBit(const void* unit, int64_t first, int element) {
  return (Byte(unit, first + element / 8) >> (element % 8) & 1) << 4;
}

constexpr int kIQ4NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};

double Product(int n, float scale) {
  const float x = static_cast<float>(n) * scale;
  return x;
}
double ProductAndSum(int n, float scale, float least) {
  const float product = static_cast<float>(n) * scale;
  const float x = product + least;
  return x;
}

}  // namespace

double DecodeQuantised(DType dtype, const void* unit, int element) {
  const bool odd = element % 2 != 0;
  switch (dtype) {
    case DType::kI8:
      return static_cast<int8_t>(Byte(unit, 0));
    case DType::kU8:
      return Byte(unit, 0);
    case DType::kI4:
      return Nibble(Byte(unit, 0), odd) - 8;
    case DType::kU4:
      return Nibble(Byte(unit, 0), odd);
    case DType::kI4High:
      return Nibble(Byte(unit, 0), !odd) - 8;
    case DType::kU4High:
      return Nibble(Byte(unit, 0), !odd);
    case DType::kF8E4M3FN:
      return FromE4M3FN(Byte(unit, 0));
    case DType::kF8E5M2:
      return FromE5M2(Byte(unit, 0));
    case DType::kQ8_0:
      return Product(static_cast<int8_t>(Byte(unit, 2 + element)), HalfAt(unit, 0));
    case DType::kQ4_0:
      return Product(BlockNibble(unit, 2, element) - 8, HalfAt(unit, 0));
    case DType::kQ4_1:
      return ProductAndSum(BlockNibble(unit, 4, element), HalfAt(unit, 0), HalfAt(unit, 2));
    case DType::kQ5_0:
      return Product((BlockNibble(unit, 6, element) | FifthBit(unit, 2, element)) - 16,
                     HalfAt(unit, 0));
    case DType::kQ5_1:
      return ProductAndSum(BlockNibble(unit, 8, element) | FifthBit(unit, 4, element),
                           HalfAt(unit, 0), HalfAt(unit, 2));
    case DType::kIQ4NL:
      return Product(kIQ4NL[BlockNibble(unit, 2, element)], HalfAt(unit, 0));
    default:
      break;
  }
  // no such type: validation refuses it before anybody reads
  return std::numeric_limits<double>::quiet_NaN();
}

double CodedAt(const TensorView& codes, const TensorView& scale, const TensorView& zero,
               int64_t group_stride, int64_t b, int64_t h, int64_t j, int64_t c) {
  if (!HasScaleViews(codes.dtype)) return At(codes, b, h, j, c);
  double u;
  if (group_stride == 0) {
    u = At(codes, b, h, j, c);
  } else {
    const int64_t groups =
        std::max(scale.present() ? scale.shape[3] : 1, zero.present() ? zero.shape[3] : 1);
    const int64_t channels = codes.shape[3] / groups;
    TensorView group = codes;
    group.data = static_cast<const char*>(codes.data) + c / channels * group_stride;
    u = At(group, b, h, j, c % channels);
  }
  const int64_t index[kMaxRank] = {b, h, j, c};
  // Element a of the codes' axis uses element ⌊a·n / all⌋ of the scales' axis.
  const auto address = [&](const TensorView& view) {
    const char* p = static_cast<const char*>(view.data);
    for (int a = 0; a < kMaxRank; ++a)
      p += index[a] * view.shape[a] / codes.shape[a] * view.stride[a];
    return p;
  };
  float s = 1, z = 0;
  if (scale.present()) s = static_cast<float>(DecodeElement(scale.dtype, address(scale)));
  if (zero.present()) z = static_cast<float>(DecodeElement(zero.dtype, address(zero)));
  if (scale.dtype == DType::kF32Z4) {
    uint32_t bits;
    std::memcpy(&bits, address(scale), sizeof(bits));
    z = static_cast<float>(bits & 15);
  }
  const float difference = static_cast<float>(u) - z;
  const float x = difference * s;
  return x;
}

double KeyAt(const Problem& problem, int64_t batch, int64_t head, int64_t row, int64_t channel) {
  return CodedAt(problem.k, problem.k_scale, problem.k_zero, problem.k_group_stride, batch, head,
                 row, channel);
}

double ValueAt(const Problem& problem, int64_t batch, int64_t head, int64_t row, int64_t channel) {
  return CodedAt(problem.v, problem.v_scale, problem.v_zero, problem.v_group_stride, batch, head,
                 row, channel);
}

}  // namespace fovea::reference
