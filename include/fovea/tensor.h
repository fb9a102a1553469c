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
};

namespace internal {
// A unit is the least piece of memory that has an address of its own: one element, or as many as
// are packed together.
struct ElementFormat {
  const char* name;
  int64_t element_bytes;  // 0 where elements are packed
  int64_t unit_elements;
  int64_t unit_bytes;
};
constexpr ElementFormat OfBytes(const char* name, int64_t bytes) { return {name, bytes, 1, bytes}; }
constexpr ElementFormat Packed(const char* name, int64_t elements, int64_t bytes) {
  return {name, 0, elements, bytes};
}
// What each type is, in the order of DType.
inline constexpr ElementFormat kElementFormats[] = {
    OfBytes("none", 0), OfBytes("f32", 4), OfBytes("f16", 2), OfBytes("bf16", 2),
    OfBytes("bool", 1), OfBytes("i32", 4), OfBytes("i64", 8), Packed("bit", 8, 1),
};
inline constexpr ElementFormat kUnknownFormat = OfBytes("unknown", 0);

constexpr const ElementFormat& FormatOf(DType dtype) {
  const auto n = static_cast<size_t>(dtype);  // a negative one becomes large
  return n < sizeof(kElementFormats) / sizeof(ElementFormat) ? kElementFormats[n] : kUnknownFormat;
}
}  // namespace internal

// Bytes of one element; 0 for kNone, for kBit and for values outside the enumeration.
constexpr int64_t SizeOf(DType dtype) { return internal::FormatOf(dtype).element_bytes; }

// "f32", "f16", "bf16", "bool", "i32", "i64", "bit"; "none" for kNone, "unknown" for values outside
// the enumeration.
constexpr const char* Name(DType dtype) { return internal::FormatOf(dtype).name; }

// The most axes that a view has.
constexpr int kMaxRank = 4;

// A tensor in memory that belongs to the caller: element [i0, i1, …] is at data + Σ i·stride,
// strides in BYTES. Any stride is legal: zero (broadcast), negative, or a non-unit innermost one. A
// default-constructed view (rank 0) is an absent tensor. Of packed booleans (kBit) the innermost
// stride is that of the bytes and must be 1; the other axes are in bytes as always, so that rows
// start at whole bytes.
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
    view.stride[a] = element_strides[a] * SizeOf(dtype);
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
// Dense, of any type but kBit, to be read: f16 and bf16 have no C++ type.
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
