// The two ways in which a tile of scores lies across SIMD lanes. Everything that treats scores one
// by one (modifiers, masks, softmax, output) is written once against this interface:
//   kRowStep, kKeyStep   rows and keys that one vector of scores spans
//   Index(row, key, …)   where the vector at that row and key is
//   PerRow(a, row)       the values of a per-row array that belong to the vector's lanes
//   PerKey(a, key)       the values of a per-key array, likewise
//   Keys(key)            the key numbers of its lanes
//   Fold*                one value per row from the lanes of an accumulator
#if defined(FOVEA_SRC_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_LANES_INL_H_
#undef FOVEA_SRC_KERNELS_LANES_INL_H_
#else
#define FOVEA_SRC_KERNELS_LANES_INL_H_
#endif

#include <algorithm>

#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// S[key][row], rows padded to kVectors vectors. The padding computes along with the rest and is
// never written out.
template <int kVectors>
struct LanesAreQueries {
  static constexpr int kRows = kVectors * kLanes;
  static constexpr int kRowStep = kLanes;
  static constexpr int kKeyStep = 1;

  // Floats of a tile of `rows` × `columns` (columns: keys of S, channels of O), and the place of an
  // element.
  static int64_t TileFloats(int64_t /*rows*/, int64_t columns) { return kRows * columns; }
  static HWY_INLINE int64_t Index(int64_t row, int64_t column, int64_t /*columns*/) {
    return column * kRows + row;
  }

  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerRow(const T* a, int64_t row) {
    return hn::Load(hn::Rebind<T, DF>(), a + row);
  }
  static HWY_INLINE void StorePerRow(VF v, float* a, int64_t row) { hn::Store(v, DF(), a + row); }
  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerKey(const T* a, int64_t key) {
    return hn::Set(hn::Rebind<T, DF>(), a[key]);
  }
  static HWY_INLINE VF Keys(int64_t key) { return hn::Set(DF(), static_cast<float>(key)); }
  static HWY_INLINE VF FoldMax(VF v) { return v; }
  static HWY_INLINE VF FoldSum(VF v) { return v; }

  // a[row][column] rows in plain memory → a tile.
  static HWY_INLINE void FromRows(const float* const* rows, int /*count*/, int64_t columns,
                                  int64_t /*tile_columns*/, float* tile) {
    TransposeIn<kVectors>(rows, columns, tile);
  }
  // tile = f(tile, a) from `column` on, where a[row][0 … columns) are rows in plain memory.
  template <class F>
  static HWY_INLINE void WithRows(const float* const* rows, int /*count*/, int64_t column,
                                  int64_t columns, int64_t /*tile_columns*/,
                                  float* HWY_RESTRICT tile, const F& f) {
    ForEachColumn<kVectors>(rows, columns, [&](int64_t c, int row, VF a) HWY_ATTR {
      float* p = tile + (column + c) * kRows + row;
      hn::Store(f(hn::Load(DF(), p), a), DF(), p);
    });
  }
  static HWY_INLINE void ToRows(float* tile, int64_t columns, int64_t /*tile_columns*/,
                                const float* factor, const Destination& out) {
    StoreTransposed<kVectors>(tile, columns, factor, out);
  }
};

// S[row][key], keys padded to whole vectors; the padding is set to −inf before softmax (Seal).
struct LanesAreKeys {
  static constexpr int kRows = 16;  // the most rows of a tile
  static constexpr int kRowStep = 1;
  static constexpr int kKeyStep = kLanes;

  static int64_t TileFloats(int64_t rows, int64_t columns) {
    return rows * RoundUp(columns, kLanes);
  }
  static HWY_INLINE int64_t Index(int64_t row, int64_t column, int64_t columns) {
    return row * RoundUp(columns, kLanes) + column;
  }

  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerRow(const T* a, int64_t row) {
    return hn::Set(hn::Rebind<T, DF>(), a[row]);
  }
  static HWY_INLINE void StorePerRow(VF v, float* a, int64_t row) { a[row] = hn::GetLane(v); }
  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerKey(const T* a, int64_t key) {
    return hn::Load(hn::Rebind<T, DF>(), a + key);
  }
  static HWY_INLINE VF Keys(int64_t key) { return hn::Iota(DF(), static_cast<float>(key)); }
  static HWY_INLINE VF FoldMax(VF v) { return hn::MaxOfLanes(DF(), v); }
  static HWY_INLINE VF FoldSum(VF v) { return hn::SumOfLanes(DF(), v); }

  static HWY_INLINE void FromRows(const float* const* rows, int count, int64_t columns,
                                  int64_t tile_columns, float* tile) {
    const int64_t stride = RoundUp(tile_columns, kLanes);
    for (int r = 0; r < count; ++r) {
      std::memcpy(tile + r * stride, rows[r], static_cast<size_t>(columns) * sizeof(float));
      for (int64_t c = columns; c < RoundUp(columns, kLanes); ++c) tile[r * stride + c] = 0.0f;
    }
  }
  template <class F>
  static HWY_INLINE void WithRows(const float* const* rows, int count, int64_t column,
                                  int64_t columns, int64_t tile_columns, float* HWY_RESTRICT tile,
                                  const F& f) {
    const DF df;
    for (int r = 0; r < count; ++r) {
      float* p = tile + Index(r, column, tile_columns);
      for (int64_t c = 0; c < columns; c += kLanes) {
        const VF a =
            hn::LoadN(df, rows[r] + c, static_cast<size_t>(std::min<int64_t>(columns - c, kLanes)));
        hn::Store(f(hn::Load(df, p + c), a), df, p + c);
      }
    }
  }
  static HWY_INLINE void ToRows(float* tile, int64_t columns, int64_t tile_columns,
                                const float* factor, const Destination& out) {
    const DF df;
    const int64_t stride = RoundUp(tile_columns, kLanes);
    for (int r = 0; r < out.count; ++r) {
      float* row = tile + r * stride;
      const VF scale = hn::Set(df, factor[r]);
      for (int64_t c = 0; c < columns; c += kLanes)
        hn::Store(hn::Mul(hn::Load(df, row + c), scale), df, row + c);
      StoreRow(row, columns, out.dtype, out.row[r], out.stride);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
