// Strided views of the caller's memory. A view owns nothing and copies nothing.
#ifndef FOVEA_TENSOR_H_
#define FOVEA_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fovea {

// The type of the elements of a tensor.
enum class DType : int32_t {
  kNone = 0,  // an absent tensor
  kF32 = 1,   // IEEE binary32
  kF16 = 2,   // IEEE binary16
  kBF16 = 3,  // the upper half of a binary32
  kBool = 4,  // one byte, zero = false
  kI32 = 5,   // signed, of 32 bits
  kI64 = 6,   // signed, of 64 bits
  // packed booleans: eight elements of the innermost axis in a byte, the first in bit 0; only masks
  // (BitView)
  kBit = 7,

  // From here on quantised: only k and v. docs/quantised.md says what each is worth.
  // Codes: a value is (u − zero)·scale, of views of their own (Problem::k_scale, k_zero, …).
  kI8 = 8,         // u is signed, of 8 bits
  kU8 = 9,         // u is unsigned, of 8 bits
  kI4 = 10,        // two channels in a byte, the even one in the LOW nibble; u + 8 is stored
  kU4 = 11,        // likewise, u itself (0 … 15) is stored
  kI4High = 12,    // as kI4, the even channel in the HIGH nibble
  kU4High = 13,    // as kU4, the even channel in the HIGH nibble
  kF8E4M3FN = 14,  // 4 bits of exponent, 3 of fraction; no infinities, NaN is ±0x7f
  kF8E5M2 = 15,    // 5 bits of exponent, 2 of fraction: the upper half of a binary16
  // Blocks of 32 elements with their scale d (f16), and a least value m (f16), inside, as in ggml.
  kQ8_0 = 16,   // 34 bytes: d, i8[32]; n·d
  kQ4_0 = 17,   // 18 bytes: d, nibbles; (n − 8)·d. Byte j: element j LOW, j + 16 HIGH
  kQ4_1 = 18,   // 20 bytes: d, m, nibbles; n·d + m
  kQ5_0 = 19,   // 22 bytes: d, 32 fifth bits, nibbles; (n − 16)·d
  kQ5_1 = 20,   // 24 bytes: d, m, 32 fifth bits, nibbles; n·d + m
  kIQ4NL = 21,  // 18 bytes: as kQ4_0, a nibble is one of 16 fixed values; value·d

  // Only k_scale and v_scale: a binary32 whose low four bits are the zero, 0 … 15, of its codes;
  // the scale is the number without them.
  kF32Z4 = 22,
};

namespace internal {
// What the elements of a tensor are.
enum class Coding : uint8_t {
  kPlain,   // numbers or booleans
  kCodes,   // quantised: scales and zeros are views of their own
  kBlocks,  // quantised: scales lie within
  kScale,   // a scale, and a zero in it
};

// A unit is the least piece of memory that has an address of its own: one element, or as many as
// are packed together.
struct ElementFormat {
  const char* name;
  int64_t element_bytes;  // 0 where elements are packed
  int64_t unit_elements;
  int64_t unit_bytes;
  Coding coding;
};
constexpr ElementFormat OfBytes(const char* name, int64_t bytes, Coding coding = Coding::kPlain) {
  return {name, bytes, 1, bytes, coding};
}
constexpr ElementFormat Packed(const char* name, int64_t elements, int64_t bytes, Coding coding) {
  return {name, 0, elements, bytes, coding};
}
// What each type is, in the order of DType.
inline constexpr ElementFormat kElementFormats[] = {
    OfBytes("none", 0),
    OfBytes("f32", 4),
    OfBytes("f16", 2),
    OfBytes("bf16", 2),
    OfBytes("bool", 1),
    OfBytes("i32", 4),
    OfBytes("i64", 8),
    Packed("bit", 8, 1, Coding::kPlain),
    OfBytes("i8", 1, Coding::kCodes),
    OfBytes("u8", 1, Coding::kCodes),
    Packed("i4", 2, 1, Coding::kCodes),
    Packed("u4", 2, 1, Coding::kCodes),
    Packed("i4_high", 2, 1, Coding::kCodes),
    Packed("u4_high", 2, 1, Coding::kCodes),
    OfBytes("f8_e4m3fn", 1, Coding::kCodes),
    OfBytes("f8_e5m2", 1, Coding::kCodes),
    Packed("q8_0", 32, 34, Coding::kBlocks),
    Packed("q4_0", 32, 18, Coding::kBlocks),
    Packed("q4_1", 32, 20, Coding::kBlocks),
    Packed("q5_0", 32, 22, Coding::kBlocks),
    Packed("q5_1", 32, 24, Coding::kBlocks),
    Packed("iq4_nl", 32, 18, Coding::kBlocks),
    OfBytes("f32_z4", 4, Coding::kScale),
};
inline constexpr int32_t kFormatCount =
    static_cast<int32_t>(sizeof(kElementFormats) / sizeof(ElementFormat));
inline constexpr ElementFormat kUnknownFormat = OfBytes("unknown", 0);

constexpr const ElementFormat& FormatOf(DType dtype) {
  const auto n = static_cast<size_t>(dtype);  // a negative one becomes large
  return n < static_cast<size_t>(kFormatCount) ? kElementFormats[n] : kUnknownFormat;
}
}  // namespace internal

// Bytes of one element; 0 for kNone, for types whose elements are packed (kBit, 4 bits, blocks) and
// for values outside the enumeration.
constexpr int64_t SizeOf(DType dtype) { return internal::FormatOf(dtype).element_bytes; }

// Elements of a unit, the least piece of memory that has an address of its own: one element, or the
// eight, two or 32 that are packed together.
constexpr int64_t UnitElements(DType dtype) { return internal::FormatOf(dtype).unit_elements; }
// Bytes of a unit.
constexpr int64_t UnitBytes(DType dtype) { return internal::FormatOf(dtype).unit_bytes; }

// Bytes of n elements side by side, which are whole units (a last one that is not full counts as
// such).
constexpr int64_t BytesOf(DType dtype, int64_t n) {
  const internal::ElementFormat& format = internal::FormatOf(dtype);
  return (n + format.unit_elements - 1) / format.unit_elements * format.unit_bytes;
}

// Whether k and v alone may have the type: its values are codes, which have scales.
constexpr bool IsQuantised(DType dtype) {
  return internal::FormatOf(dtype).coding == internal::Coding::kCodes ||
         internal::FormatOf(dtype).coding == internal::Coding::kBlocks;
}
// Whether scales and zeros of the codes are views of their own (k_scale, k_zero, …).
constexpr bool HasScaleViews(DType dtype) {
  return internal::FormatOf(dtype).coding == internal::Coding::kCodes;
}

// "f32", "f16", "bf16", "bool", "i32", "i64", "bit", "i8", "u8", "i4", "u4", "i4_high", "u4_high",
// "f8_e4m3fn", "f8_e5m2", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "f32_z4"; "none" for
// kNone, "unknown" for values outside the enumeration.
constexpr const char* Name(DType dtype) { return internal::FormatOf(dtype).name; }

// The most axes that a view has.
constexpr int kMaxRank = 4;

// A tensor in memory that belongs to the caller: element [i0, i1, …] is at data + Σ i·stride,
// strides in BYTES. Any stride is legal: zero (broadcast), negative, or a non-unit innermost one. A
// default-constructed view (rank 0) is an absent tensor. Of packed booleans (kBit) the innermost
// stride is that of the bytes and must be 1; the other axes are in bytes as always, so that rows
// start at whole bytes. Quantised types: shapes count elements, the innermost axis has whole units
// and its stride is the bytes of one (UnitElements, UnitBytes).
template <class Pointer>
struct BasicView {
  Pointer data = nullptr;         // of element [0, 0, …]
  DType dtype = DType::kNone;     // of every element
  int32_t rank = 0;               // how many axes there are; 0 = an absent tensor
  int64_t shape[kMaxRank] = {};   // elements of each axis
  int64_t stride[kMaxRank] = {};  // bytes from an element to the next along each axis

  // The tensor is not an absent one.
  constexpr bool present() const { return rank != 0; }
  // A view for writing can be read: out of one call is q of the next.
  template <class To, class = std::enable_if_t<std::is_same_v<To, BasicView<const void*>> &&
                                               !std::is_const_v<std::remove_pointer_t<Pointer>>>>
  constexpr operator To() const {
    To view;
    view.data = data;
    view.dtype = dtype;
    view.rank = rank;
    for (int a = 0; a < kMaxRank; ++a) {
      view.shape[a] = shape[a];
      view.stride[a] = stride[a];
    }
    return view;
  }
  // Elements, those of broadcast axes counted each time; 0 for an absent tensor.
  constexpr int64_t size() const {
    int64_t n = rank == 0 ? 0 : 1;
    for (int a = 0; a < rank; ++a) n *= shape[a];
    return n;
  }
};

// A tensor that Fovea reads.
using TensorView = BasicView<const void*>;
// A tensor that Fovea writes.
using MutableTensorView = BasicView<void*>;

namespace internal {
template <class View, class Pointer, size_t N>
constexpr View MakeView(Pointer data, DType dtype, const std::array<int64_t, N>& shape,
                        const std::array<int64_t, N>& element_strides) {
  static_assert(N >= 1 && N <= static_cast<size_t>(kMaxRank), "a view has one to four axes");
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(N);
  for (size_t a = 0; a < N; ++a) {
    view.shape[a] = shape[a];
    view.stride[a] = a + 1 == N ? element_strides[a] * UnitBytes(dtype)
                                : element_strides[a] / UnitElements(dtype) * UnitBytes(dtype);
  }
  return view;
}

template <size_t N>
constexpr std::array<int64_t, N> DenseStrides(const std::array<int64_t, N>& shape) {
  std::array<int64_t, N> stride{};
  int64_t step = 1;
  for (size_t a = N; a-- > 0;) {
    stride[a] = step;
    step *= shape[a];
  }
  return stride;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
}  // namespace internal

// Views of dense memory in C order, and of memory with explicit strides in ELEMENTS. The rank is
// the length of `shape`:
//
//   View(q, {B, Hq, Tq, dk});                                  // BHTD
//   View(q, {B, Hq, Tq, dk}, {Tq * Hq * dk, dk, Hq * dk, 1});  // the same tensor stored BTHD
//
// T is float, bool, int32_t or int64_t; for types without a C++ type of their own there are
// overloads with a DType. This one: dense, to be read.
template <class T, size_t N>
constexpr TensorView View(const T* data, const int64_t (&shape)[N]) {
  std::array<int64_t, N> s{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a];
  return internal::MakeView<TensorView>(static_cast<const void*>(data), internal::DTypeOf<T>::value,
                                        s, internal::DenseStrides(s));
}
// Strides in ELEMENTS, to be read.
template <class T, size_t N>
constexpr TensorView View(const T* data, const int64_t (&shape)[N],
                          const int64_t (&element_strides)[N]) {
  std::array<int64_t, N> s{}, t{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a], t[a] = element_strides[a];
  return internal::MakeView<TensorView>(static_cast<const void*>(data), internal::DTypeOf<T>::value,
                                        s, t);
}
// Dense, to be written.
template <class T, size_t N>
constexpr MutableTensorView View(T* data, const int64_t (&shape)[N]) {
  std::array<int64_t, N> s{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a];
  return internal::MakeView<MutableTensorView>(
      static_cast<void*>(data), internal::DTypeOf<T>::value, s, internal::DenseStrides(s));
}
// Strides in ELEMENTS, to be written.
template <class T, size_t N>
constexpr MutableTensorView View(T* data, const int64_t (&shape)[N],
                                 const int64_t (&element_strides)[N]) {
  std::array<int64_t, N> s{}, t{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a], t[a] = element_strides[a];
  return internal::MakeView<MutableTensorView>(static_cast<void*>(data),
                                               internal::DTypeOf<T>::value, s, t);
}
// Dense, of any type but kBit, to be read: f16, bf16 and quantised types have no C++ type. Where
// elements are packed the innermost axis has whole units.
template <size_t N>
constexpr TensorView View(const void* data, DType dtype, const int64_t (&shape)[N]) {
  std::array<int64_t, N> s{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a];
  return internal::MakeView<TensorView>(data, dtype, s, internal::DenseStrides(s));
}
// Dense, of any type but kBit, to be written.
template <size_t N>
constexpr MutableTensorView View(void* data, DType dtype, const int64_t (&shape)[N]) {
  std::array<int64_t, N> s{};
  for (size_t a = 0; a < N; ++a) s[a] = shape[a];
  return internal::MakeView<MutableTensorView>(data, dtype, s, internal::DenseStrides(s));
}

// Packed booleans (kBit) to be read, in C order, every row of the innermost axis filled up to whole
// bytes.
template <size_t N>
constexpr TensorView BitView(const void* data, const int64_t (&shape)[N]) {
  std::array<int64_t, N> bytes{};
  for (size_t a = 0; a < N; ++a) bytes[a] = shape[a];
  bytes[N - 1] = (shape[N - 1] + 7) / 8;
  const std::array<int64_t, N> stride = internal::DenseStrides(bytes);
  TensorView view;
  view.data = data;
  view.dtype = DType::kBit;
  view.rank = static_cast<int32_t>(N);
  for (size_t a = 0; a < N; ++a) view.shape[a] = shape[a], view.stride[a] = stride[a];
  return view;
}

// The same memory with two axes exchanged: SwapAxes(View(x, {B, T, H, d}), 1, 2) is x as [B, H, T,
// d].
template <class Pointer>
constexpr BasicView<Pointer> SwapAxes(BasicView<Pointer> view, int a, int b) {
  const int64_t shape = view.shape[a], stride = view.stride[a];
  view.shape[a] = view.shape[b], view.stride[a] = view.stride[b];
  view.shape[b] = shape, view.stride[b] = stride;
  return view;
}

}  // namespace fovea

#endif  // FOVEA_TENSOR_H_
