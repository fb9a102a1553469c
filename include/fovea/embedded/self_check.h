// Whether the arithmetic that the compiler made, in the state that the thread is in, is what the
// edition rests on. Checked by each call, since nothing may be static.
#ifndef FOVEA_EMBEDDED_SELF_CHECK_H_
#define FOVEA_EMBEDDED_SELF_CHECK_H_

#include "fovea/embedded/math.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// Sums round to nearest, TwoSum is exact, e^x is right, and −inf and NaN are told apart. The
// numbers are volatile: nothing here is computed while compiling.
FOVEA_EMBEDDED_KERNEL bool IsArithmeticSound() {
  const volatile float one = 1, most = 0x1.8p-24f, least = 0x1p-25f, third = -1.0f / 3,
                       removed = -kInfinity, nan = __builtin_nanf("");
  // of an ulp of 1, most is ¾ and least ¼
  V rest_up, rest_down;
  const V up = TwoSum(V(one), V(most), rest_up), down = TwoSum(V(one), V(least), rest_down);
  const V score(removed), base = xsimd::select(score == V(-kInfinity), V(0.0f), score);
  return xsimd::all((up == V(1 + 0x1p-23f)) & (rest_up == V(-0x1p-25f)) & (down == V(1.0f)) &
                    (rest_down == V(0x1p-25f)) &
                    (xsimd::abs(Exp(V(third)) - V(0.716531311f)) < V(0x1p-21f)) &
                    (Exp(score - base) == V(0.0f)) & (V(nan) != V(nan))) &&
         IsNan(nan);
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_SELF_CHECK_H_
