// The ways in which a tile of scores lies across SIMD lanes. Everything that treats scores one
// by one (modifiers, masks, softmax, output) is written once against this interface:
//   kRowStep, kKeyStep   rows and keys that one vector of scores spans
//   kLanesAreQueries     a key for a vector, all rows of the tile in it and those behind it
//   kRowsInLine          rows of a tile that are equally far apart, from the first of so many on
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
  static constexpr int kRowsInLine = kRows;
  static constexpr bool kLanesAreQueries = true;

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

// Rows whose channels lie along lanes: a[row][channel], channels padded with zeros to whole pairs
// of vectors. Q and O of the row engine.
struct LanesAreChannels {
  static constexpr int kRowStep = 1;
  static constexpr int kKeyStep = kLanes;

  static HWY_INLINE int64_t RowFloats(int64_t columns) { return RoundUp(columns, 2 * kLanes); }
  static int64_t TileFloats(int64_t rows, int64_t columns) { return rows * RowFloats(columns); }
  static HWY_INLINE int64_t Index(int64_t row, int64_t column, int64_t columns) {
    return row * RowFloats(columns) + column;
  }
  static HWY_INLINE VF PerRow(const float* a, int64_t row) { return hn::Set(DF(), a[row]); }
  static HWY_INLINE void StorePerRow(VF v, float* a, int64_t row) { a[row] = hn::GetLane(v); }
  static HWY_INLINE VF FoldMax(VF v) { return hn::MaxOfLanes(DF(), v); }

  static HWY_INLINE void FromRows(const float* const* rows, int count, int64_t columns,
                                  int64_t tile_columns, float* tile) {
    for (int r = 0; r < count; ++r) {
      float* const to = tile + Index(r, 0, tile_columns);
      std::memcpy(to, rows[r], static_cast<size_t>(columns) * sizeof(float));
      std::fill(to + columns, to + RowFloats(columns), 0.0f);
    }
  }
  static HWY_INLINE void ToRows(float* tile, int64_t columns, int64_t tile_columns,
                                const float* factor, const Destination& out) {
    const DF df;
    for (int r = 0; r < out.count; ++r) {
      float* row = tile + Index(r, 0, tile_columns);
      const VF scale = hn::Set(df, factor[r]);
      for (int64_t c = 0; c < columns; c += kLanes)
        hn::Store(hn::Mul(hn::Load(df, row + c), scale), df, row + c);
      StoreRow(row, columns, out.dtype, out.row[r], out.stride);
    }
  }
};

// S of kTogether rows at a time: a vector holds them for kLanes / kTogether keys,
//   s[row / kTogether][key][row % kTogether]
// Keys are padded to kKeyPadding, −inf before softmax (Seal); rows to kTogether, computed along and
// never written out. kTogether is 1 or the lanes of a block of 128 bits.
template <int kTogether>
struct LanesAreKeys {
  static_assert(kTogether == 1 || kTogether == 4);
  static constexpr int kRows = 16;  // the most rows of a tile
  static constexpr int kRowStep = kTogether;
  static constexpr int kKeyStep = kLanes / kTogether;
  static constexpr int kRowsInLine = kTogether == 1 ? kRows : kTogether;
  static constexpr bool kLanesAreQueries = false;
  static constexpr int64_t kKeyPadding = 16;

  // Floats of the kTogether rows.
  static HWY_INLINE int64_t RowsFloats(int64_t columns) {
    return kTogether * RoundUp(columns, kKeyPadding);
  }
  static int64_t TileFloats(int64_t rows, int64_t columns) {
    return RoundUp(rows, kTogether) / kTogether * RowsFloats(columns);
  }
  static HWY_INLINE int64_t Index(int64_t row, int64_t column, int64_t columns) {
    return row / kTogether * RowsFloats(columns) + column * kTogether + row % kTogether;
  }

  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerRow(const T* a, int64_t row) {
    const hn::Rebind<T, DF> d;
    if constexpr (kTogether == 1) {
      return hn::Set(d, a[row]);
    } else {
      return hn::LoadDup128(d, a + row);
    }
  }
  static HWY_INLINE void StorePerRow(VF v, float* a, int64_t row) {
    if constexpr (kTogether == 1) {
      a[row] = hn::GetLane(v);
    } else {
      const hn::FixedTag<float, 4> d4;
      hn::StoreU(hn::ResizeBitCast(d4, v), d4, a + row);
    }
  }
  template <class T>
  static HWY_INLINE hn::Vec<hn::Rebind<T, DF>> PerKey(const T* a, int64_t key) {
    const hn::Rebind<T, DF> d;
    if constexpr (kTogether == 1) {
      return hn::Load(d, a + key);
    } else if constexpr (kKeyStep == 1) {
      return hn::Set(d, a[key]);
    } else {
      const auto keys = hn::LoadN(d, a + key, kKeyStep);
      return hn::TableLookupLanes(keys, hn::IndicesFromVec(d, KeyOfLane()));
    }
  }
  static HWY_INLINE VF Keys(int64_t key) {
    const DF df;
    return hn::Add(hn::Set(df, static_cast<float>(key)), hn::ConvertTo(df, KeyOfLane()));
  }
  static HWY_INLINE VF FoldMax(VF v) {
    return Fold(v, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
  }
  static HWY_INLINE VF FoldSum(VF v) {
    return Fold(v, [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); });
  }

  // tile = f(tile, a) from `column`, a multiple of kKeyStep, on, where a[row][0 … columns) are rows
  // in plain memory.
  template <class F>
  static HWY_INLINE void WithRows(const float* const* rows, int count, int64_t column,
                                  int64_t columns, int64_t tile_columns, float* HWY_RESTRICT tile,
                                  const F& f) {
    const DF df;
    for (int r = 0; r < count; r += kTogether) {
      float* p = tile + Index(r, column, tile_columns);
      for (int64_t c = 0; c < columns; c += kKeyStep, p += kLanes) {
        const int64_t n = std::min<int64_t>(columns - c, kKeyStep);
        VF a;
        if constexpr (kTogether == 1) {
          a = hn::LoadN(df, rows[r] + c, static_cast<size_t>(n));
        } else {
          HWY_ALIGN float some[kLanes] = {};
          for (int y = 0; y < kTogether; ++y) {
            const float* const from = rows[std::min(r + y, count - 1)] + c;
            for (int64_t x = 0; x < n; ++x) some[x * kTogether + y] = from[x];
          }
          a = hn::Load(df, some);
        }
        hn::Store(f(hn::Load(df, p), a), df, p);
      }
    }
  }
  // Row r of the tile, from its first column on, times factor[r].
  static HWY_INLINE void ToRows(const float* tile, int64_t columns, int64_t tile_columns,
                                const float* factor, const Destination& out) {
    constexpr int64_t kSome = 64;
    float some[kSome];
    for (int r = 0; r < out.count; ++r) {
      const float* const row = tile + Index(r, 0, tile_columns);
      for (int64_t c = 0; c < columns; c += kSome) {
        const int64_t n = std::min(columns - c, kSome);
        for (int64_t x = 0; x < n; ++x) some[x] = row[(c + x) * kTogether] * factor[r];
        StoreRow(some, n, out.dtype, out.row[r] + c * out.stride, out.stride);
      }
    }
  }

 private:
  static HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> KeyOfLane() {
    const hn::RebindToSigned<DF> di;
    return hn::ShiftRight < kTogether == 1 ? 0 : 2 > (hn::Iota(di, 0));
  }
  // f over the keys of a vector, in every lane of the row.
  template <class F>
  static HWY_INLINE VF Fold(VF v, const F& f) {
    const DF df;
    if constexpr (kLanes > 4) {
      v = f(v, hn::ReverseBlocks(df, v));
      if constexpr (kLanes > 8) v = f(v, hn::SwapAdjacentBlocks(v));
    }
    if constexpr (kTogether == 1) {
      v = f(v, hn::Shuffle1032(v));
      v = f(v, hn::Shuffle2301(v));
    }
    return v;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
