// What must hold of the compiler's arithmetic, and the sums that rest on it.
//
// A compiler that may assume that there is no NaN and no infinity, or that may regroup sums, breaks
// removed pairs, e^x and compensation. Where a macro tells so, it is refused here; where none does
// (parts of -ffast-math with Clang), Opaque keeps it from what matters, and self_check.h sees.
#ifndef FOVEA_EMBEDDED_ARITHMETIC_H_
#define FOVEA_EMBEDDED_ARITHMETIC_H_

#include "fovea/embedded/load.h"

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ != 0)
#error "fovea/embedded.h gives wrong results with -ffast-math: add -fno-fast-math behind it"
#endif

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// x, of which the compiler forgets where it comes from: sums and products are not regrouped,
// contracted or cancelled across it. Costs no instruction.
inline V Opaque(V x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x.data));
#elif defined(__SSE2__)
  __asm__("" : "+x"(x.data));
#elif defined(__ARM_NEON)
  __asm__("" : "+w"(x.data));
#endif
  return x;
}

// Returns a + b, rounded, and what it lacks, exactly, as `rest`; that is 0 where the sum overflows
// (Knuth 1969, "The Art of Computer Programming" 2, §4.2.2, theorem B). Neither a nor b is a
// product that might be contracted.
inline V TwoSum(V a, V b, V& rest) {
  const V sum = Opaque(a + b);
  const V b_in_sum = Opaque(sum - a), a_in_sum = Opaque(sum - b_in_sum);
  const V lacks = Opaque(a - a_in_sum) + Opaque(b - b_in_sum);
  rest = xsimd::select(lacks == lacks, lacks, V(0.0f));
  return sum;
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_ARITHMETIC_H_
