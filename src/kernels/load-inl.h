// Vectors of f32, and how elements of the types that registers can be loaded from become them.
// Knows no attention.
#if defined(FOVEA_SRC_KERNELS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_LOAD_INL_H_
#undef FOVEA_SRC_KERNELS_LOAD_INL_H_
#else
#define FOVEA_SRC_KERNELS_LOAD_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "fovea/tensor.h"
#include "hwy/highway.h"

// Hot loops are inlined, worth 1 to 2 % of a call, but not into builds with sanitizers, where
// compilers take minutes over the whole.
#undef FOVEA_HOT
#if HWY_IS_ASAN || HWY_IS_TSAN || HWY_IS_MSAN
#define FOVEA_HOT HWY_NOINLINE
#else
#define FOVEA_HOT HWY_INLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kMaxTileLanes = 64;

// The score of a removed pair.
HWY_INLINE float MinusInfinityScalar() { return -std::numeric_limits<float>::infinity(); }
HWY_INLINE VF MinusInfinity() { return hn::Set(DF(), MinusInfinityScalar()); }

HWY_INLINE int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <class T>
HWY_INLINE T ReadAs(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));  // the caller's address may be unaligned
  return value;
}

// memcpy for short runs, of which a call would cost as much as the copy.
HWY_INLINE void CopyBytes(const char* p, int64_t bytes, void* to) {
  const hn::Repartition<uint8_t, DF> d8;
  constexpr int64_t kBytes = 4 * kLanes;
  uint8_t* HWY_RESTRICT target = static_cast<uint8_t*>(to);
  int64_t x = 0;
  for (; x + kBytes <= bytes; x += kBytes)
    hn::StoreU(hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + x), d8, target + x);
  if (x < bytes) std::memcpy(target + x, p + x, static_cast<size_t>(bytes - x));
}

// Whether the target has an instruction that widens f16.
constexpr bool kWidensF16 = kLanes > 4 || HWY_TARGET_IS_NEON;

// A vector of 16-bit floats as f32. Exact, subnormals, infinities and NaN included.
HWY_INLINE VF Widen(hn::Vec<hn::Rebind<hwy::bfloat16_t, DF>> v) { return hn::PromoteTo(DF(), v); }
HWY_INLINE VF Widen(hn::Vec<hn::Rebind<hwy::float16_t, DF>> v) {
  const DF df;
  if constexpr (kWidensF16) {
    return hn::PromoteTo(df, v);
  } else {
    // Not Highway's emulation: 1.2 widens infinities and NaN as if they were numbers from 65536 on.
    const hn::RebindToSigned<DF> di;
    const auto bits =
        hn::ShiftLeft<16>(hn::PromoteTo(di, hn::BitCast(hn::Rebind<uint16_t, DF>(), v)));
    // exponent and fraction where f32 has them
    const auto magnitude = hn::And(hn::ShiftRight<3>(bits), hn::Set(di, 0x0fffe000));
    // With an exponent of one too much normal numbers are twice as large, and subnormal ones 2^−14
    // too large; each way is the smaller one where it is right.
    const VF x = hn::BitCast(df, hn::Add(magnitude, hn::Set(di, (127 - 14) << 23)));
    const VF finite = hn::Min(hn::Mul(x, hn::Set(df, 0.5f)), hn::Sub(x, hn::Set(df, 0x1p-14f)));
    // infinities and NaN
    const auto is_special = hn::VecFromMask(di, hn::Gt(magnitude, hn::Set(di, (31 << 23) - 1)));
    const auto rest =
        hn::Or(hn::And(is_special, hn::Set(di, 0x7f800000)), hn::And(bits, hn::Set(di, INT32_MIN)));
    return hn::Or(finite, hn::BitCast(df, rest));
  }
}

// The vector at p of elements of type T: float, hwy::float16_t or hwy::bfloat16_t. With n: of n
// elements, then zeros.
template <class T>
HWY_INLINE VF LoadAsF32(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(DF(), p);
  } else {
    return Widen(hn::LoadU(hn::Rebind<T, DF>(), p));
  }
}
template <class T>
HWY_INLINE VF LoadAsF32(const T* p, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadN(DF(), p, static_cast<size_t>(n));
  } else {
    T some[kLanes] = {};
    std::memcpy(some, p, static_cast<size_t>(n) * sizeof(T));
    return LoadAsF32(some);
  }
}

// The 2·kLanes elements at p as two vectors: the first half and the second, or, where that is
// cheaper (bf16), those with even and those with odd numbers. With n < 2·kLanes: of n elements,
// then zeros.
template <class T>
constexpr bool kEvenAndOdd = std::is_same_v<T, hwy::bfloat16_t>;
constexpr int kPair = 2 * kLanes;

template <class T>
HWY_INLINE void LoadPair(const T* p, VF& a, VF& b) {
  if constexpr (kEvenAndOdd<T>) {
    const auto pairs = hn::LoadU(hn::Repartition<T, DF>(), p);
    a = hn::PromoteEvenTo(DF(), pairs);
    b = hn::PromoteOddTo(DF(), pairs);
  } else {
    a = LoadAsF32(p);
    b = LoadAsF32(p + kLanes);
  }
}
template <class T>
HWY_INLINE void LoadPair(const T* p, int64_t n, VF& a, VF& b) {
  if constexpr (kEvenAndOdd<T>) {
    T some[kPair] = {};
    std::memcpy(some, p, static_cast<size_t>(n) * sizeof(T));
    LoadPair(some, a, b);
  } else if (n <= kLanes) {
    a = n == kLanes ? LoadAsF32(p) : LoadAsF32(p, n);
    b = hn::Zero(DF());
  } else {
    a = LoadAsF32(p);
    b = LoadAsF32(p + kLanes, n - kLanes);
  }
}

// Between the two orders of so many floats.
template <class T>
HWY_INLINE void ToPairOrder(VF& a, VF& b) {
  if constexpr (kEvenAndOdd<T>) {
    const VF even = hn::ConcatEven(DF(), b, a);
    b = hn::ConcatOdd(DF(), b, a);
    a = even;
  }
}
template <class T>
HWY_INLINE void FromPairOrder(VF& a, VF& b) {
  if constexpr (kEvenAndOdd<T>) {
    const VF lower = hn::InterleaveWholeLower(DF(), a, b);
    b = hn::InterleaveWholeUpper(DF(), a, b);
    a = lower;
  }
}

// f(T()) for the type T of elements that dtype names: one of those above. Never another: what is no
// array of a type that registers can be loaded from is copied to scratch as f32 before.
template <class F>
HWY_INLINE auto WithVectorType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(0.0f);
    case DType::kF16:
      return f(hwy::float16_t());
    case DType::kBF16:
      return f(hwy::bfloat16_t());
    default:
      __builtin_trap();
  }
}
HWY_INLINE bool IsVectorType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
