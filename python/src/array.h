// The caller's Python arrays as views, nothing copied or cast, and new ones. Knows protocols
// (DLPack, buffers), and nothing of attention.
#ifndef FOVEA_PYTHON_ARRAY_H_
#define FOVEA_PYTHON_ARRAY_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "fovea/tensor.h"
#include "library.h"

namespace fovea::python {

// Whose arrays they are: outputs are allocated by the same library.
enum class Library { kNumpy, kTorch };

// fovea.quantised(array, type): an array of the bytes of packed elements, or of f32 for f32_z4.
struct QuantisedArray {
  nb::object array;
  DType dtype;

  // TypeError or ValueError for types that arrays need no help with.
  QuantisedArray(nb::object of, const std::string& type);
};

// The arrays of one call, borrowed from construction to destruction: what exports them (buffers,
// DLPack capsules) stays exported for as long. Made and destroyed with the GIL held. All functions
// throw Python exceptions: TypeError for objects that are no arrays and element types that Fovea
// has none of, ValueError for other devices, too many axes, read-only outputs and tensors that
// require gradients.
class Borrower {
 public:
  Borrower() = default;
  ~Borrower();
  Borrower(const Borrower&) = delete;
  Borrower& operator=(const Borrower&) = delete;

  // PyTorch's dispatcher has seen to gradients and lazy views of the tensors that follow.
  void TrustTensors() { trusted_ = true; }

  // `name` is that of the argument, for messages. Ranks 1 to 4.
  TensorView Input(nb::handle array, const char* name) {
    return Const(Borrow(array, name, false, false));
  }
  MutableTensorView Output(nb::handle array, const char* name) {
    return Borrow(array, name, true, false);
  }
  // An array of bytes whose bits are booleans, as kBit: shape[rank − 1] is still the number of
  // bytes.
  TensorView Bits(nb::handle array, const char* name) {
    return Const(Borrow(array, name, false, true));
  }
  // As Input, but bytes are codes of 8 bits, and an object of QuantisedArray is what it says.
  TensorView Codes(nb::handle array, const char* name) {
    return Const(BorrowCodes(array, name, false));
  }
  // Likewise, to be written.
  MutableTensorView MutableCodes(nb::handle array, const char* name) {
    return BorrowCodes(array, name, true);
  }
  // As Input, but lists and tuples of numbers will do too: they are no tensors, and are stored
  // here.
  TensorView Integers(nb::handle array, const char* name);
  TensorView Floats(nb::handle array, const char* name);

 private:
  static TensorView Const(const MutableTensorView& view) { return view; }
  MutableTensorView Borrow(nb::handle array, const char* name, bool writable, bool bits);
  MutableTensorView BorrowCodes(nb::handle array, const char* name, bool writable);
  MutableTensorView FromExchange(const TypeInfo& info, nb::handle array, const char* name,
                                 bool writable, bool bits);
  MutableTensorView FromBuffer(const TypeInfo& info, nb::handle array, const char* name,
                               bool writable, bool bits);
  MutableTensorView FromDLPack(nb::handle array, const char* name, bool writable, bool bits);

  void CheckTorch(nb::handle tensor, const char* name);

  enum class GradMode { kUnknown, kOff, kOn };  // PyTorch's, asked for once per call
  bool codes_ = false;                          // arrays of bytes and of fp8 are taken
  GradMode grad_mode_ = GradMode::kUnknown;
  bool trusted_ = false;
  static constexpr int kFewBuffers = 6;
  Py_buffer few_[kFewBuffers];  // most calls have no more
  int n_few_ = 0;
  std::deque<Py_buffer> many_;  // a Py_buffer may not move
  std::vector<nb::object> objects_;
  std::deque<std::vector<int64_t>> integers_;
  std::deque<std::vector<float>> floats_;
};

Library LibraryOf(nb::handle array);

// A new array of floats of `library`, dense in C order, not initialised; *data is where its
// elements are.
nb::object Empty(Library library, DType dtype, int rank, const int64_t* shape, void** data);

// A new tensor of PyTorch on the memory of a dense one of `dense_shape`: its axes are `shape`, with
// `strides` in elements.
nb::object EmptyTorch(DType dtype, int rank, const int64_t* dense_shape, const int64_t* shape,
                      const int64_t* strides, void** data);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_ARRAY_H_
