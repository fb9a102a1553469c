// Values so large that sums of p·v overflow, though O / l does not: weights add up to l, not to 1.
//
// The hot loops stay plain. Where a sum turns out not to be finite, the item is computed again with
// V times kValueScale, and takes the place of what was not finite. An infinity or NaN of V stays
// what it is.
#if defined(FOVEA_SRC_KERNELS_OVERFLOW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_OVERFLOW_INL_H_
#undef FOVEA_SRC_KERNELS_OVERFLOW_INL_H_
#else
#define FOVEA_SRC_KERNELS_OVERFLOW_INL_H_
#endif

#include <cmath>

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Whether all sums of the tile's rows are finite; rows whose inverse denominator is NaN do not
// count, which nothing can mend.
template <class Engine>
HWY_INLINE bool HasFiniteSums(const Tile& tile, const Geometry& g, const float* inverse) {
  using Lanes = typename Engine::Lanes;
  const DF df;
  const VF zero = hn::Zero(df);
  VF sum = zero;
  for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
    VF row_sum = zero;
    for (int64_t c = 0; c < g.dv; c += Lanes::kKeyStep)
      row_sum = hn::MulAdd(hn::Load(df, tile.o + Lanes::Index(row, c, g.dv)), zero, row_sum);
    const VF of_row = Lanes::PerRow(inverse, row);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Eq(of_row, of_row), row_sum));
  }
  return hn::AllTrue(df, hn::Eq(sum, zero));
}

// O / (l·kValueScale) in the place of what is not finite at `out`.
template <class Engine>
HWY_NOINLINE void ReplaceNonFinite(const Tile& tile, const Geometry& g, const float* inverse,
                                   const Destination& out) {
  constexpr double kMost = static_cast<double>(hwy::HighestValue<float>());
  for (int r = 0; r < out.count; ++r) {
    for (int64_t c = 0; c < g.dv; ++c) {
      char* const to = out.row[r] + c * out.stride;
      float x;
      LoadRow({to, out.dtype, out.stride}, 0, 1, &x);
      if (std::isfinite(x)) continue;
      const double mended = static_cast<double>(tile.o[Engine::Lanes::Index(r, c, g.dv)]) *
                            static_cast<double>(inverse[r]) / static_cast<double>(kValueScale);
      x = static_cast<float>(std::isfinite(mended) ? std::clamp(mended, -kMost, kMost) : mended);
      StoreRow(&x, 1, out.dtype, to, out.stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
