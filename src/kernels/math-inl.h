// exp and tanh of vectors, as softmax needs them.
#if defined(FOVEA_SRC_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MATH_INL_H_
#undef FOVEA_SRC_KERNELS_MATH_INL_H_
#else
#define FOVEA_SRC_KERNELS_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The larger of x and a constant; NaN where x is NaN (Max alone may hide it).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ClampBelow(D d, V x, float least) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(hn::Set(d, least), x);  // MAXPS returns its second operand when one is NaN
#else
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, least)), hn::Set(d, least), x);
#endif
}

// Below this a weight is 0: it is less than 2⁻⁹⁹ of its row's sum. Smaller ones would make products with V that are no normal numbers, on which some
// CPUs spend a hundred cycles each.
constexpr float kExpFlush = -69.0f;

// e^x for x ≤ 0. Relative error ≤ 2 ulp + |x|·2⁻²⁴ down to kExpFlush; 0 below, and for −inf; exp(0) = 1 exactly; NaN stays NaN.
//
// x·log₂e = n + f with integer n and |f| ≤ ½; e^x = 2ⁿ·2^f. Adding kShift rounds to the integer n and leaves n + 127, the exponent field of 2ⁿ, in the
// low bits of the sum, so that one shift makes 2ⁿ. At n = −127, where x is put below kExpFlush, that field is 0 and with it the result. 2^f is 1 + f·(minimax
// polynomial of degree 4); the multiplication by 2ⁿ keeps NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V shift = hn::Set(d, 12582912.0f + 127.0f);  // 1.5·2²³ + 127
  const V log2e = hn::Set(d, 1.44269504088896341f);
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, kExpFlush)), hn::Set(d, -88.0f), x);  // keeps NaN
  const V shifted = hn::MulAdd(x, log2e, shift);
  const V n = hn::Sub(shifted, shift);
#if HWY_NATIVE_FMA
  const V f = hn::MulSub(x, log2e, n);  // the product is not rounded
#else
  // x − n·ln2 in two steps (Cody and Waite 1980): ln2_hi has few enough bits for n·ln2_hi to be exact.
  const V r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f))), hn::Mul(n, hn::Set(d, -2.12194440e-4f)));
  const V f = hn::Mul(r, log2e);
#endif
  V p = hn::Set(d, 0.001326467259787023f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.009671554900705814f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055507343262434006f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022240936756134f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931470036506653f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// tanh(x): absolute error ≤ 2⁻²² (Highway's, 4 ulp); NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOrNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
