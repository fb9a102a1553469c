#include "reference/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace fovea::reference {
namespace {

template <class T>
T Load(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));  // any alignment
  return value;
}

const char* Address(const TensorView& x, const int64_t (&index)[kMaxRank]) {
  const char* address = static_cast<const char*>(x.data);
  for (int a = 0; a < x.rank; ++a) address += index[a] * x.stride[a];
  return address;
}

bool BitAt(const TensorView& x, const int64_t (&index)[kMaxRank]) {
  const char* row = static_cast<const char*>(x.data);
  for (int a = 0; a < x.rank - 1; ++a) row += index[a] * x.stride[a];
  const int64_t element = index[x.rank - 1];
  return (Load<uint8_t>(row + element / 8) >> (element % 8) & 1) != 0;
}

// The unit that the element is in, and its number there.
const char* UnitAddress(const TensorView& x, const int64_t (&index)[kMaxRank], int* element) {
  const char* address = static_cast<const char*>(x.data);
  for (int a = 0; a < x.rank - 1; ++a) address += index[a] * x.stride[a];
  const int64_t last = index[x.rank - 1], elements = UnitElements(x.dtype);
  *element = static_cast<int>(last % elements);
  return address + last / elements * x.stride[x.rank - 1];
}

double Value(const TensorView& x, const int64_t (&index)[kMaxRank]) {
  if (x.dtype == DType::kBit) return BitAt(x, index) ? 1 : 0;
  if (IsQuantised(x.dtype)) {
    int element;
    const char* const unit = UnitAddress(x, index, &element);
    return DecodeQuantised(x.dtype, unit, element);
  }
  return DecodeElement(x.dtype, Address(x, index));
}

}  // namespace

double FromF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  double magnitude;
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double FromBF16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double Rounded(DType dtype, double x) {
  if (dtype == DType::kF32) return static_cast<float>(x);
  const bool f16 = dtype == DType::kF16;
  const int digits = f16 ? 11 : 8;          // of a significand, the leading one included
  const int least_unit = f16 ? -24 : -133;  // the exponent of the smallest subnormal
  const double largest = f16 ? 65504 : 0x1.FEp127;
  if (x == 0 || !std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x) - (digits - 1), least_unit);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                      : rounded;
}

double StoredBound(DType dtype, double got, double want, double bound) {
  // the contract's bound counts the rounding of f32
  if (dtype == DType::kF32 || !std::isfinite(want)) return bound;
  return std::max(
      0.0, got < want ? want - Rounded(dtype, want - bound) : Rounded(dtype, want + bound) - want);
}

double DecodeElement(DType dtype, const void* address) {
  switch (dtype) {
    case DType::kF32:
      return Load<float>(address);
    case DType::kF16:
      return FromF16(Load<uint16_t>(address));
    case DType::kBF16:
      return FromBF16(Load<uint16_t>(address));
    case DType::kBool:
      return Load<uint8_t>(address) != 0 ? 1 : 0;
    case DType::kI32:
      return Load<int32_t>(address);
    case DType::kI64:
      return static_cast<double>(Load<int64_t>(address));
    case DType::kF32Z4: {
      const uint32_t bits = Load<uint32_t>(address) & ~uint32_t{15};
      return Load<float>(&bits);
    }
    case DType::kI8:
    case DType::kU8:
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
      return DecodeQuantised(dtype, address, 0);
    default:  // packed: no address of its own
      break;
  }
  // no such type: validation refuses it before anybody reads
  return std::numeric_limits<double>::quiet_NaN();
}

double At(const TensorView& x, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  if (x.dtype != DType::kF32 || x.rank != kMaxRank) return Value(x, {i0, i1, i2, i3});
  // Nearly all that the innermost loops of the reference and of tests read.
  return Load<float>(static_cast<const char*>(x.data) + i0 * x.stride[0] + i1 * x.stride[1] +
                     i2 * x.stride[2] + i3 * x.stride[3]);
}

int64_t IntegerAt(const TensorView& x, int64_t i0, int64_t i1, int64_t i2) {
  const char* address = Address(x, {i0, i1, i2, 0});
  return x.dtype == DType::kI64 ? Load<int64_t>(address) : Load<int32_t>(address);
}

double BroadcastAt(const TensorView& x, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t full[kMaxRank] = {b, h, i, j};
  int64_t index[kMaxRank] = {};
  for (int a = 0; a < x.rank; ++a) index[a] = x.shape[a] == 1 ? 0 : full[kMaxRank - x.rank + a];
  return Value(x, index);
}

std::vector<double> ReadAll(const TensorView& x) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(x.size()));
  int64_t n[kMaxRank] = {1, 1, 1, 1};
  for (int a = 0; a < x.rank; ++a) n[a] = x.shape[a];
  if (x.rank == 0) return values;
  for (int64_t i0 = 0; i0 < n[0]; ++i0) {
    for (int64_t i1 = 0; i1 < n[1]; ++i1) {
      for (int64_t i2 = 0; i2 < n[2]; ++i2) {
        for (int64_t i3 = 0; i3 < n[3]; ++i3) values.push_back(At(x, i0, i1, i2, i3));
      }
    }
  }
  return values;
}

}  // namespace fovea::reference
