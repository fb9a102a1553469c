// Moving rows between the caller's memory (any type, any stride) and the kernels' f32 scratch, straight or transposed. Knows no attention.
#if defined(FOVEA_SRC_KERNELS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_LOAD_INL_H_
#undef FOVEA_SRC_KERNELS_LOAD_INL_H_
#else
#define FOVEA_SRC_KERNELS_LOAD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "fovea/tensor.h"
#include "hwy/highway.h"

// Hot loops are inlined, worth 1 to 2 % of a call, but not into builds with sanitizers, where compilers take minutes over the whole.
#undef FOVEA_HOT
#if HWY_IS_ASAN || HWY_IS_TSAN || HWY_IS_MSAN
#define FOVEA_HOT HWY_NOINLINE
#else
#define FOVEA_HOT HWY_INLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kMaxTileLanes = 64;

// The score of a removed pair.
HWY_INLINE float MinusInfinityScalar() { return -hwy::HighestValue<float>() * 2.0f; }
HWY_INLINE VF MinusInfinity() { return hn::Set(DF(), MinusInfinityScalar()); }

HWY_INLINE int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
HWY_INLINE T ReadAs(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));  // the caller's address may be unaligned
  return value;
}

// memcpy for short runs, of which a call would cost as much as the copy.
HWY_INLINE void CopyBytes(const char* p, int64_t bytes, void* to) {
  const hn::Repartition<uint8_t, DF> d8;
  constexpr int64_t kBytes = 4 * kLanes;
  uint8_t* HWY_RESTRICT target = static_cast<uint8_t*>(to);
  int64_t x = 0;
  for (; x + kBytes <= bytes; x += kBytes) hn::StoreU(hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + x), d8, target + x);
  if (x < bytes) std::memcpy(target + x, p + x, static_cast<size_t>(bytes - x));
}

// n elements of 16 bits, side by side but perhaps unaligned, as f32.
template <class T>
HWY_INLINE void WidenRow(const char* p, int64_t n, float* HWY_RESTRICT to) {
  const DF df;
  const hn::Rebind<T, DF> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const auto widen = [&](const void* from)
                         HWY_ATTR { return hn::PromoteTo(df, hn::BitCast(d16, hn::LoadU(d8, static_cast<const uint8_t*>(from)))); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(widen(p + 2 * i), df, to + i);
  if (i < n) {
    char tail[2 * kLanes] = {};
    std::memcpy(tail, p + 2 * i, static_cast<size_t>(2 * (n - i)));
    hn::StoreN(widen(tail), df, to + i, static_cast<size_t>(n - i));
  }
}

// n booleans, a byte each, as 0 (true) or −inf (false): a mask is a bias that removes.
HWY_INLINE void LoadBooleans(const char* p, int64_t stride, int64_t n, float* HWY_RESTRICT to) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) {
      const auto allowed = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + i));
      const auto removed = hn::RebindMask(df, hn::Eq(allowed, hn::Zero(di)));
      hn::StoreU(hn::IfThenElseZero(removed, MinusInfinity()), df, to + i);
    }
  }
  for (; i < n; ++i) to[i] = p[i * stride] != 0 ? 0.0f : MinusInfinityScalar();
}

// n booleans from bit `first` of packed ones on.
HWY_INLINE void LoadBits(const char* p, int64_t first, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = (static_cast<uint8_t>(p[(first + i) / 8]) >> ((first + i) % 8) & 1) != 0 ? 0.0f : MinusInfinityScalar();
  }
}

// n elements, `stride` bytes apart, as f32; booleans as LoadBooleans.
inline HWY_NOINLINE void LoadRow(DType dtype, const char* p, int64_t stride, int64_t n, float* HWY_RESTRICT to) {
  switch (dtype) {
    case DType::kF32:
      if (stride == sizeof(float)) {
        std::memcpy(to, p, static_cast<size_t>(n) * sizeof(float));
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = ReadAs<float>(p + i * stride);
      }
      return;
    case DType::kF16:
      if (stride == sizeof(hwy::float16_t)) return WidenRow<hwy::float16_t>(p, n, to);
      for (int64_t i = 0; i < n; ++i) to[i] = hwy::F32FromF16(ReadAs<hwy::float16_t>(p + i * stride));
      return;
    case DType::kBF16:
      if (stride == sizeof(hwy::bfloat16_t)) return WidenRow<hwy::bfloat16_t>(p, n, to);
      for (int64_t i = 0; i < n; ++i) to[i] = hwy::F32FromBF16(ReadAs<hwy::bfloat16_t>(p + i * stride));
      return;
    case DType::kBool:
      return LoadBooleans(p, stride, n, to);
    default:
      HWY_DASSERT(false);
  }
}

// n floats to f32 elements `stride` bytes apart.
HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, int64_t n, char* p, int64_t stride) {
  if (stride == sizeof(float)) {
    std::memcpy(p, from, static_cast<size_t>(n) * sizeof(float));
  } else {
    for (int64_t i = 0; i < n; ++i) std::memcpy(p + i * stride, from + i, sizeof(float));
  }
}

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
  const auto ab_lo = hn::BitCast(du, hn::InterleaveLower(df, a, b)), ab_hi = hn::BitCast(du, hn::InterleaveUpper(df, a, b));
  const auto cd_lo = hn::BitCast(du, hn::InterleaveLower(df, c, d)), cd_hi = hn::BitCast(du, hn::InterleaveUpper(df, c, d));
  a = hn::BitCast(df, hn::InterleaveLower(du, ab_lo, cd_lo));
  b = hn::BitCast(df, hn::InterleaveUpper(du, ab_lo, cd_lo));
  c = hn::BitCast(df, hn::InterleaveLower(du, ab_hi, cd_hi));
  d = hn::BitCast(df, hn::InterleaveUpper(du, ab_hi, cd_hi));
}

// Calls f(column, row, the elements of that column of kLanes rows from `row` on) for kVectors·kLanes rows: a register transpose, four columns at a time (a
// gather costs ten times as much).
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
      VF a = LoadBlocks(df, from + 0, at), b = LoadBlocks(df, from + 1, at), c = LoadBlocks(df, from + 2, at),
         d = LoadBlocks(df, from + 3, at);
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
  ForEachColumn<kVectors>(rows, columns,
                          [&](int64_t column, int row, VF v) HWY_ATTR { hn::Store(v, DF(), to + column * (kVectors * kLanes) + row); });
}

// Rows of f32 in the caller's memory that are written: row r starts at row[r], its elements are `stride` bytes apart.
struct RowsOut {
  char* row[kMaxTileLanes];
  int count;
  int64_t stride;
  bool contiguous;  // unit stride, and every row aligned for float
};

// out.row[r][column] = from[column][r] · factor[r].
template <int kVectors>
HWY_INLINE void TransposeOut(const float* HWY_RESTRICT from, int64_t columns, const float* HWY_RESTRICT factor, const RowsOut& out) {
  const DF df;
  constexpr int kRows = kVectors * kLanes;
  for (int v = 0; v < kVectors && v * kLanes < out.count; ++v) {
    const VF scale = hn::Load(df, factor + v * kLanes);
    const int count = HWY_MIN(out.count - v * kLanes, kLanes);
    char* const* rows = out.row + v * kLanes;
    // Whole groups of four columns go straight to contiguous rows; the rest through a small buffer.
    float buffer[kLanes][4];
    float* target[kLanes];
    const bool direct = out.contiguous && count == kLanes;
    for (int64_t column = 0; column < columns; column += 4) {
      const int64_t n = HWY_MIN(columns - column, int64_t{4});
      const bool buffered = !direct || n < 4;
      for (int r = 0; r < kLanes; ++r) target[r] = buffered ? buffer[r] : reinterpret_cast<float*>(rows[r]) + column;
      const float* p = from + column * kRows + v * kLanes;
      VF a = hn::Mul(hn::Load(df, p), scale);
      VF b = n > 1 ? hn::Mul(hn::Load(df, p + kRows), scale) : a;
      VF c = n > 2 ? hn::Mul(hn::Load(df, p + 2 * kRows), scale) : a;
      VF d = n > 3 ? hn::Mul(hn::Load(df, p + 3 * kRows), scale) : a;
      TransposeBlocks(a, b, c, d);
      StoreBlocks(df, a, target + 0, 0);
      StoreBlocks(df, b, target + 1, 0);
      StoreBlocks(df, c, target + 2, 0);
      StoreBlocks(df, d, target + 3, 0);
      if (buffered) {
        for (int r = 0; r < count; ++r) StoreRow(buffer[r], n, rows[r] + column * out.stride, out.stride);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
