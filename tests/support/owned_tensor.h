// Tensors that own their memory, in every layout a caller may have: the tests' side of a view.
#ifndef FOVEA_TESTS_SUPPORT_OWNED_TENSOR_H_
#define FOVEA_TESTS_SUPPORT_OWNED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/tensor.h"
#include "reference/element.h"

namespace fovea::test {

// The order and distance of elements in memory. Axes as in the view: […, rows, channels].
enum class Layout {
  kDense,       // C order
  kSwapped,     // the two axes before the last exchanged: BTHD for a tensor [B, H, T, d]
  kTransposed,  // the last two axes exchanged: the innermost stride is a row
  kReversed,    // C order with every axis backwards: negative strides
  kPadded,      // three elements of padding behind each row
  kPage,        // rows at multiples of 4 KiB
  kSparse,      // every other element: the innermost stride is two elements
};
constexpr Layout kLayouts[] = {Layout::kDense,    Layout::kSwapped, Layout::kTransposed,
                               Layout::kReversed, Layout::kPadded,  Layout::kPage,
                               Layout::kSparse};

// Where the memory lies.
enum class Placement {
  kAligned,      // 64 bytes
  kUnaligned,    // one element behind an aligned address
  kBeforeGuard,  // the last element ends where an inaccessible page begins
  kAfterGuard,   // the first element begins where an inaccessible page ends
};
constexpr Placement kPlacements[] = {Placement::kAligned, Placement::kUnaligned,
                                     Placement::kBeforeGuard, Placement::kAfterGuard};

struct Storage {
  Layout layout = Layout::kDense;
  Placement placement = Placement::kAligned;
  unsigned broadcast = 0;  // bit a: axis a is stored once and has stride 0
};
std::string ToString(const Storage& storage);

// Bytes behind an optional inaccessible page; also used for workspaces.
class Memory {
 public:
  Memory() = default;
  Memory(size_t bytes, Placement placement, size_t element);
  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Every byte starts as kFill. Four or two of them make a NaN, so padding that is read by mistake
// shows in the result; the padding of bits is true.
//
// Rows of bits (kBit) and of quantised elements are whole units in order: kTransposed and kSparse
// mean kPadded for them, kReversed leaves the innermost axis as it is, and that axis cannot be
// broadcast by a stride. Of a quantised element Get gives the code, or the value in a block; codes
// can be Set, elements of blocks cannot.
class OwnedTensor {
 public:
  static constexpr unsigned char kFill = 0xFF;

  OwnedTensor() = default;  // absent
  OwnedTensor(DType dtype, std::vector<int64_t> shape, Storage storage = {});

  bool present() const { return view_.present(); }
  int64_t size() const { return view_.size(); }
  TensorView view() const { return view_; }
  const MutableTensorView& mutable_view() const { return view_; }

  // Elements by their number in C order of the view's shape. Set rounds to the element type.
  double Get(int64_t element) const;
  void Set(int64_t element, double value);
  // By index, as many as there are axes.
  double At(std::initializer_list<int64_t> index) const { return Get(Number(index)); }
  void SetAt(std::initializer_list<int64_t> index, double value) { Set(Number(index), value); }
  int64_t Number(std::initializer_list<int64_t> index) const;
  // Gives each element next(); a broadcast element keeps the last of its values.
  void Fill(const std::function<double()>& next);

  std::vector<double> Dense() const;  // C order
  // the elements' bytes in C order (a byte for each bit): for bit-identity
  std::vector<unsigned char> Bytes() const;
  void Reset();  // all bytes to kFill, padding included
  // The least piece of memory that holds the element: UnitBytes of the type.
  unsigned char* Unit(int64_t element) { return Address(element); }
  bool Untouched() const;         // all bytes are kFill
  bool PaddingUntouched() const;  // all bytes outside the elements are
  bool ElementUntouched(int64_t element) const;
  // The same elements in other memory.
  OwnedTensor CopiedTo(Storage storage) const;

 private:
  bool bits() const { return view_.dtype == DType::kBit; }
  bool has_rows_of_units() const { return bits() || IsQuantised(view_.dtype); }
  int64_t ElementBytes() const { return UnitBytes(view_.dtype); }
  // Of the unit that holds it.
  unsigned char* Address(int64_t element) const;
  int BitOf(int64_t element) const {
    return static_cast<int>(element % view_.shape[view_.rank - 1] % 8);
  }

  Memory memory_;
  MutableTensorView view_;
  bool dense_ = false;  // elements follow each other in C order: no padding, and quick to find
};

using reference::DecodeElement;
// Stores the value rounded to the type.
void EncodeElement(DType dtype, double value, void* to);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_OWNED_TENSOR_H_
