// The table of element formats: how rows of each type become f32 and back. A new type is a row of
// this table and one of fovea/tensor.h's. Knows no attention. Quantised formats stand
// in codes-inl.h and code_blocks-inl.h.
#if defined(FOVEA_SRC_KERNELS_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_FORMATS_INL_H_
#undef FOVEA_SRC_KERNELS_FORMATS_INL_H_
#else
#define FOVEA_SRC_KERNELS_FORMATS_INL_H_
#endif

#include "kernels/code_blocks-inl.h"
#include "kernels/codes-inl.h"
#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

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

// Whether rows of a vector type can be read as arrays of it.
HWY_INLINE bool IsPlain(DType dtype, int64_t element_stride, int64_t row_stride, const void* row) {
  const int64_t size = SizeOf(dtype);
  return element_stride == size && row_stride % size == 0 &&
         reinterpret_cast<uintptr_t>(row) % static_cast<uintptr_t>(size) == 0;
}

// As arrays of float.
HWY_INLINE bool IsPlainF32(DType dtype, int64_t element_stride, int64_t row_stride,
                           const void* row) {
  return dtype == DType::kF32 && IsPlain(dtype, element_stride, row_stride, row);
}

// One format each: Load makes f32 of the n elements from element `first` of a row on, Store makes
// elements of f32.
struct FloatElements {
  static HWY_INLINE void Load(const char* row, int64_t stride, int64_t first, int64_t n,
                              float* HWY_RESTRICT to) {
    const char* p = row + first * stride;
    if (stride == sizeof(float)) {
      std::memcpy(to, p, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = ReadAs<float>(p + i * stride);
    }
  }
  static HWY_INLINE void Store(const float* HWY_RESTRICT from, int64_t n, char* row, int64_t first,
                               int64_t stride) {
    char* p = row + first * stride;
    if (stride == sizeof(float)) {
      std::memcpy(p, from, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) std::memcpy(p + i * stride, from + i, sizeof(float));
    }
  }
};

template <class T>
struct HalfElements {
  static HWY_INLINE void Load(const char* row, int64_t stride, int64_t first, int64_t n,
                              float* HWY_RESTRICT to) {
    WidenRow<T>(row + first * stride, stride, n, to);
  }
  static HWY_INLINE void Store(const float* HWY_RESTRICT from, int64_t n, char* row, int64_t first,
                               int64_t stride) {
    NarrowRow<T>(from, n, row + first * stride, stride);
  }
};

struct BooleanElements {
  static HWY_INLINE void Load(const char* row, int64_t stride, int64_t first, int64_t n,
                              float* HWY_RESTRICT to) {
    LoadBooleans(row + first * stride, stride, n, to);
  }
};

// Packed booleans, likewise 0 or −inf.
struct BitElements {
  static HWY_INLINE void Load(const char* row, int64_t stride, int64_t first, int64_t n,
                              float* HWY_RESTRICT to) {
    const auto value = [&](int64_t i) {
      return (static_cast<uint8_t>(row[i / 8]) >> (i % 8) & 1) != 0 ? 0.0f : MinusInfinityScalar();
    };
    for (int64_t i = 0; i < n; ++i) to[i] = value(stride == 0 ? 0 : first + i);
  }
};

template <class Format>
HWY_NOINLINE void LoadRowsOf(const SourceRows& from, int64_t rows, int64_t first, int64_t n,
                             float* HWY_RESTRICT to, int64_t to_stride) {
  const char* row = from.row;
  const int64_t stride = from.stride, row_stride = from.row_stride;
  for (int64_t r = 0; r < rows; ++r, row += row_stride, to += to_stride)
    Format::Load(row, stride, first, n, to);
}

template <class Format>
HWY_NOINLINE void StoreRowsOf(const float* HWY_RESTRICT from, int64_t from_stride, int64_t n,
                              const TargetRows& to, int64_t first) {
  char* const* const rows = to.row;
  const int64_t stride = to.stride;
  for (int r = 0, count = to.count; r < count; ++r, from += from_stride)
    Format::Store(from, n, rows[r], first, stride);
}

struct RowFormat {
  DType dtype;
  // null where kernels never read, or write, the type as f32
  void (*load)(const SourceRows&, int64_t rows, int64_t first, int64_t n, float* to,
               int64_t to_stride);
  void (*store)(const float* from, int64_t from_stride, int64_t n, const TargetRows&,
                int64_t first);
};

template <class Format>
constexpr RowFormat ReadAndWritten(DType dtype) {
  return {dtype, LoadRowsOf<Format>, StoreRowsOf<Format>};
}
template <class Format>
constexpr RowFormat ReadOnly(DType dtype) {
  return {dtype, LoadRowsOf<Format>, nullptr};
}
// Of a format that reads rows itself.
template <class Rows>
constexpr RowFormat Quantised(DType dtype) {
  return {dtype, Rows::Load, nullptr};
}
constexpr RowFormat NeitherOf(DType dtype) { return {dtype, nullptr, nullptr}; }

// In the order of DType.
constexpr RowFormat kRowFormats[] = {
    NeitherOf(DType::kNone),
    ReadAndWritten<FloatElements>(DType::kF32),
    ReadAndWritten<HalfElements<hwy::float16_t>>(DType::kF16),
    ReadAndWritten<HalfElements<hwy::bfloat16_t>>(DType::kBF16),
    ReadOnly<BooleanElements>(DType::kBool),
    NeitherOf(DType::kI32),
    NeitherOf(DType::kI64),
    ReadOnly<BitElements>(DType::kBit),
    Quantised<CodedRows<WholeBytes<SignedBytes>>>(DType::kI8),
    Quantised<CodedRows<WholeBytes<UnsignedBytes>>>(DType::kU8),
    Quantised<CodedRows<NibblePairs<false, 8>>>(DType::kI4),
    Quantised<CodedRows<NibblePairs<false, 0>>>(DType::kU4),
    Quantised<CodedRows<NibblePairs<true, 8>>>(DType::kI4High),
    Quantised<CodedRows<NibblePairs<true, 0>>>(DType::kU4High),
    Quantised<CodedRows<WholeBytes<E4M3Bytes>>>(DType::kF8E4M3FN),
    Quantised<CodedRows<WholeBytes<E5M2Bytes>>>(DType::kF8E5M2),
    Quantised<BlockedRows<Q8_0Block>>(DType::kQ8_0),
    Quantised<BlockedRows<Q4_0Block>>(DType::kQ4_0),
    Quantised<BlockedRows<Q4_1Block>>(DType::kQ4_1),
    Quantised<BlockedRows<Q5_0Block>>(DType::kQ5_0),
    Quantised<BlockedRows<Q5_1Block>>(DType::kQ5_1),
    Quantised<BlockedRows<IQ4NLBlock>>(DType::kIQ4NL),
    NeitherOf(DType::kF32Z4),
};
constexpr size_t kFormats = sizeof(kRowFormats) / sizeof(RowFormat);

constexpr bool AreInOrder() {
  for (size_t n = 0; n < kFormats; ++n) {
    if (kRowFormats[n].dtype != static_cast<DType>(n)) return false;
  }
  return true;
}
static_assert(kFormats == sizeof(internal::kElementFormats) / sizeof(internal::ElementFormat) &&
                  AreInOrder(),
              "a row for each type");

// Elements first ≤ x < first + n of `rows` rows as f32, to_stride floats from row to row.
HWY_INLINE void LoadRows(const SourceRows& from, int64_t rows, int64_t first, int64_t n, float* to,
                         int64_t to_stride) {
  const RowFormat& format = kRowFormats[static_cast<size_t>(from.dtype)];
  if (format.load == nullptr) __builtin_trap();
  format.load(from, rows, first, n, to, to_stride);
}
HWY_INLINE void LoadRow(const SourceRows& from, int64_t first, int64_t n, float* to) {
  LoadRows(from, 1, first, n, to, 0);
}

// Rows of n floats, from_stride floats apart, to the elements from element `first` on.
HWY_INLINE void StoreRows(const float* from, int64_t from_stride, int64_t n, const TargetRows& to,
                          int64_t first) {
  const RowFormat& format = kRowFormats[static_cast<size_t>(to.dtype)];
  if (format.store == nullptr) __builtin_trap();
  format.store(from, from_stride, n, to, first);
}
HWY_INLINE void StoreRow(const float* from, int64_t n, DType dtype, char* row, int64_t stride) {
  StoreRows(from, 0, n, {&row, 1, dtype, stride}, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
