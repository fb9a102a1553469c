// Tensors that own their memory, in the layouts that callers have.
#ifndef FOVEA_TESTS_SAME_BITS_TENSOR_H_
#define FOVEA_TESTS_SAME_BITS_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fovea/tensor.h"

namespace fovea::same_bits {

// How elements lie in memory.
struct Storage {
  std::vector<int> order;  // axes from the innermost to the outermost; empty: C order
  int64_t step = 1;        // elements from one to the next of the innermost axis
  int64_t padding = 0;     // elements behind each row
  int64_t first = 0;       // elements before the first one
  bool reversed = false;   // all axes run backwards
  unsigned broadcast = 0;  // bit a: axis a is stored once and has stride 0
};

// Bytes that nothing has written are kFill. Four or two of them are a finite number.
class Tensor {
 public:
  static constexpr unsigned char kFill = 0xA5;

  Tensor() = default;  // absent
  // Rows of bits (DType::kBit) are whole bytes, so `storage` counts for their other axes alone.
  Tensor(DType dtype, std::vector<int64_t> shape, const Storage& storage = {});
  // Takes memory that exists, `bytes` of it.
  Tensor(std::shared_ptr<char> memory, size_t bytes, const MutableTensorView& view);

  TensorView view() const { return view_; }
  const MutableTensorView& mutable_view() const { return view_; }
  int64_t size() const { return view_.size(); }

  // Rounds to the type of the elements, which are numbered in C order of the shape.
  void Set(int64_t element, double value);
  void Fill(const std::function<double()>& next);
  // Calls f with the address of each element in C order; not for bits.
  void ForEach(const std::function<void(char* address)>& f) const;

  // Fills all memory with kFill.
  void Reset();
  // Hashes all memory, padding included; every NaN counts as the same one.
  uint64_t Hash();

 private:
  char* Address(int64_t element) const;

  std::shared_ptr<char> memory_;
  size_t bytes_ = 0;
  MutableTensorView view_;
};

// Writes `value` as one element of that type, rounded to nearest, ties to even; not for bits.
void Encode(DType dtype, double value, char* to);
double Decode(DType dtype, const char* from);  // f32, f16 or bf16

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_TENSOR_H_
