// What a file says about one tensor in it, whatever the format.
#ifndef FOVEA_CLI_FILES_TENSOR_INFO_H_
#define FOVEA_CLI_FILES_TENSOR_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/tensor.h"

namespace fovea::files {

struct TensorInfo {
  std::string name;             // empty in formats with one tensor a file
  DType dtype = DType::kNone;   // kNone: a type that Fovea does not have
  std::string type_name;        // as the file spells it
  std::vector<int64_t> shape;   // empty: a single number
  bool fortran_order = false;   // first axis fastest
  uint64_t begin = 0, end = 0;  // bytes of the file that hold the elements
};

constexpr size_t kMaxAxes = 32;  // NumPy's limit of its 1.x versions; more is damage or an attack

// Elements of `shape` times `element_bytes`, axes of size 0 counted as 1 where that is larger:
// false if it does not fit into 63 bits, so that strides computed from an accepted shape never
// overflow. *bytes is the true size, 0 if any axis is.
bool ShapeBytes(const std::vector<int64_t>& shape, int64_t element_bytes, uint64_t* bytes);

// The beginning of a text that a file holds, for a message of one line: control characters are
// shown as '?'.
std::string Printable(const std::string& text, size_t most);

// "[2, 3, 4]".
std::string ToString(const std::vector<int64_t>& shape);

}  // namespace fovea::files

#endif  // FOVEA_CLI_FILES_TENSOR_INFO_H_
