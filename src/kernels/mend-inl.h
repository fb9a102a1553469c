// Values so large that sums of p·v overflow, though O / l does not (weights add up to l, not to 1),
// or so small that p·v are subnormal numbers, which have few bits.
//
// The hot loops stay plain. A look at O, once an item, finds such sums. The item is then computed
// again with V times 2⁻⁶⁴ or 2⁶⁴, and takes the place of the sums that this mends alone. An
// infinity or NaN of V stays what it is.
#if defined(FOVEA_SRC_KERNELS_MEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MEND_INL_H_
#undef FOVEA_SRC_KERNELS_MEND_INL_H_
#else
#define FOVEA_SRC_KERNELS_MEND_INL_H_
#endif

#include <cmath>

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Each addition to a smaller sum loses up to 2⁻¹⁵⁰, which is 2⁻⁶⁰ of it. A sum of 0 is none: there
// V is 0, as a rule.
constexpr float kLeastSum = 0x1p-90f;

// What is wrong with sums of an item.
struct SumFaults {
  bool too_large = false;
  bool too_small = false;

  bool any() const { return too_large || too_small; }
  void operator|=(const SumFaults& other) {
    too_large = too_large || other.too_large;
    too_small = too_small || other.too_small;
  }
};

// In the sums of the tile's rows. Rows whose inverse denominator is NaN do not count, which nothing
// can mend.
template <class Engine>
HWY_INLINE SumFaults FaultsOfSums(const Tile& tile, const Geometry& g, const float* inverse) {
  using Lanes = typename Engine::OutputLanes;
  const DF df;
  const VF zero = hn::Zero(df), least = hn::Set(df, kLeastSum);
  VF sum = zero, small = zero;
  for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
    VF row_sum = zero;
    for (int64_t c = 0; c < g.dv; c += Lanes::kKeyStep) {
      const VF o = hn::Load(df, tile.o + Lanes::Index(row, c, g.dv)), size = hn::Abs(o);
      row_sum = hn::MulAdd(o, zero, row_sum);
      small = hn::Max(small, hn::IfThenElseZero(hn::Lt(size, least), size));
    }
    const VF of_row = Lanes::PerRow(inverse, row);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Eq(of_row, of_row), row_sum));
  }
  SumFaults faults;
  faults.too_large = !hn::AllTrue(df, hn::Eq(sum, zero));
  faults.too_small = !hn::AllTrue(df, hn::Eq(small, zero));
  return faults;
}

// Which of the tile's sums have one: whether a sum is mended depends on itself alone.
template <class Engine>
HWY_NOINLINE void NoteFaults(const Tile& tile, const Geometry& g) {
  uint64_t* const faults = tile.faults;
  std::fill_n(faults, FaultWords(g.tile_lanes, g.dv), uint64_t{0});
  faults[0] = 1;
  for (int64_t r = 0; r < tile.count; ++r) {
    for (int64_t c = 0; c < g.dv; ++c) {
      const float o = tile.o[Engine::OutputLanes::Index(r, c, g.dv)];
      const bool is_large = !std::isfinite(o), is_small = o != 0.0f && std::abs(o) < kLeastSum;
      const int64_t n = 2 * (r * g.dv + c);
      faults[1 + n / 64] |= (uint64_t{is_large} | uint64_t{is_small} << 1) << (n % 64);
    }
  }
}

// O / (l·value_scale) in the place of what has the fault that the scale mends at `out`. (Of the
// other kind V times the scale may have left the finite numbers.)
template <class Engine>
HWY_NOINLINE void MendSums(const Tile& tile, const Geometry& g, const float* inverse,
                           double value_scale, const Destination& out) {
  constexpr double kMost = static_cast<double>(hwy::HighestValue<float>());
  const uint64_t* const faults = tile.faults;
  if (faults[0] == 0) return;
  const int64_t kind = value_scale > 1 ? 1 : 0;
  for (int64_t r = 0; r < out.count; ++r) {
    for (int64_t c = 0; c < g.dv; ++c) {
      const int64_t n = 2 * (r * g.dv + c) + kind;
      if ((faults[1 + n / 64] >> (n % 64) & 1) == 0) continue;
      const double mended = static_cast<double>(tile.o[Engine::OutputLanes::Index(r, c, g.dv)]) *
                            static_cast<double>(inverse[r]) / value_scale;
      if (!std::isfinite(mended)) continue;
      const float x = static_cast<float>(std::clamp(mended, -kMost, kMost));
      StoreRow(&x, 1, out.dtype, out.row[r] + c * out.stride, out.stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
