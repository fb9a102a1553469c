// Between rows in memory and columns in vectors: transposes in registers, which lanes that hold
// queries need. Knows no attention.
#if defined(FOVEA_SRC_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TRANSPOSE_INL_H_
#undef FOVEA_SRC_KERNELS_TRANSPOSE_INL_H_
#else
#define FOVEA_SRC_KERNELS_TRANSPOSE_INL_H_
#endif

#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Four floats of each of kLanes/4 rows (rows[0], rows[4], …), side by side.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* const* rows, int64_t column) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, rows[0] + column);
  } else {
    const hn::Half<D> half;
    constexpr size_t kHalf = hn::MaxLanes(hn::Half<D>());
    return hn::Combine(d, LoadBlocks(half, rows + kHalf, column), LoadBlocks(half, rows, column));
  }
}

template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, float* const* rows, int64_t column) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, rows[0] + column);
  } else {
    const hn::Half<D> half;
    constexpr size_t kHalf = hn::MaxLanes(hn::Half<D>());
    StoreBlocks(half, hn::LowerHalf(half, v), rows, column);
    StoreBlocks(half, hn::UpperHalf(half, v), rows + kHalf, column);
  }
}

// Transposes the 4×4 matrices whose rows are the 128-bit blocks of a, b, c, d.
HWY_INLINE void TransposeBlocks(VF& a, VF& b, VF& c, VF& d) {
  const DF df;
  const hn::Repartition<uint64_t, DF> du;
  const auto ab_lo = hn::BitCast(du, hn::InterleaveLower(df, a, b)),
             ab_hi = hn::BitCast(du, hn::InterleaveUpper(df, a, b));
  const auto cd_lo = hn::BitCast(du, hn::InterleaveLower(df, c, d)),
             cd_hi = hn::BitCast(du, hn::InterleaveUpper(df, c, d));
  a = hn::BitCast(df, hn::InterleaveLower(du, ab_lo, cd_lo));
  b = hn::BitCast(df, hn::InterleaveUpper(du, ab_lo, cd_lo));
  c = hn::BitCast(df, hn::InterleaveLower(du, ab_hi, cd_hi));
  d = hn::BitCast(df, hn::InterleaveUpper(du, ab_hi, cd_hi));
}

// Calls f(column, row, the elements of that column of kLanes rows from `row` on) for
// kVectors·kLanes rows: a register transpose, four columns at a time (a gather costs ten times as
// much).
template <int kVectors, class F>
HWY_INLINE void ForEachColumn(const float* const* rows, int64_t columns, const F& f) {
  const DF df;
  constexpr int kRows = kVectors * kLanes;
  float tail[kRows][4] = {};
  const float* tail_rows[kRows];
  for (int64_t column = 0; column < columns; column += 4) {
    const int64_t n = HWY_MIN(columns - column, int64_t{4});
    if (n < 4) {
      for (int r = 0; r < kRows; ++r) {
        std::memcpy(tail[r], rows[r] + column, static_cast<size_t>(n) * sizeof(float));
        tail_rows[r] = tail[r];
      }
    }
    const float* const* from = n < 4 ? tail_rows : rows;
    const int64_t at = n < 4 ? 0 : column;
    for (int v = 0; v < kVectors; ++v, from += kLanes) {
      VF a = LoadBlocks(df, from + 0, at), b = LoadBlocks(df, from + 1, at),
         c = LoadBlocks(df, from + 2, at), d = LoadBlocks(df, from + 3, at);
      TransposeBlocks(a, b, c, d);
      f(column, v * kLanes, a);
      if (n > 1) f(column + 1, v * kLanes, b);
      if (n > 2) f(column + 2, v * kLanes, c);
      if (n > 3) f(column + 3, v * kLanes, d);
    }
  }
}

// to[column][lane] = rows[lane][column]; `to` is aligned and has kVectors·kLanes floats a column.
template <int kVectors>
HWY_INLINE void TransposeIn(const float* const* rows, int64_t columns, float* HWY_RESTRICT to) {
  ForEachColumn<kVectors>(rows, columns, [&](int64_t column, int row, VF v) HWY_ATTR {
    hn::Store(v, DF(), to + column * (kVectors * kLanes) + row);
  });
}

// Where a tile's rows are written.
struct Destination {
  char* row[kMaxTileLanes];
  int count;
  DType dtype;
  int64_t stride;  // as in TargetRows
  bool plain;      // f32, unit stride, and every row aligned for float
};

// rows[lane][column] = from[column][lane] · scale for a vector of lanes, four columns at a time:
// past the last one up to three that mean nothing. `from` has kRows floats a column.
template <int kRows>
HWY_INLINE void TransposeOut(const float* HWY_RESTRICT from, int64_t columns, VF scale,
                             float* const* rows) {
  const DF df;
  for (int64_t column = 0; column < columns; column += 4, from += 4 * kRows) {
    const int64_t n = columns - column;
    VF a = hn::Mul(hn::Load(df, from), scale);
    VF b = n > 1 ? hn::Mul(hn::Load(df, from + kRows), scale) : a;
    VF c = n > 2 ? hn::Mul(hn::Load(df, from + 2 * kRows), scale) : a;
    VF d = n > 3 ? hn::Mul(hn::Load(df, from + 3 * kRows), scale) : a;
    TransposeBlocks(a, b, c, d);
    StoreBlocks(df, a, rows + 0, column);
    StoreBlocks(df, b, rows + 1, column);
    StoreBlocks(df, c, rows + 2, column);
    StoreBlocks(df, d, rows + 3, column);
  }
}

// out.row[r][column] = from[column][r] · factor[r].
template <int kVectors>
HWY_INLINE void StoreTransposed(const float* HWY_RESTRICT from, int64_t columns,
                                const float* HWY_RESTRICT factor, const Destination& out) {
  constexpr int kRows = kVectors * kLanes;
  constexpr int64_t kBuffered = 64;
  for (int v = 0; v < kVectors && v * kLanes < out.count; ++v) {
    const VF scale = hn::Load(DF(), factor + v * kLanes);
    const int count = HWY_MIN(out.count - v * kLanes, kLanes);
    char* const* rows = out.row + v * kLanes;
    float* target[kLanes];
    // Whole groups of four columns go straight to plain rows; the rest through a buffer.
    const int64_t direct = out.plain && count == kLanes ? columns / 4 * 4 : 0;
    if (direct > 0) {
      for (int r = 0; r < kLanes; ++r) target[r] = reinterpret_cast<float*>(rows[r]);
      TransposeOut<kRows>(from + v * kLanes, direct, scale, target);
    }
    float buffer[kLanes][kBuffered];
    for (int r = 0; r < kLanes; ++r) target[r] = buffer[r];
    for (int64_t column = direct; column < columns; column += kBuffered) {
      const int64_t n = HWY_MIN(columns - column, kBuffered);
      TransposeOut<kRows>(from + column * kRows + v * kLanes, n, scale, target);
      StoreRows(buffer[0], kBuffered, n, {rows, count, out.dtype, out.stride}, column);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
