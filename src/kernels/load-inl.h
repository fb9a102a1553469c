// Moving rows between the caller's memory (any type, any stride) and the kernels' f32 scratch,
// straight or transposed. Knows no attention.
#if defined(FOVEA_SRC_KERNELS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_LOAD_INL_H_
#undef FOVEA_SRC_KERNELS_LOAD_INL_H_
#else
#define FOVEA_SRC_KERNELS_LOAD_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fovea/tensor.h"
#include "hwy/highway.h"

// Hot loops are inlined, worth 1 to 2 % of a call, but not into builds with sanitizers, where
// compilers take minutes over the whole.
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

HWY_INLINE int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

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
  for (; x + kBytes <= bytes; x += kBytes)
    hn::StoreU(hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + x), d8, target + x);
  if (x < bytes) std::memcpy(target + x, p + x, static_cast<size_t>(bytes - x));
}

// Whether the target has an instruction that widens f16.
constexpr bool kWidensF16 = kLanes > 4 || HWY_TARGET_IS_NEON;

// A vector of 16-bit floats as f32. Exact, subnormals, infinities and NaN included.
HWY_INLINE VF Widen(hn::Vec<hn::Rebind<hwy::bfloat16_t, DF>> v) { return hn::PromoteTo(DF(), v); }
HWY_INLINE VF Widen(hn::Vec<hn::Rebind<hwy::float16_t, DF>> v) {
  const DF df;
  if constexpr (kWidensF16) {
    return hn::PromoteTo(df, v);
  } else {
    // Not Highway's emulation: 1.2 widens infinities and NaN as if they were numbers from 65536 on.
    const hn::RebindToSigned<DF> di;
    const auto bits =
        hn::ShiftLeft<16>(hn::PromoteTo(di, hn::BitCast(hn::Rebind<uint16_t, DF>(), v)));
    // exponent and fraction where f32 has them
    const auto magnitude = hn::And(hn::ShiftRight<3>(bits), hn::Set(di, 0x0fffe000));
    // With an exponent of one too much normal numbers are twice as large, and subnormal ones 2^−14
    // too large; each way is the smaller one where it is right.
    const VF x = hn::BitCast(df, hn::Add(magnitude, hn::Set(di, (127 - 14) << 23)));
    const VF finite = hn::Min(hn::Mul(x, hn::Set(df, 0.5f)), hn::Sub(x, hn::Set(df, 0x1p-14f)));
    // infinities and NaN
    const auto is_special = hn::VecFromMask(di, hn::Gt(magnitude, hn::Set(di, (31 << 23) - 1)));
    const auto rest =
        hn::Or(hn::And(is_special, hn::Set(di, 0x7f800000)), hn::And(bits, hn::Set(di, INT32_MIN)));
    return hn::Or(finite, hn::BitCast(df, rest));
  }
}

// The vector at p of elements of type T: float, hwy::float16_t or hwy::bfloat16_t. With n: of n
// elements, then zeros.
template <class T>
HWY_INLINE VF LoadAsF32(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(DF(), p);
  } else {
    return Widen(hn::LoadU(hn::Rebind<T, DF>(), p));
  }
}
template <class T>
HWY_INLINE VF LoadAsF32(const T* p, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadN(DF(), p, static_cast<size_t>(n));
  } else {
    T some[kLanes] = {};
    std::memcpy(some, p, static_cast<size_t>(n) * sizeof(T));
    return LoadAsF32(some);
  }
}

// f(T()) for the type T of elements: float, hwy::float16_t or hwy::bfloat16_t.
template <class F>
HWY_INLINE auto WithFloatType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF16:
      return f(hwy::float16_t());
    case DType::kBF16:
      return f(hwy::bfloat16_t());
    default:
      HWY_DASSERT(dtype == DType::kF32);
      return f(0.0f);
  }
}

// n elements of 16 bits, `stride` bytes apart, at any address, as f32.
template <class T>
HWY_INLINE void WidenRow(const char* p, int64_t stride, int64_t n, float* HWY_RESTRICT to) {
  const DF df;
  const hn::Rebind<T, DF> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  int64_t i = 0;
  if (stride == sizeof(T)) {
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(Widen(hn::BitCast(
                     d16, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + i * sizeof(T)))),
                 df, to + i);
    }
  }
  for (; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    T some[kLanes] = {};
    for (int64_t x = 0; x < count; ++x) std::memcpy(some + x, p + (i + x) * stride, sizeof(T));
    hn::StoreN(LoadAsF32(some), df, to + i, static_cast<size_t>(count));
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
      const auto allowed =
          hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p) + i));
      const auto removed = hn::RebindMask(df, hn::Eq(allowed, hn::Zero(di)));
      hn::StoreU(hn::IfThenElseZero(removed, MinusInfinity()), df, to + i);
    }
  }
  for (; i < n; ++i) to[i] = p[i * stride] != 0 ? 0.0f : MinusInfinityScalar();
}

// n booleans from bit `first` of packed ones on.
HWY_INLINE void LoadBits(const char* p, int64_t first, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = (static_cast<uint8_t>(p[(first + i) / 8]) >> ((first + i) % 8) & 1) != 0
                ? 0.0f
                : MinusInfinityScalar();
  }
}

// Rows of n elements, `stride` bytes apart, as f32; booleans as LoadBooleans. Rows are row_stride
// bytes apart, and to_stride floats in `to`.
inline HWY_NOINLINE void LoadRows(DType dtype, const char* p, int64_t row_stride, int64_t stride,
                                  int64_t rows, int64_t n, float* HWY_RESTRICT to,
                                  int64_t to_stride) {
  const auto for_each = [&](const auto& load) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r, p += row_stride, to += to_stride) load();
  };
  switch (dtype) {
    case DType::kF32:
      return for_each([&]() {
        if (stride == sizeof(float)) {
          std::memcpy(to, p, static_cast<size_t>(n) * sizeof(float));
        } else {
          for (int64_t i = 0; i < n; ++i) to[i] = ReadAs<float>(p + i * stride);
        }
      });
    case DType::kF16:
      return for_each([&]() HWY_ATTR { WidenRow<hwy::float16_t>(p, stride, n, to); });
    case DType::kBF16:
      return for_each([&]() HWY_ATTR { WidenRow<hwy::bfloat16_t>(p, stride, n, to); });
    case DType::kBool:
      return for_each([&]() HWY_ATTR { LoadBooleans(p, stride, n, to); });
    default:
      HWY_DASSERT(false);
  }
}

HWY_INLINE void LoadRow(DType dtype, const char* p, int64_t stride, int64_t n, float* to) {
  LoadRows(dtype, p, 0, stride, 1, n, to, 0);
}

// n floats to elements of 16 bits, `stride` bytes apart, at any address: rounded to nearest even.
template <class T>
HWY_INLINE void NarrowRow(const float* HWY_RESTRICT from, int64_t n, char* p, int64_t stride) {
  const DF df;
  const hn::Rebind<T, DF> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  int64_t i = 0;
  if (stride == sizeof(T)) {
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(hn::BitCast(d8, hn::DemoteTo(d16, hn::LoadU(df, from + i))), d8,
                 reinterpret_cast<uint8_t*>(p) + i * sizeof(T));
    }
  }
  for (; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    T some[kLanes];
    hn::StoreU(hn::DemoteTo(d16, LoadAsF32(from + i, count)), d16, some);
    for (int64_t x = 0; x < count; ++x) std::memcpy(p + (i + x) * stride, some + x, sizeof(T));
  }
}

// Rows of n floats to elements of that type, `stride` bytes apart: row r of `from`, whose rows are
// from_stride floats apart, to the address rows[r] + offset.
inline HWY_NOINLINE void StoreRows(DType dtype, const float* HWY_RESTRICT from, int64_t from_stride,
                                   int64_t n, char* const* rows, int count, int64_t offset,
                                   int64_t stride) {
  const auto for_each = [&](const auto& store) HWY_ATTR {
    for (int r = 0; r < count; ++r, from += from_stride) store(rows[r] + offset);
  };
  switch (dtype) {
    case DType::kF16:
      return for_each([&](char* p) HWY_ATTR { NarrowRow<hwy::float16_t>(from, n, p, stride); });
    case DType::kBF16:
      return for_each([&](char* p) HWY_ATTR { NarrowRow<hwy::bfloat16_t>(from, n, p, stride); });
    default:
      HWY_DASSERT(dtype == DType::kF32);
      return for_each([&](char* p) {
        if (stride == sizeof(float)) {
          std::memcpy(p, from, static_cast<size_t>(n) * sizeof(float));
        } else {
          for (int64_t i = 0; i < n; ++i) std::memcpy(p + i * stride, from + i, sizeof(float));
        }
      });
  }
}

HWY_INLINE void StoreRow(DType dtype, const float* from, int64_t n, char* p, int64_t stride) {
  StoreRows(dtype, from, 0, n, &p, 1, 0, stride);
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

// Rows in the caller's memory that are written: row r starts at row[r], its elements are `stride`
// bytes apart.
struct RowsOut {
  char* row[kMaxTileLanes];
  int count;
  DType dtype;
  int64_t stride;
  bool plain;  // f32, unit stride, and every row aligned for float
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
                                const float* HWY_RESTRICT factor, const RowsOut& out) {
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
      StoreRows(out.dtype, buffer[0], kBuffered, n, rows, count, column * out.stride, out.stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
