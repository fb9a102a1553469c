#include "support/manifest_tensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/owned_tensor.h"

namespace fovea::test {
namespace {

using nlohmann::json;
using Shape = std::vector<int64_t>;

int64_t Product(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

// ---- elements

DType ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kBool, DType::kI32,
                            DType::kI64, DType::kI8, DType::kU8}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("dtype " + name + " is not one of the library's");
}

// A number, a boolean, or "nan", "inf", "-inf" as text.
double ParseValue(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("not a value: " + value.dump());
}

// ---- buffers

// Addresses without memory behind them: pages appear when touched. Null where the system does not
// give that many.
std::shared_ptr<void> Reserve(int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes);
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED) return nullptr;
  return std::shared_ptr<void>(p, [size](void* q) { munmap(q, size); });
}

// x[n+1] = (1664525·x[n] + 1013904223) mod 2^32, x[0] = seed; element n is gain·(t − 128)/64 with t
// the top byte of x[n+1].
void Generate(uint32_t seed, double gain, DType dtype, int64_t count, char* data) {
  uint32_t x = seed;
  for (int64_t n = 0; n < count; ++n) {
    x = 1664525u * x + 1013904223u;
    const int t = static_cast<int>(x >> 24);
    const double value = dtype == DType::kU8   ? t
                         : dtype == DType::kI8 ? t - 128
                                               : gain * (t - 128) / 64;
    EncodeElement(dtype, value, data + n * SizeOf(dtype));
  }
}

// Calls f(element number) for every element of `box` ([[begin, end], …]) in a dense tensor.
void ForEachInBox(const json& box, const Shape& shape, const std::function<void(int64_t)>& f) {
  const std::function<void(size_t, int64_t)> walk = [&](size_t axis, int64_t number) {
    if (axis == shape.size()) return f(number);
    const int64_t begin = axis < box.size() ? box[axis][0].get<int64_t>() : 0;
    const int64_t end = axis < box.size() ? box[axis][1].get<int64_t>() : shape[axis];
    for (int64_t n = begin; n < std::min(end, shape[axis]); ++n)
      walk(axis + 1, number * shape[axis] + n);
  };
  walk(0, 0);
}

// The buffer that `spec` describes: stored, filled or generated, then patched.
std::shared_ptr<void> MakeBuffer(const json& spec, DType dtype, const Shape& shape,
                                 const Stored& stored) {
  const int64_t count = Product(shape);
  std::shared_ptr<void> memory = Allocate(count * SizeOf(dtype));
  char* data = static_cast<char*>(memory.get());
  if (spec.contains("tensor")) {
    const StoredTensor& tensor = stored.at(spec.at("tensor"));
    if (tensor.shape != shape ||
        static_cast<int64_t>(tensor.bytes.size()) != count * SizeOf(dtype)) {
      throw std::runtime_error("stored tensor does not fit " + spec.dump());
    }
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), data);
  } else if (spec.contains("generator")) {
    if (spec.at("generator") != "lcg")
      throw std::runtime_error("unknown generator: " + spec.dump());
    Generate(spec.at("seed"), spec.value("gain", 1.0), dtype, count, data);
  } else {
    const double value = ParseValue(spec.at("fill"));
    for (int64_t n = 0; n < count; ++n) EncodeElement(dtype, value, data + n * SizeOf(dtype));
  }
  for (const json& patch : spec.value("patch", json::array())) {
    const double value = ParseValue(patch.at("value"));
    ForEachInBox(patch.at("box"), shape,
                 [&](int64_t n) { EncodeElement(dtype, value, data + n * SizeOf(dtype)); });
  }
  return memory;
}

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t a = shape.size(); a-- > 0;) {
    strides[a] = step;
    step *= shape[a];
  }
  return strides;
}

}  // namespace

std::shared_ptr<void> Allocate(int64_t bytes) {
  return std::shared_ptr<void>(new char[static_cast<size_t>(bytes)],
                               [](void* p) { delete[] static_cast<char*>(p); });
}

TensorView MakeView(void* data, DType dtype, const Shape& shape, const Shape& element_strides) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) throw std::runtime_error("more than four axes");
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(shape.size());
  for (size_t a = 0; a < shape.size(); ++a) {
    view.shape[a] = shape[a];
    view.stride[a] = element_strides[a] * SizeOf(dtype);
  }
  return view;
}

namespace {

// The dense tensor `dense` laid out again with `element_strides`. Without memory where the system
// cannot reserve the addresses.
Tensor Place(const void* dense, DType dtype, const Shape& shape, const Shape& element_strides) {
  int64_t bytes = SizeOf(dtype);
  for (size_t a = 0; a < shape.size(); ++a)
    bytes += (shape[a] - 1) * element_strides[a] * SizeOf(dtype);
  Tensor tensor;
  tensor.memory = Reserve(bytes);
  tensor.view = MakeView(tensor.memory.get(), dtype, shape, element_strides);
  if (tensor.memory == nullptr) return tensor;
  for (int64_t n = 0; n < Product(shape); ++n) {
    int64_t rest = n, target = 0;
    for (size_t a = shape.size(); a-- > 0;) {
      target += rest % shape[a] * element_strides[a];
      rest /= shape[a];
    }
    std::memcpy(static_cast<char*>(tensor.memory.get()) + target * SizeOf(dtype),
                static_cast<const char*>(dense) + n * SizeOf(dtype),
                static_cast<size_t>(SizeOf(dtype)));
  }
  return tensor;
}

}  // namespace

Tensor TensorBuilder::Build(const json& spec) {
  const Shape shape = spec.at("shape");
  const DType dtype = ParseDType(spec.at("dtype"));
  const Shape buffer_shape = spec.value("buffer_shape", shape);
  Tensor tensor;
  tensor.memory = Buffer(spec, dtype, buffer_shape);
  if (spec.contains("place_strides_elements"))
    return Place(tensor.memory.get(), dtype, shape, spec.at("place_strides_elements"));
  const Shape strides = spec.value("strides_elements", DenseStrides(shape));
  char* data = static_cast<char*>(tensor.memory.get()) +
               spec.value("offset_elements", int64_t{0}) * SizeOf(dtype);
  tensor.view = MakeView(data, dtype, shape, strides);
  return tensor;
}

std::vector<TensorView> TensorBuilder::BuildSlices(const json& spec, Tensor* whole) {
  const Shape shape = spec.at("shape");
  const Shape part(shape.begin() + 1, shape.end());
  const DType dtype = ParseDType(spec.at("dtype"));
  whole->memory = Buffer(spec, dtype, shape);
  std::vector<TensorView> slices;
  for (int64_t n = 0; n < shape[0]; ++n) {
    char* data = static_cast<char*>(whole->memory.get()) + n * Product(part) * SizeOf(dtype);
    slices.push_back(MakeView(data, dtype, part, DenseStrides(part)));
  }
  return slices;
}

std::shared_ptr<void> TensorBuilder::Buffer(const json& spec, DType dtype, const Shape& shape) {
  if (!spec.contains("tensor") || spec.contains("patch"))
    return MakeBuffer(spec, dtype, shape, stored_);
  std::shared_ptr<void>& shared = shared_[spec.at("tensor")];
  if (shared == nullptr) shared = MakeBuffer(spec, dtype, shape, stored_);
  return shared;
}

}  // namespace fovea::test
