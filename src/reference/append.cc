#include "reference/append.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "reference/element.h"

namespace fovea::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- rounding ----

// t as a code of least … most; NaN is 0. Truncated toward zero.
int Code(float t, float least, float most) {
  if (std::isnan(t)) return 0;
  return static_cast<int>(std::trunc(std::clamp(t, least, most)));
}

// Rounded to nearest: halves away from zero, and to even.
float Away(float t) { return std::round(t); }
float Even(float t) {
  const float down = std::floor(t);
  if (!std::isfinite(t) || down == t) return t;
  const double rest = static_cast<double>(t) - static_cast<double>(down);
  if (rest != 0.5) return rest < 0.5 ? down : down + 1;
  return std::fmod(down, 2.0f) == 0 ? down : down + 1;
}

uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// |x| as a number of `fraction` bits of fraction behind an exponent of that bias, to nearest even.
// The codes of such numbers are in their order, one after the other.
int SmallFloat(double magnitude, int fraction, int bias) {
  if (magnitude == 0) return 0;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, fraction - exponent));
  return static_cast<int>(units) + ((exponent + bias - 1) << fraction);
}

uint8_t ToF8(float x, int fraction, int bias, double largest) {
  if (std::isnan(x)) return 0x7f;
  const double magnitude = std::min(std::fabs(static_cast<double>(x)), largest);
  return static_cast<uint8_t>(SmallFloat(magnitude, fraction, bias) | (std::signbit(x) ? 0x80 : 0));
}

// ---- what scales are made of ----

struct Extremes {
  float lo, hi;     // the first of equals
  float magnitude;  // the largest |x|
  float signed_;    // the first x of that magnitude; +0 where it is 0
};

Extremes ExtremesOf(const float* x, int64_t n) {
  Extremes e = {x[0], x[0], 0, 0};
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return {kNaN, kNaN, kNaN, kNaN};
    if (x[i] < e.lo) e.lo = x[i];
    if (x[i] > e.hi) e.hi = x[i];
    if (std::fabs(x[i]) > e.magnitude) e.magnitude = std::fabs(x[i]), e.signed_ = x[i];
  }
  return e;
}

float Canonical(float x) { return std::isnan(x) ? kNaN : x; }

float Inverse(float d) { return d == 0 ? 0 : 1 / d; }

// ---- blocks of 32 ----

void PutF16(float x, unsigned char* to) {
  const uint16_t bits = ToF16(x);
  std::memcpy(to, &bits, sizeof(bits));
}

// Low nibbles of elements 0 … 15, high ones of 16 … 31.
void PutNibbles(const int (&n)[32], unsigned char* to) {
  for (int j = 0; j < 16; ++j)
    to[j] = static_cast<unsigned char>((n[j] & 15) | (n[j + 16] & 15) << 4);
}

void PutFifthBits(const int (&n)[32], unsigned char* to) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(n[j] >> 4 & 1) << j;
  std::memcpy(to, &bits, sizeof(bits));
}

void WriteQ8_0(const float* x, unsigned char* to) {
  const float d = ExtremesOf(x, 32).magnitude / 127, id = Inverse(d);
  PutF16(d, to);
  for (int j = 0; j < 32; ++j)
    to[2 + j] = static_cast<unsigned char>(Code(Away(x[j] * id), -128, 127));
}

// q4_0 with half = 8, q5_0 with half = 16.
float WriteSigned(const float* x, float half, int (&n)[32]) {
  const float d = ExtremesOf(x, 32).signed_ / -half, id = Inverse(d);
  for (int j = 0; j < 32; ++j) {
    const float product = x[j] * id;
    n[j] = Code(product + (half + 0.5f), 0, 2 * half - 1);
  }
  return d;
}

// q4_1 with most = 15, q5_1 with most = 31. d and m are stored.
float WriteRanged(const float* x, float most, int (&n)[32], float* m) {
  const Extremes e = ExtremesOf(x, 32);
  const float range = e.hi - e.lo, d = range / most, id = Inverse(d);
  for (int j = 0; j < 32; ++j) {
    const float product = (x[j] - e.lo) * id;
    n[j] = Code(product + 0.5f, 0, most);
  }
  *m = e.lo;
  return d;
}

void WriteBlock(DType dtype, const float* x, unsigned char* to) {
  int n[32];
  float m;
  switch (dtype) {
    case DType::kQ8_0:
      return WriteQ8_0(x, to);
    case DType::kQ4_0:
      PutF16(WriteSigned(x, 8, n), to);
      return PutNibbles(n, to + 2);
    case DType::kQ4_1:
      PutF16(WriteRanged(x, 15, n, &m), to);
      PutF16(m, to + 2);
      return PutNibbles(n, to + 4);
    case DType::kQ5_0:
      PutF16(WriteSigned(x, 16, n), to);
      PutFifthBits(n, to + 2);
      return PutNibbles(n, to + 6);
    default:  // q5_1
      PutF16(WriteRanged(x, 31, n, &m), to);
      PutF16(m, to + 2);
      PutFifthBits(n, to + 4);
      return PutNibbles(n, to + 8);
  }
}

// ---- codes with scales of their own ----

// The groups' codes, one each in n, and their scales.
void WriteGroups(DType dtype, const float* x, int64_t d, int64_t groups, int* n, float* scale,
                 float* zero) {
  for (int64_t g = 0; g < groups; ++g) {
    int64_t begin = 0, end = 0;  // the elements a with ⌊a·groups / d⌋ = g
    while (begin * groups / d < g) ++begin;
    while (end < d && end * groups / d <= g) ++end;
    const Extremes e = ExtremesOf(x + begin, end - begin);
    if (dtype == DType::kI8) {
      scale[g] = std::isnan(e.magnitude) ? kNaN : std::max(e.magnitude / 127, 1e-6f);
      for (int64_t a = begin; a < end; ++a) n[a] = Code(Away(x[a] / scale[g]), -128, 127);
      continue;
    }
    const float most = dtype == DType::kU8 ? 255 : 15;
    const float range = e.hi - e.lo;
    scale[g] = range / most == 0 ? 1e-4f : Canonical(range / most);
    zero[g] = Canonical(-e.lo / scale[g]);
    for (int64_t a = begin; a < end; ++a) {
      const float quotient = x[a] / scale[g];
      n[a] = Code(Away(quotient + zero[g]), 0, most);
    }
  }
}

// Codes of 8 or 4 bits.
void PutCodes(DType dtype, const int* n, int64_t d, unsigned char* to) {
  const bool high = dtype == DType::kI4High || dtype == DType::kU4High;
  if (SizeOf(dtype) == 1) {
    for (int64_t a = 0; a < d; ++a) to[a] = static_cast<unsigned char>(n[a]);
    return;
  }
  for (int64_t a = 0; a < d; a += 2) {
    const int even = n[a], odd = n[a + 1];
    to[a / 2] = static_cast<unsigned char>(high ? even << 4 | odd : odd << 4 | even);
  }
}

// ---- codes with fixed scales ----

int64_t WriteFixed(DType dtype, const float* x, int64_t d, const float* fixed, unsigned char* to) {
  std::vector<int> n(static_cast<size_t>(d));
  int64_t lost = 0;
  for (int64_t a = 0; a < d; ++a) {
    int& code = n[static_cast<size_t>(a)];
    lost += std::isnan(x[a]) ? 1 : 0;
    code = dtype == DType::kI8 ? Code(Even(x[a] / fixed[a]), -128, 127)
                               : 8 + Code(Even(x[a] / fixed[a]), -8, 7);
  }
  PutCodes(dtype, n.data(), d, to);
  return lost;
}

}  // namespace

uint16_t ToF16(float x) {
  const uint16_t sign = static_cast<uint16_t>(BitsOf(x) >> 16 & 0x8000);
  if (std::isnan(x)) return 0x7e00;
  const double magnitude = Rounded(DType::kF16, std::fabs(static_cast<double>(x)));
  const int bits = std::isinf(magnitude) ? 0x7c00 : SmallFloat(magnitude, 10, 15);
  return static_cast<uint16_t>(sign | bits);
}

uint16_t ToBF16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const uint32_t bits = BitsOf(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint8_t ToE4M3FN(float x) { return ToF8(x, 3, 7, 448); }
uint8_t ToE5M2(float x) { return ToF8(x, 2, 15, 57344); }

int64_t WriteRow(DType dtype, const float* x, int64_t d, const float* fixed, int64_t groups,
                 unsigned char* codes, float* scale, float* zero) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(codes, x, static_cast<size_t>(d) * sizeof(float));
      return 0;
    case DType::kF16:
    case DType::kBF16:
      for (int64_t a = 0; a < d; ++a) {
        const uint16_t bits = dtype == DType::kF16 ? ToF16(x[a]) : ToBF16(x[a]);
        std::memcpy(codes + 2 * a, &bits, sizeof(bits));
      }
      return 0;
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
      for (int64_t a = 0; a < d; ++a) {
        const float quotient = fixed == nullptr ? x[a] : x[a] / fixed[a];
        codes[a] = dtype == DType::kF8E4M3FN ? ToE4M3FN(quotient) : ToE5M2(quotient);
      }
      return 0;
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
      for (int64_t a = 0; a < d; a += 32) WriteBlock(dtype, x + a, codes + BytesOf(dtype, a));
      return 0;
    default:
      break;
  }
  if (fixed != nullptr) return WriteFixed(dtype, x, d, fixed, codes);
  std::vector<int> n(static_cast<size_t>(d));
  WriteGroups(dtype, x, d, groups, n.data(), scale, zero);
  PutCodes(dtype, n.data(), d, codes);
  return 0;
}

namespace {

// A row of one head: r of the cache, (b, h, i) of the new ones.
template <class View>
auto* RowIn(const View& view, int64_t b, int64_t h, int64_t i) {
  using Byte = std::conditional_t<std::is_same_v<decltype(view.data), void*>, char, const char>;
  return static_cast<Byte*>(view.data) + b * view.stride[0] + h * view.stride[1] +
         i * view.stride[2];
}

int64_t AppendRow(const TensorView& from, int64_t b, int64_t i, const MutableTensorView& to,
                  const MutableTensorView& scale, const MutableTensorView& zero, bool fixed,
                  int64_t group_stride, int64_t r) {
  const int64_t d = from.shape[3], P = to.shape[2];
  const bool is_f8 = to.dtype == DType::kF8E4M3FN || to.dtype == DType::kF8E5M2;
  int64_t lost = 0;
  for (int64_t h = 0; h < from.shape[1]; ++h) {
    std::vector<float> x(static_cast<size_t>(d)), fixed_scale;
    for (int64_t a = 0; a < d; ++a)
      x[static_cast<size_t>(a)] = static_cast<float>(At(from, b, h, i, a));
    int64_t groups = 0;
    if (scale.present() && (fixed || is_f8)) {
      for (int64_t a = 0; a < d; ++a) {
        fixed_scale.push_back(static_cast<float>(
            At(scale, 0, h * scale.shape[1] / to.shape[1], 0, a * scale.shape[3] / d)));
      }
    } else if (scale.present()) {
      groups = scale.shape[3];
    }
    std::vector<unsigned char> codes(static_cast<size_t>(BytesOf(to.dtype, d)));
    std::vector<float> scales(static_cast<size_t>(groups)), zeros(scales);
    lost += WriteRow(to.dtype, x.data(), d, fixed_scale.empty() ? nullptr : fixed_scale.data(),
                     groups, codes.data(), scales.data(), zeros.data());
    const int64_t unit = UnitBytes(to.dtype), units = static_cast<int64_t>(codes.size()) / unit;
    const int64_t units_of_group = group_stride == 0 ? units : units / groups;
    for (int64_t u = 0; u < units; ++u) {
      std::memcpy(RowIn(to, r / P, h, r % P) + u / units_of_group * group_stride +
                      u % units_of_group * to.stride[3],
                  codes.data() + u * unit, static_cast<size_t>(unit));
    }
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(RowIn(scale, r / P, h, r % P) + g * scale.stride[3],
                  &scales[static_cast<size_t>(g)], sizeof(float));
      if (zero.present())
        std::memcpy(RowIn(zero, r / P, h, r % P) + g * zero.stride[3],
                    &zeros[static_cast<size_t>(g)], sizeof(float));
    }
  }
  return lost;
}

}  // namespace

AppendResult Append(const KVCache& cache, const NewTokens& tokens) {
  const bool packed = tokens.cu_seqlens.present();
  const int64_t B = packed ? tokens.cu_seqlens.shape[0] - 1 : tokens.k.shape[0];
  const int64_t P = cache.k.shape[2];
  AppendResult result;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t first = packed ? IntegerAt(tokens.cu_seqlens, b) : 0;
    const int64_t there = packed ? IntegerAt(tokens.cu_seqlens, b + 1) - first : tokens.k.shape[2];
    const int64_t n = tokens.lengths.present() ? IntegerAt(tokens.lengths, b) : there;
    const int64_t past = tokens.past_lengths.present() ? IntegerAt(tokens.past_lengths, b) : 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = past + i;
      int64_t r;
      if (tokens.slots.present()) {
        r = packed ? IntegerAt(tokens.slots, first + i) : IntegerAt(tokens.slots, b, i);
      } else if (tokens.pages.begins.present()) {
        r = IntegerAt(tokens.pages.table, IntegerAt(tokens.pages.begins, b) + p / P) * P + p % P;
      } else if (tokens.pages.present()) {
        r = IntegerAt(tokens.pages.table, b, p / P) * P + p % P;
      } else {
        if (cache.ring && i < n - P) continue;  // a later token takes its row
        r = b * P + (cache.ring ? p % P : p);
      }
      if (r < 0) continue;
      const int64_t from = packed ? 0 : b;
      result.lost_nans += AppendRow(tokens.k, from, first + i, cache.k, cache.k_scale, cache.k_zero,
                                    cache.k_scale_fixed, cache.k_group_stride, r);
      if (cache.v.present())
        result.lost_nans += AppendRow(tokens.v, from, first + i, cache.v, cache.v_scale,
                                      cache.v_zero, cache.v_scale_fixed, cache.v_group_stride, r);
    }
  }
  return result;
}

}  // namespace fovea::reference
