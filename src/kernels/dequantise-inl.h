// Codes of a byte each as numbers: what all quantised formats end in. Knows no attention.
//
// A format unpacks its codes to bytes (or has them in place), a vector of bytes becomes floats, and
// one of few formulae makes numbers of those. So a format adds an unpacking, and no loop of its
// own. All of it rounds as the formulae say: what is subtracted is subtracted first, so that a zero
// far out of the codes' range cancels nothing.
#if defined(FOVEA_SRC_KERNELS_DEQUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_DEQUANTISE_INL_H_
#undef FOVEA_SRC_KERNELS_DEQUANTISE_INL_H_
#else
#define FOVEA_SRC_KERNELS_DEQUANTISE_INL_H_
#endif

#include <algorithm>

#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// A vector of f16 whose lanes are all the number at p, as f32.
HWY_INLINE VF HalfAt(const char* p) {
  const hn::Rebind<uint16_t, DF> du16;
  return Widen(hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), hn::Set(du16, ReadAs<uint16_t>(p))));
}

using D16Bytes = hn::FixedTag<uint8_t, 16>;
using V16Bytes = hn::Vec<D16Bytes>;

// ---------------------------------------------------------------- a vector of bytes as floats

// The 2·kLanes of them at p are *a and *b.
template <class T>
struct IntegerBytes {
  static HWY_INLINE void Load(const uint8_t* p, VF* a, VF* b) {
    *a = One(p);
    *b = One(p + kLanes);
  }

 private:
  static HWY_INLINE VF One(const uint8_t* p) {
    const auto u = hn::BitCast(hn::Rebind<T, DF>(), hn::LoadU(hn::Rebind<uint8_t, DF>(), p));
    return hn::ConvertTo(DF(), hn::PromoteTo(hn::RebindToSigned<DF>(), u));
  }
};
using SignedBytes = IntegerBytes<int8_t>;
using UnsignedBytes = IntegerBytes<uint8_t>;

// Floats of 8 bits, made f16.
using D16Halves = hn::Repartition<uint16_t, DF>;
HWY_INLINE hn::Vec<D16Halves> LoadWords(const uint8_t* p) {
  return hn::PromoteTo(D16Halves(), hn::LoadU(hn::Rebind<uint8_t, D16Halves>(), p));
}
HWY_INLINE void WidenBoth(hn::Vec<D16Halves> bits, VF* a, VF* b) {
  const hn::Rebind<uint16_t, DF> half;
  const hn::Rebind<hwy::float16_t, DF> f16;
  *a = Widen(hn::BitCast(f16, hn::LowerHalf(half, bits)));
  *b = Widen(hn::BitCast(f16, hn::UpperHalf(half, bits)));
}

// The upper half of an f16.
struct E5M2Bytes {
  static HWY_INLINE void Load(const uint8_t* p, VF* a, VF* b) {
    WidenBoth(hn::ShiftLeft<8>(LoadWords(p)), a, b);
  }
};

// As an f16 of the same exponent and fraction it is 2^8 too small, subnormal ones too.
struct E4M3Bytes {
  static HWY_INLINE void Load(const uint8_t* p, VF* a, VF* b) {
    const D16Halves d16;
    const VF factor = hn::Set(DF(), 256.0f);
    // Signed, so that the sign is in every bit above the exponent.
    const hn::RebindToSigned<D16Halves> di16;
    const auto u = hn::PromoteTo(di16, hn::BitCast(hn::Rebind<int8_t, D16Halves>(),
                                                   hn::LoadU(hn::Rebind<uint8_t, D16Halves>(), p)));
    const auto shifted = hn::BitCast(d16, hn::ShiftLeft<7>(u));
    const auto largest = hn::Set(d16, uint16_t{0x3f80});
    const auto is_nan = hn::VecFromMask(d16, hn::Eq(hn::And(shifted, largest), largest));
    WidenBoth(hn::Or(hn::And(shifted, hn::Set(d16, uint16_t{0xbf80})), is_nan), a, b);
    *a = hn::Mul(*a, factor);
    *b = hn::Mul(*b, factor);
  }
};

// ---------------------------------------------------------------- the formulae

// u·scale
struct Scaled {
  VF scale;
  HWY_INLINE VF operator()(VF u, int64_t) const { return hn::Mul(u, scale); }
};
// (u − zero)·scale
struct ShiftedAndScaled {
  VF scale, zero;
  HWY_INLINE VF operator()(VF u, int64_t) const { return hn::Mul(hn::Sub(u, zero), scale); }
};
// u·scale + least. Codes of 5 bits times an f16 are exact: one rounding, fused or not.
struct ScaledAndShifted {
  VF scale, least;
  HWY_INLINE VF operator()(VF u, int64_t) const { return hn::MulAdd(u, scale, least); }
};
// (u − zero)·scale, of each element its own.
struct EachShiftedAndScaled {
  const float* HWY_RESTRICT scale;
  const float* HWY_RESTRICT zero;
  HWY_INLINE VF operator()(VF u, int64_t c) const {
    const DF df;
    return hn::Mul(hn::Sub(u, hn::LoadU(df, zero + c)), hn::LoadU(df, scale + c));
  }
};

// to[c] = f(codes[c], c) for n codes, a byte each.
template <class Bytes, class F>
HWY_INLINE void Dequantise(const uint8_t* HWY_RESTRICT codes, int64_t n, const F f,
                           float* HWY_RESTRICT to) {
  const DF df;
  constexpr int64_t kStep = 2 * kLanes;
  const auto two = [&](const uint8_t* from, int64_t c, float* HWY_RESTRICT p) HWY_ATTR {
    VF a, b;
    Bytes::Load(from, &a, &b);
    hn::StoreU(f(a, c), df, p);
    hn::StoreU(f(b, c + kLanes), df, p + kLanes);
  };
  int64_t c = 0;
  for (; c + 2 * kStep <= n; c += 2 * kStep) {
    two(codes + c, c, to + c);
    two(codes + c + kStep, c + kStep, to + c + kStep);
  }
  for (; c + kStep <= n; c += kStep) two(codes + c, c, to + c);
  if (c < n) {
    const size_t count = static_cast<size_t>(n - c);
    uint8_t some[kStep] = {};
    float last[kStep];
    std::memcpy(some, codes + c, count);
    two(some, c, last);
    std::memcpy(to + c, last, count * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
