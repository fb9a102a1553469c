// NumPy's .npy: a header that is a Python literal, then the elements (format versions 1.0, 2.0
// and 3.0, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#ifndef FOVEA_CLI_FILES_NPY_H_
#define FOVEA_CLI_FILES_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/files/tensor_info.h"

namespace fovea::files {

// The longest header that is read. NumPy itself trusts headers of up to 10000 bytes.
constexpr size_t kMaxNpyHeader = size_t{1} << 20;

// Reads the header from the first `size` bytes of a file of `file_bytes` bytes (size ≥
// min(file_bytes, kMaxNpyHeader + 12)) and checks it against that size. Little-endian f2, f4, i4,
// i8, i1, and b1 and u1 (both as bool); big-endian and structured arrays are errors, other types
// leave dtype kNone. Any bytes are safe. False with a message in *error.
bool ParseNpy(const void* data, size_t size, uint64_t file_bytes, TensorInfo* info,
              std::string* error);

// Everything before the elements, padded so that they begin at a multiple of 64 bytes. False for
// types that the format lacks (bf16).
bool NpyHeader(DType dtype, const std::vector<int64_t>& shape, std::string* header,
               std::string* error);

}  // namespace fovea::files

#endif  // FOVEA_CLI_FILES_NPY_H_
