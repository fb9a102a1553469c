// Removing pairs by position (causal, window, lengths) from a block that is partly visible, and keeping what a removed pair's V holds out of
// the sums. Knows nothing of where the intervals come from.
#if defined(FOVEA_SRC_KERNELS_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MASK_INL_H_
#undef FOVEA_SRC_KERNELS_MASK_INL_H_
#else
#define FOVEA_SRC_KERNELS_MASK_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// The part of the block that the tile computes. Its end is cut to what some row sees; its start too, in steps that keep the order of sums.
template <class Lanes>
HWY_INLINE Span Clamp(const Tile& tile, const Block& block) {
  Span span;
  span.first = std::max<int64_t>(tile.any.first - block.first, 0) / kFirstKeyStep<Lanes> * kFirstKeyStep<Lanes>;
  span.end = std::min(tile.any.end - block.first, block.n);
  span.partial = block.first + span.first < tile.all.first || block.first + span.end > tile.all.end;
  return span;
}

// S = −inf outside each row's interval. `row_values` holds 2 · tile_lanes floats.
template <class Lanes>
HWY_INLINE void MaskByPosition(const Tile& tile, const Block& block, const Span& span, int64_t block_keys, float* row_values, int64_t lanes,
                               float* s) {
  float* first = row_values;
  float* end = row_values + lanes;
  for (int r = 0; r < lanes; ++r) {
    const KeyRange& keys = tile.visible[r < tile.count ? r : 0];
    first[r] = static_cast<float>(std::clamp<int64_t>(keys.first - block.first, 0, block.n));
    end[r] = static_cast<float>(std::clamp<int64_t>(keys.end - block.first, 0, block.n));
  }
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VF j = Lanes::Keys(key);
    const auto visible = hn::And(hn::Ge(j, Lanes::PerRow(first, row)), hn::Lt(j, Lanes::PerRow(end, row)));
    return hn::IfThenElse(visible, score, MinusInfinity());
  });
}

// Whether any of n rows of d floats holds a NaN or an infinity: then 0·x is NaN.
HWY_INLINE bool HasNonFinite(const Rows& rows, int64_t n, int64_t d) {
  const DF df;
  const VF zero = hn::Zero(df);
  VF sum0 = zero, sum1 = zero;
  for (int64_t j = 0; j < n; ++j) {
    const float* p = rows.data + j * rows.stride;
    int64_t c = 0;
    for (; c + 2 * kLanes <= d; c += 2 * kLanes) {
      sum0 = hn::MulAdd(hn::LoadU(df, p + c), zero, sum0);
      sum1 = hn::MulAdd(hn::LoadU(df, p + c + kLanes), zero, sum1);
    }
    for (; c + kLanes <= d; c += kLanes) sum0 = hn::MulAdd(hn::LoadU(df, p + c), zero, sum0);
    if (c < d) sum1 = hn::MulAdd(hn::LoadN(df, p + c, static_cast<size_t>(d - c)), zero, sum1);
  }
  return !hn::AllTrue(df, hn::Eq(hn::Add(sum0, sum1), zero));
}

// Copies n rows to `to` (which may be the rows themselves) with non-finite elements zeroed, and notes the rows that had any.
inline HWY_NOINLINE void IsolateNonFinite(const Rows& rows, int64_t n, int64_t d, float* to, int64_t to_stride, uint64_t* poisoned) {
  for (int64_t j = 0; j < n; ++j) {
    if (j % 64 == 0) poisoned[j / 64] = 0;
    for (int64_t c = 0; c < d; ++c) {
      const float x = rows.data[j * rows.stride + c];
      const bool finite = x - x == 0.0f;
      to[j * to_stride + c] = finite ? x : 0.0f;
      if (!finite) poisoned[j / 64] |= uint64_t{1} << (j % 64);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
