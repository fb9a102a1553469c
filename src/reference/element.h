// One element of a strided view, exactly, whatever its type. Knows nothing of attention.
#ifndef FOVEA_REFERENCE_ELEMENT_H_
#define FOVEA_REFERENCE_ELEMENT_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "fovea/tensor.h"

namespace fovea::reference {

// The value of an IEEE binary16, and of a bfloat16, given its bits. Exact: every value of both is a
// double.
double FromF16(uint16_t bits);
double FromBF16(uint16_t bits);

// x rounded to the nearest value of f32, f16 or bf16, ties to even: infinite from half a unit
// beyond the largest finite one on.
double Rounded(DType dtype, double x);

// How far from `want`, on the side of `got`, a result may be that was computed with an error up to
// `bound` and then rounded to the type of its tensor. Rounding is monotone: the result lies between
// the rounded ends of want ± bound.
double StoredBound(DType dtype, double got, double want, double bound);

// The value of the element of this type at any address. Integers beyond 2^53 round; bool is 0 or 1;
// packed elements have no address of their own, and NaN stands for them. Of codes: the code; of
// kF32Z4: the scale.
double DecodeElement(DType dtype, const void* address);

// An element of a quantised type (reference/quantised.cc): number `element` of the unit at that
// address. Of types with HasScaleViews its code; of blocks its value, rounded as float32 rounds it.
double DecodeQuantised(DType dtype, const void* unit, int element);

// k or v of the problem at [b, h, j, c]: the number that its element, scale and zero make, with
// each step rounded as float32 rounds it. `scale` and `zero` may be absent, group_stride 0.
double CodedAt(const TensorView& codes, const TensorView& scale, const TensorView& zero,
               int64_t group_stride, int64_t b, int64_t h, int64_t j, int64_t c);

// std::max drops a NaN on one side; this keeps one on either.
inline double MaxKeepingNan(double a, double b) { return std::isnan(b) || b > a ? b : a; }

// x[i0, i1, i2, i3]; indices behind the rank of x are not looked at. A bit is 0 or 1.
double At(const TensorView& x, int64_t i0, int64_t i1 = 0, int64_t i2 = 0, int64_t i3 = 0);

// x[i0, i1, i2] of an i32 or i64 tensor.
int64_t IntegerAt(const TensorView& x, int64_t i0, int64_t i1 = 0, int64_t i2 = 0);

// Element [b, h, i, j] of x broadcast to four axes as in NumPy: axes align at the right, an axis of
// size one serves every index.
double BroadcastAt(const TensorView& x, int64_t b, int64_t h, int64_t i, int64_t j);

// All elements, dense in C order.
std::vector<double> ReadAll(const TensorView& x);

}  // namespace fovea::reference

#endif  // FOVEA_REFERENCE_ELEMENT_H_
