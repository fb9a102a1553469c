// exp of vectors, for the softmax, and the logarithm of a number.
#ifndef FOVEA_EMBEDDED_MATH_H_
#define FOVEA_EMBEDDED_MATH_H_

#include "fovea/detail/exp.h"
#include "fovea/embedded/arithmetic.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// How far a score may lie above the running maximum of its row before that moves (softmax.h).
constexpr float kMostRise = 2.0f;

// e^x for x ≤ kMostRise, as fovea/detail/exp.h has it for x ≤ 0: above, n is positive.
inline V Exp(V x) {
  const V shift(detail::kExpShift), log2e(detail::kLog2e);
  x = xsimd::select(x < V(detail::kExpFlush), V(detail::kExpNothing), x);  // keeps NaN
  const V shifted = Opaque(xsimd::fma(x, log2e, shift));
  const V n = shifted - shift;
  V f;
  if constexpr (kFused) {
    f = xsimd::fms(x, log2e, n);  // the product is not rounded
  } else {
    f = (Opaque(x - n * V(detail::kLn2High)) - n * V(detail::kLn2Low)) * log2e;
  }
  constexpr auto& k = detail::kExp2Coefficients;
  V p(k[0]);
  p = xsimd::fma(p, f, V(k[1]));
  p = xsimd::fma(p, f, V(k[2]));
  p = xsimd::fma(p, f, V(k[3]));
  p = xsimd::fma(p, f, V(k[4]));
  p = xsimd::fma(p, f, V(k[5]));
  return p * xsimd::bitwise_cast<float>(xsimd::bitwise_cast<int32_t>(shifted) << 23);
}

// ln x for normal x > 0. x = 2ᵉ·y with y in [√½, √2); ln y = 2·artanh(f), f = (y − 1)/(y + 1), |f|
// < 0.172: the first term that is left out, f¹⁰/11 of the sum, is below 3e-9 of it.
inline float Log(float x) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t from_root = bits - 0x3F3504F3u;  // √½
  const int32_t e = static_cast<int32_t>(from_root) >> 23;
  const double y = static_cast<double>(BitCast<float>(bits - (static_cast<uint32_t>(e) << 23)));
  const double f = (y - 1) / (y + 1), u = f * f;
  const double series = 2 * f * (1 + u * (1.0 / 3 + u * (1.0 / 5 + u * (1.0 / 7 + u * (1.0 / 9)))));
  return static_cast<float>(static_cast<double>(e) * 0.69314718055994531 + series);
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_MATH_H_
