// exp and tanh of vectors, as the scores and their softmax need them.
#if defined(FOVEA_SRC_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MATH_INL_H_
#undef FOVEA_SRC_KERNELS_MATH_INL_H_
#else
#define FOVEA_SRC_KERNELS_MATH_INL_H_
#endif

// Where a macro tells. The flags of Fovea's own CMake files undo those that do this.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "Fovea must be compiled without -ffast-math and its parts (-fno-fast-math)"
#endif

#include "fovea/detail/exp.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The larger of x and `least`, the smaller of x and `most`; NaN where x is NaN (Max and Min alone
// may hide it).
template <class V>
HWY_INLINE V ClampBelow(V x, V least) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(least, x);  // MAXPS returns its second operand when one is NaN, and so does MINPS
#else
  return hn::IfThenElse(hn::Lt(x, least), least, x);
#endif
}
template <class V>
HWY_INLINE V ClampAbove(V x, V most) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Min(most, x);
#else
  return hn::IfThenElse(hn::Gt(x, most), most, x);
#endif
}

// e^x for x ≤ 0, as fovea/detail/exp.h has it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V shift = hn::Set(d, detail::kExpShift);
  const V log2e = hn::Set(d, detail::kLog2e);
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, detail::kExpFlush)), hn::Set(d, detail::kExpNothing),
                     x);  // keeps NaN
  const V shifted = hn::MulAdd(x, log2e, shift);
  const V n = hn::Sub(shifted, shift);
#if HWY_NATIVE_FMA
  const V f = hn::MulSub(x, log2e, n);  // the product is not rounded
#else
  const V r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, detail::kLn2High))),
                      hn::Mul(n, hn::Set(d, detail::kLn2Low)));
  const V f = hn::Mul(r, log2e);
#endif
  constexpr auto& k = detail::kExp2Coefficients;
  V p = hn::Set(d, k[0]);
  p = hn::MulAdd(p, f, hn::Set(d, k[1]));
  p = hn::MulAdd(p, f, hn::Set(d, k[2]));
  p = hn::MulAdd(p, f, hn::Set(d, k[3]));
  p = hn::MulAdd(p, f, hn::Set(d, k[4]));
  p = hn::MulAdd(p, f, hn::Set(d, k[5]));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// cap·tanh(s/cap) from s and x = s/cap, for finite cap > 0; with cap = 1 and s = x it is tanh. Odd,
// never beyond ±cap, exactly ±cap where |x| ≥ 8.21, NaN where s is NaN. Relative error ≤ 6·2⁻²⁴, of
// tiny results too, and an error of x enters it at most once. Of tanh, over all floats, the worst
// is 4.91·2⁻²⁴ (at 7.25) with fused multiply-adds and 5.69·2⁻²⁴ (at 6.25) without.
//
// tanh(x) = x·P(x²)/Q(x²): P and Q of degree 4 with P(0) = Q(0) = 1 and the least maximal relative
// error on |x| ≤ 8.3, which is 0.17·2⁻²⁴ (Remez), then moved by a few units in the last place for
// the least error after rounding. All coefficients are positive: nothing cancels. P/Q multiplies s,
// not x, so that a cap so great that x is tiny or 0 gives s. From x² = kEnd on, P/Q is constant and
// the product grows with s, past ±cap at once, where it is cut.
//
// P/Q is a true division: it has a unit of its own beside the multiply-adds, and its bits, unlike
// those of an approximate reciprocal, are the same on every CPU.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softcap(D d, V s, V x, V cap) {
  constexpr float kEnd = 67.3f;  // 8.2037²
  // too little to change P or Q, enough to keep the terms of a tiny x out of the subnormal numbers
  constexpr float kNormal = 0x1p-40f;
  const V one = hn::Set(d, 1.0f);
  const V u = hn::Min(hn::MulAdd(x, x, hn::Set(d, kNormal)), hn::Set(d, kEnd));
  V p = hn::Set(d, 1.47113992e-08f);
  p = hn::MulAdd(p, u, hn::Set(d, 2.15552827e-05f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.00355208362f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.134283543f));
  p = hn::MulAdd(p, u, one);
  V q = hn::Set(d, 8.32127512e-07f);
  q = hn::MulAdd(q, u, hn::Set(d, 0.000337866339f));
  q = hn::MulAdd(q, u, hn::Set(d, 0.0260911249f));
  q = hn::MulAdd(q, u, hn::Set(d, 0.467616826f));
  q = hn::MulAdd(q, u, one);
  return ClampAbove(ClampBelow(hn::Mul(s, hn::Div(p, q)), hn::Neg(cap)), cap);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
