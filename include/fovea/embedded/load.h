// Vectors of f32 for the instruction set of the build: loads from f32 and f16, and transposes.
// Knows nothing of attention.
#ifndef FOVEA_EMBEDDED_LOAD_H_
#define FOVEA_EMBEDDED_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <xsimd/xsimd.hpp>

#include "fovea/embedded/problem.h"

static_assert(XSIMD_VERSION_MAJOR >= 13, "fovea/embedded.h needs xsimd 13 or later");

// Micro-kernels are functions of their own: what is around them must not take part in their
// register allocation.
#define FOVEA_EMBEDDED_KERNEL [[gnu::noinline]] inline
// Those with arrays of vectors, which -Os of GCC would leave in memory: optimised for speed even
// there.
#if defined(__OPTIMIZE_SIZE__) && defined(__GNUC__) && !defined(__clang__)
#define FOVEA_EMBEDDED_HOT [[gnu::noinline, gnu::optimize("O2")]] inline
#else
#define FOVEA_EMBEDDED_HOT FOVEA_EMBEDDED_KERNEL
#endif
// What is called in many places, in each of them seldom: not inlined at -Os.
#ifdef __OPTIMIZE_SIZE__
#define FOVEA_EMBEDDED_SELDOM [[gnu::noinline]]
#else
#define FOVEA_EMBEDDED_SELDOM
#endif
// Loops over arrays of vectors, which only live in registers when unrolled, at -Os too.
#define FOVEA_EMBEDDED_UNROLL _Pragma("GCC unroll 32")

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

using V = xsimd::batch<float>;
using I = xsimd::batch<int32_t>;
constexpr int kLanes = static_cast<int>(V::size);

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kManyRegisters = true;  // 32, else 16
#else
constexpr bool kManyRegisters = false;
#endif
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA)
constexpr bool kFused = true;  // multiply-adds round once
#else
constexpr bool kFused = false;
#endif

constexpr float kInfinity = __builtin_inff();

constexpr int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t Between(int64_t x, int64_t least, int64_t most) {
  return x < least ? least : x > most ? most : x;
}
constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <class To, class From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline bool IsNan(float x) { return x != x; }
inline bool IsFinite(double x) {
  return (BitCast<uint64_t>(x) >> 52 & 0x7FFu) != 0x7FFu;  // x − x might be rearranged to 0
}

inline V Load(const float* p) { return V::load_unaligned(p); }
inline void Store(V x, float* p) { x.store_unaligned(p); }
inline bool IsAnyTrue(V::batch_bool_type x) { return xsimd::any(x); }

// ---- f16

// One element. Infinities and NaN stay what they are.
inline float Widened(float x) { return x; }
inline float Widened(uint16_t h) {
  const uint32_t magnitude = h & 0x7FFFu, sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t bits = magnitude << 13;
  if (magnitude >= 0x7C00u) {
    bits |= 0x7F800000u;
  } else if (magnitude >= 0x0400u) {
    bits += 112u << 23;  // the exponents' biases are 15 and 127
  } else {
    // subnormal: a multiple of 2⁻²⁴
    bits = BitCast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return BitCast<float>(bits | sign);
}

// Rounded to nearest, ties to even, in any floating-point state.
inline uint16_t Narrowed(float x) {
  const uint32_t bits = BitCast<uint32_t>(x), sign = bits >> 16 & 0x8000u,
                 magnitude = bits & 0x7FFFFFFFu;
  uint32_t h;
  if (magnitude > 0x7F800000u) {
    h = 0x7E00u;
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    h = 0x7C00u;
  } else if (magnitude >= 0x38800000u) {  // 2⁻¹⁴: normal
    h = (magnitude - (112u << 23) + 0x0FFFu + (magnitude >> 13 & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // 2⁻²⁵, which ties to 0: a multiple of 2⁻²⁴
    const uint32_t fraction = (magnitude & 0x7FFFFFu) | 0x800000u, shift = 126u - (magnitude >> 23);
    h = (fraction + (1u << (shift - 1)) - 1 + (fraction >> shift & 1u)) >> shift;
  } else {
    h = 0;
  }
  return static_cast<uint16_t>(h | sign);
}

// Vectors of f32 from either type.
inline V LoadWidened(const float* p) { return Load(p); }
inline V LoadWidened(const uint16_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__) && defined(__AVX2__) && defined(__FMA__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  int32_t element[kLanes];
  for (int x = 0; x < kLanes; ++x) element[x] = p[x];
  const I h = I::load_unaligned(element), magnitude = h & I(0x7FFF), shifted = magnitude << 13;
  const V normal = xsimd::bitwise_cast<float>(shifted + I(112 << 23));
  const V subnormal = xsimd::to_float(magnitude) * V(0x1p-24f);
  const V special = xsimd::bitwise_cast<float>(shifted | I(0x7F800000));
  const V size = xsimd::to_float(magnitude);  // ordered as the numbers are
  const V absolute = xsimd::select(size >= V(31744.0f), special,
                                   xsimd::select(size >= V(1024.0f), normal, subnormal));
  return absolute | xsimd::bitwise_cast<float>((h & I(0x8000)) << 16);
#endif
}
// The first n (≤ kLanes) elements, zeros behind them.
template <class T>
FOVEA_EMBEDDED_SELDOM V LoadWidened(const T* p, int64_t n) {
  T padded[kLanes] = {};
  __builtin_memcpy(padded, p, static_cast<size_t>(n) * sizeof(T));
  return LoadWidened(padded);
}

inline int64_t SizeOf(Type type) { return type == Type::kF32 ? 4 : 2; }

// f of a zero of the type that `type` names.
template <class F>
auto WithType(Type type, const F& f) {
  return type == Type::kF32 ? f(float()) : f(uint16_t());
}

// to[x] = element x of a row in the caller's memory.
template <class T>
void LoadRowOf(const char* row, int64_t stride, int64_t n, float* to) {
  for (int64_t x = 0; x < n; ++x, row += stride) {
    T element;
    __builtin_memcpy(&element, row, sizeof(element));
    to[x] = Widened(element);
  }
}
FOVEA_EMBEDDED_KERNEL void LoadRow(Type type, const char* row, int64_t stride, int64_t n,
                                   float* to) {
  if (stride == SizeOf(type) &&
      reinterpret_cast<uintptr_t>(row) % static_cast<uintptr_t>(stride) == 0) {
    return WithType(type, [&](auto zero) {
      const auto* from = reinterpret_cast<const decltype(zero)*>(row);
      int64_t x = 0;
      for (; x + kLanes <= n; x += kLanes) Store(LoadWidened(from + x), to + x);
      for (; x < n; ++x) to[x] = Widened(from[x]);
    });
  }
  WithType(type, [&](auto zero) { LoadRowOf<decltype(zero)>(row, stride, n, to); });
}

// The other way.
FOVEA_EMBEDDED_KERNEL void StoreRow(Type type, const float* from, int64_t n, char* row,
                                    int64_t stride) {
  if (type == Type::kF32 && stride == 4) {
    for (; n >= kLanes; n -= kLanes, from += kLanes, row += kLanes * 4) {
      const V x = Load(from);
      __builtin_memcpy(row, &x, sizeof(x));
    }
  }
  for (int64_t x = 0; x < n; ++x, row += stride) {
    if (type == Type::kF32) {
      __builtin_memcpy(row, from + x, sizeof(float));
    } else {
      const uint16_t h = Narrowed(from[x]);
      __builtin_memcpy(row, &h, sizeof(h));
    }
  }
}

// ---- transposes, in blocks of 4 × 4: for wider ones xsimd interleaves vectors with more
// instructions than it saves

using V4 = xsimd::make_sized_batch_t<float, 4>;

inline V4 Load4(const float* p) { return V4::load_unaligned(p); }
inline void Transpose(V4 (&a)[4]) { xsimd::transpose(a, a + 4); }

// f(c, r, x) with x = a[r … r + 4)[c], for `rows` (a multiple of 4) rows a[r] of `columns` floats.
template <class F>
void ForEachColumn(const float* const* a, int rows, int64_t columns, const F& f) {
  for (int r = 0; r < rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      V4 x[4] = {Load4(a[r] + c), Load4(a[r + 1] + c), Load4(a[r + 2] + c), Load4(a[r + 3] + c)};
      Transpose(x);
      for (int y = 0; y < 4; ++y) f(c + y, r, x[y]);
    }
    for (; c < columns; ++c) {
      const float x[4] = {a[r][c], a[r + 1][c], a[r + 2][c], a[r + 3][c]};
      f(c, r, Load4(x));
    }
  }
}

// The sum of a vector's quarters, eighths … of four lanes, in their order.
inline V4 FoldedTo4(V x) {
#if defined(__AVX512F__)
  return V4(_mm512_castps512_ps128(x)) + V4(_mm512_extractf32x4_ps(x, 1)) +
         V4(_mm512_extractf32x4_ps(x, 2)) + V4(_mm512_extractf32x4_ps(x, 3));
#elif defined(__AVX__)
  return V4(_mm256_castps256_ps128(x)) + V4(_mm256_extractf128_ps(x, 1));
#else
  float lanes[kLanes];
  Store(x, lanes);
  V4 folded = Load4(lanes);
  for (int part = 4; part < kLanes; part += 4) folded += Load4(lanes + part);
  return folded;
#endif
}

// to[x] = Σ of the lanes of sum[x], x < n ≤ 4. The order of the sum is the same for each.
inline void SumsOfLanes(const V (&sum)[4], float* to, int64_t n) {
  V4 folded[4];
  for (int x = 0; x < 4; ++x) folded[x] = FoldedTo4(sum[x]);
  Transpose(folded);
  const V4 total = (folded[0] + folded[1]) + (folded[2] + folded[3]);
  if (n == 4) return total.store_unaligned(to);
  float totals[4];
  total.store_unaligned(totals);
  for (int64_t x = 0; x < n; ++x) to[x] = totals[x];
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_LOAD_H_
