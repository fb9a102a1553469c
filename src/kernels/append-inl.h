// How rows of new keys and values become codes: the scalar writers of docs/caches.md ("Writing"), a
// vector at a time, bit for bit. Products and sums are rounded one by one, never fused. Knows
// formats, not caches.
#if defined(FOVEA_SRC_KERNELS_APPEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_APPEND_INL_H_
#undef FOVEA_SRC_KERNELS_APPEND_INL_H_
#else
#define FOVEA_SRC_KERNELS_APPEND_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "kernels/append.h"
#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VI = hn::Vec<DI>;

// Elements that are taken at once: whole blocks, whole bytes of nibbles.
constexpr int64_t kPiece = 1024;

// Elements of a row as f32: in place, or in scratch of kPiece floats.
class RowReader {
 public:
  RowReader(const AppendRows& rows, float* scratch) : rows_(rows), scratch_(scratch) {}

  void Begin(const char* row) {
    row_ = row;
    whole_ = nullptr;
    if (IsPlainF32(rows_.from_type, rows_.from_stride, 0, row)) {
      whole_ = reinterpret_cast<const float*>(row);
    } else if (rows_.d <= kPiece) {
      whole_ = Load(0, rows_.d);
    }
  }
  // n ≤ kPiece; good until the next call.
  const float* Take(int64_t first, int64_t n) const {
    return whole_ != nullptr ? whole_ + first : Load(first, n);
  }

 private:
  const float* Load(int64_t first, int64_t n) const {
    LoadRow({row_, rows_.from_type, rows_.from_stride}, first, n, scratch_);
    return scratch_;
  }

  const AppendRows& rows_;
  float* const scratch_;
  const char* row_ = nullptr;
  const float* whole_ = nullptr;
};

// ---- what scales are made of: NaN where an element is ----

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

HWY_INLINE float Canonical(float x) { return std::isnan(x) ? kNaN : x; }
HWY_INLINE float Inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

// Calls take(x) for the vectors of n ≥ 1 elements; where fewer are left, p[0] stands for the rest.
template <class Take>
HWY_INLINE void ForEachVector(const float* HWY_RESTRICT p, int64_t n, const Take& take) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) take(hn::LoadU(df, p + i));
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    take(hn::IfThenElse(hn::FirstN(df, rest), hn::LoadN(df, p + i, rest), hn::Set(df, p[0])));
  }
}

// The largest |x|. As integers: NaN is beyond infinity.
HWY_INLINE float MagnitudeOf(const float* HWY_RESTRICT p, int64_t n) {
  const DI di;
  VI most = hn::Zero(di);
  ForEachVector(p, n, [&](VF x) HWY_ATTR { most = hn::Max(most, hn::BitCast(di, hn::Abs(x))); });
  const int32_t bits = hn::ReduceMax(di, most);
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  return Canonical(magnitude);
}

// Least and largest; lo is the first of equals, since zeros have signs.
struct Range {
  float lo, hi;
};

// The least lanes of two vectors at once.
HWY_INLINE void LeastLanes(VF a, VF b, float* least_a, float* least_b) {
  const DF df;
  const hn::Half<DF> half;
  VF least = hn::Min(hn::ConcatLowerLower(df, b, a), hn::ConcatUpperUpper(df, b, a));
  if constexpr (kLanes >= 16) least = hn::Min(least, hn::SwapAdjacentBlocks(least));
  if constexpr (kLanes >= 8) least = hn::Min(least, hn::Shuffle1032(least));
  least = hn::Min(least, hn::Shuffle2301(least));
  *least_a = hn::GetLane(least);
  *least_b = hn::GetLane(hn::UpperHalf(half, least));
}
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16, "LeastLanes leaves no lane out");

HWY_INLINE float FirstWithMagnitude(const float* p, float magnitude) {
  while (std::fabs(*p) != magnitude) ++p;
  return *p;
}

HWY_INLINE Range RangeOf(const float* HWY_RESTRICT p, int64_t n) {
  const DF df;
  VF lo = hn::Set(df, p[0]), hi = lo;
  auto numbers = hn::Eq(lo, lo);
  ForEachVector(p, n, [&](VF x) HWY_ATTR {
    numbers = hn::And(numbers, hn::Eq(x, x));
    lo = hn::Min(lo, x);
    hi = hn::Max(hi, x);
  });
  if (!hn::AllTrue(df, numbers)) return {kNaN, kNaN};
  Range range;
  LeastLanes(lo, hn::Neg(hi), &range.lo, &range.hi);
  range.hi = -range.hi;
  if (range.lo == 0.0f) {
    range.lo = FirstWithMagnitude(p, 0.0f);
    if (range.hi == 0.0f) range.hi = range.lo;
  }
  return range;
}

// The first x of the largest magnitude; +0 where that is 0.
HWY_INLINE float SignedMagnitudeOf(const float* HWY_RESTRICT p, int64_t n) {
  const Range range = RangeOf(p, n);
  if (range.lo == -range.hi) return range.hi == 0.0f ? 0.0f : FirstWithMagnitude(p, range.hi);
  return range.hi > -range.lo ? range.hi : range.lo;
}

// Of elements first ≤ a < end of a row.
HWY_INLINE float MagnitudeOf(const RowReader& x, int64_t first, int64_t end) {
  float all = 0.0f;
  for (int64_t a = first; a < end; a += kPiece) {
    const int64_t n = std::min(kPiece, end - a);
    const float magnitude = MagnitudeOf(x.Take(a, n), n);
    if (!(magnitude <= all)) all = magnitude;
    if (std::isnan(all)) break;
  }
  return all;
}
HWY_INLINE Range RangeOf(const RowReader& x, int64_t first, int64_t end) {
  Range all = RangeOf(x.Take(first, std::min(kPiece, end - first)), std::min(kPiece, end - first));
  for (int64_t a = first + kPiece; a < end; a += kPiece) {
    const int64_t n = std::min(kPiece, end - a);
    const Range range = RangeOf(x.Take(a, n), n);
    if (std::isnan(all.lo) || std::isnan(range.lo)) return {kNaN, kNaN};
    if (range.lo < all.lo) all.lo = range.lo;
    if (range.hi > all.hi) all.hi = range.hi;
  }
  return all;
}

// ---- numbers to codes ----

// Within least … most; NaN is 0. For numbers that may be anything.
HWY_INLINE VF Clamped(VF t, float least, float most) {
  const DF df;
  const VF number = hn::IfThenElseZero(hn::Eq(t, t), t);
  return hn::Min(hn::Max(number, hn::Set(df, least)), hn::Set(df, most));
}
// The others take numbers far within the range of integers.
HWY_INLINE VI Truncated(VF t) { return hn::ConvertInRangeTo(DI(), t); }
// Halves away from zero: the float below 1/2 carries halves, and nothing less, to the next integer.
HWY_INLINE VI RoundedAway(VF t) {
  return Truncated(hn::Add(t, hn::CopySign(hn::Set(DF(), 0x1.fffffep-2f), t)));
}
// Halves to even: as the sum with a number whose last digit counts ones is rounded.
HWY_INLINE VI RoundedEven(VF t) {
  const VF ones = hn::Set(DF(), 0x1.8p23f);
  const DI di;
  return hn::Sub(hn::BitCast(di, hn::Add(t, ones)), hn::BitCast(di, ones));
}

// f8 with kFraction bits of fraction, to nearest even, saturating at `largest`; NaN is 0x7f.
template <int kFraction, int kBias>
HWY_INLINE VI RoundedF8(VF t, float largest) {
  const DF df;
  const DI di;
  const DU du;
  constexpr int kShift = 23 - kFraction;
  const VF magnitude = hn::Min(hn::Abs(t), hn::Set(df, largest));
  const VI bits = hn::BitCast(di, magnitude);
  // Normal numbers have the layout of f32 with fewer bits and another bias.
  const VI odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(di, 1));
  const VI carried = hn::Add(hn::Add(bits, hn::Set(di, (1 << (kShift - 1)) - 1)), odd);
  const VI normal =
      hn::Sub(hn::ShiftRight<kShift>(carried), hn::Set(di, (127 - kBias) << kFraction));
  // Subnormal ones count units, as the last digit of this number does.
  const VF units = hn::BitCast(df, hn::Set(di, (127 + 24 - kBias - kFraction) << 23));
  const VI subnormal = hn::Sub(hn::BitCast(di, hn::Add(magnitude, units)), hn::BitCast(di, units));
  const auto is_subnormal = hn::Lt(bits, hn::Set(di, (127 + 1 - kBias) << 23));
  const VI code = hn::IfThenElse(is_subnormal, subnormal, normal);
  const auto sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(du, t)));
  const VI with_sign = hn::Or(code, hn::BitCast(di, sign));
  return hn::IfThenElse(hn::RebindMask(di, hn::Eq(t, t)), with_sign, hn::Set(di, 0x7f));
}

// The codes code_of(x, i) of the vectors at p + i, each as a T: int8_t or uint8_t. Where fewer than
// a vector are left, x ends in zeros.
template <class T, class CodeOf>
HWY_INLINE void MakeCodes(const float* HWY_RESTRICT p, int64_t n, uint8_t* HWY_RESTRICT to,
                          const CodeOf& code_of) {
  const DF df;
  const hn::Repartition<int16_t, DF> d16;
  const hn::Repartition<T, DF> d8;
  const hn::Rebind<T, DF> d_few;
  T* const codes = reinterpret_cast<T*>(to);
  const auto code_at = [&](int64_t i) HWY_ATTR { return code_of(hn::LoadU(df, p + i), i); };
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const auto low = hn::OrderedDemote2To(d16, code_at(i), code_at(i + kLanes));
    const auto high = hn::OrderedDemote2To(d16, code_at(i + 2 * kLanes), code_at(i + 3 * kLanes));
    hn::StoreU(hn::OrderedDemote2To(d8, low, high), d8, codes + i);
  }
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::DemoteTo(d_few, code_at(i)), d_few, codes + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    const VI code = code_of(hn::LoadN(df, p + i, rest), i);
    hn::StoreN(hn::DemoteTo(d_few, code), d_few, codes + i, rest);
  }
}

// n codes of 4 bits, an even number, to n / 2 bytes: the even one in the low or the high nibble.
template <bool kHigh>
HWY_INLINE void PackPairs(const uint8_t* HWY_RESTRICT codes, int64_t n, uint8_t* HWY_RESTRICT to) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const hn::Rebind<uint8_t, decltype(d16)> d_half;
  const auto pack = [&](auto pair) HWY_ATTR {  // the even code is the low byte
    const auto bytes = kHigh ? hn::Or(hn::ShiftLeft<4>(pair), hn::ShiftRight<8>(pair))
                             : hn::Or(pair, hn::ShiftRight<4>(pair));
    return hn::TruncateTo(d_half, hn::And(bytes, hn::Set(d16, 0xff)));
  };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d8));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(pack(hn::BitCast(d16, hn::LoadU(d8, codes + i))), d_half, to + i / 2);
  for (; i < n; i += 2) {
    const int even = codes[i], odd = codes[i + 1];
    to[i / 2] = static_cast<uint8_t>(kHigh ? even << 4 | odd : odd << 4 | even);
  }
}

// ---- blocks of 32 ----

// A scale or a least value inside of a block.
HWY_INLINE void PutF16(float x, uint8_t* to) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  const hn::Rebind<uint16_t, DF> du;
  const auto rounded = hn::BitCast(du, hn::DemoteTo(d16, hn::Set(DF(), x)));
  const uint16_t bits = std::isnan(x) ? uint16_t{0x7e00} : hn::GetLane(rounded);
  std::memcpy(to, &bits, sizeof(bits));
}

using D16x8 = hn::FixedTag<uint8_t, 16>;

// The low four bits: of elements 0 … 15 in low nibbles, of 16 … 31 in high ones.
HWY_INLINE void PutNibbles(const uint8_t* codes, uint8_t* to) {
  const D16x8 d;
  const auto four = hn::Set(d, 15);
  const auto low = hn::And(hn::LoadU(d, codes), four);
  const auto high = hn::And(hn::LoadU(d, codes + 16), four);
  hn::StoreU(hn::Or(low, hn::ShiftLeft<4>(high)), d, to);
}

// Bit e: the fifth bit of element e.
HWY_INLINE void PutFifthBits(const uint8_t* codes, uint8_t* to) {
  const D16x8 d;
  const auto fifth = hn::Set(d, 16);
  hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, codes), fifth), to);
  hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, codes + 16), fifth), to + 2);
}

// With scales in the range of f32 products are in that of codes: nothing is to be clamped.

struct Q8_0 {
  static HWY_INLINE void Write(const float* x, uint8_t* to) {
    const float magnitude = MagnitudeOf(x, 32), d = magnitude / 127.0f, inverse = Inverse(d);
    const VF id = hn::Set(DF(), inverse);
    PutF16(d, to);
    if (HWY_LIKELY(std::isfinite(magnitude) && std::isfinite(inverse))) {
      MakeCodes<int8_t>(x, 32, to + 2,
                        [=](VF v, int64_t) HWY_ATTR { return RoundedAway(hn::Mul(v, id)); });
    } else {
      MakeCodes<int8_t>(x, 32, to + 2, [=](VF v, int64_t) HWY_ATTR {
        return RoundedAway(Clamped(hn::Mul(v, id), -128.0f, 127.0f));
      });
    }
  }
};

// q4_0 and q5_0: x = (n − half)·d
template <int kHalf>
struct SignedBlock {
  static HWY_INLINE void Write(const float* x, uint8_t* to) {
    constexpr float kHalfF = static_cast<float>(kHalf);
    const float m = SignedMagnitudeOf(x, 32), d = m / -kHalfF, inverse = Inverse(d);
    const VF id = hn::Set(DF(), inverse), half = hn::Set(DF(), kHalfF + 0.5f),
             most = hn::Set(DF(), 2.0f * kHalfF - 1.0f);
    uint8_t codes[32];
    if (HWY_LIKELY(std::isfinite(m) && std::isfinite(inverse))) {
      MakeCodes<uint8_t>(x, 32, codes, [=](VF v, int64_t) HWY_ATTR {
        return Truncated(hn::Min(hn::Add(hn::Mul(v, id), half), most));
      });
    } else {
      MakeCodes<uint8_t>(x, 32, codes, [=](VF v, int64_t) HWY_ATTR {
        return Truncated(Clamped(hn::Add(hn::Mul(v, id), half), 0.0f, 2.0f * kHalfF - 1.0f));
      });
    }
    PutF16(d, to);
    if (kHalf == 16) PutFifthBits(codes, to + 2);
    PutNibbles(codes, to + (kHalf == 16 ? 6 : 2));
  }
};

// q4_1 and q5_1: x = n·d + m
template <int kMost>
struct RangedBlock {
  static HWY_INLINE void Write(const float* x, uint8_t* to) {
    constexpr float kMostF = static_cast<float>(kMost);
    const Range range = RangeOf(x, 32);
    const float d = (range.hi - range.lo) / kMostF, inverse = Inverse(d);
    const VF id = hn::Set(DF(), inverse), lo = hn::Set(DF(), range.lo), half = hn::Set(DF(), 0.5f);
    const auto number = [=](VF v) HWY_ATTR { return hn::Add(hn::Mul(hn::Sub(v, lo), id), half); };
    uint8_t codes[32];
    if (HWY_LIKELY(std::isfinite(d) && std::isfinite(inverse))) {
      MakeCodes<uint8_t>(x, 32, codes,
                         [=](VF v, int64_t) HWY_ATTR { return Truncated(number(v)); });
    } else {
      MakeCodes<uint8_t>(x, 32, codes, [=](VF v, int64_t) HWY_ATTR {
        return Truncated(Clamped(number(v), 0.0f, kMostF));
      });
    }
    PutF16(d, to);
    PutF16(range.lo, to + 2);
    if (kMost == 31) PutFifthBits(codes, to + 4);
    PutNibbles(codes, to + (kMost == 31 ? 8 : 4));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
