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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Where one instruction looks up 32 numbers: x·log₂e = n/32 + f with integer n and |f| ≤ 1/64, and
// 2^(n/32) comes from a table of the steps of an octave. Fewer multiply-adds than a polynomial for
// all of an octave needs. Of f·(c₁ + c₂·f) for 2^f − 1 the error is 0.9·2⁻²⁴ at most.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpByTable(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  // Of the steps, less the place of the step where the shifted n has it.
  alignas(64) static constexpr uint32_t kSteps[32] = {
      0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3,
      0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b,
      0x3f75583f, 0x3f7523f6, 0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a,
      0x3f75b9be, 0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907,
      0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};
  constexpr float kShift = 393216.0f;  // 1.5·2¹⁸: sums are multiples of 1/32
  const V log2e = hn::Set(d, detail::kLog2e);
  const V shifted = hn::MulAdd(x, log2e, hn::Set(d, kShift));
  const V f = hn::MulSub(x, log2e, hn::Sub(shifted, hn::Set(d, kShift)));
  const auto n = hn::BitCast(du, shifted);
#if HWY_IS_DEBUG_BUILD
  const auto step = hn::And(n, hn::Set(du, 31u));  // as the instruction takes it
#else
  const auto step = n;
#endif
  const auto steps = hn::TwoTablesLookupLanes(
      du, hn::Load(du, kSteps), hn::Load(du, kSteps + hn::Lanes(du)), hn::IndicesFromVec(du, step));
  const V power = hn::BitCast(d, hn::Add(steps, hn::ShiftLeft<18>(n)));
  const V p =
      hn::Mul(f, hn::MulAdd(hn::Set(d, 0.240226596593857f), f, hn::Set(d, 0.69315731525421f)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, detail::kExpFlush)), hn::MulAdd(p, power, power));
}

#endif

// e^x for x ≤ 0, as fovea/detail/exp.h has it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (HWY_MAX_LANES_D(D) == 16) return ExpByTable(d, x);
#endif
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
