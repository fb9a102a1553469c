// The .safetensors format: 8 bytes with the length of a JSON header, the header, then the elements
// of all tensors without holes (https://github.com/huggingface/safetensors#format).
#ifndef FOVEA_CLI_FILES_SAFETENSORS_H_
#define FOVEA_CLI_FILES_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/files/tensor_info.h"

namespace fovea::files {

// The longest header that the format allows.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// The header's length from the first 8 bytes of a file.
uint64_t SafetensorsHeaderLength(const void* first_8_bytes);

// Reads the header from the first `size` bytes of a file of `file_bytes` bytes (size ≥ 8 and the
// header, if the file has so much) and checks everything the format promises: types against sizes,
// no overlaps, no holes, no name twice. Types that Fovea lacks leave dtype kNone; U8 is taken as
// bool. Any bytes are safe. False with a message in *error.
bool ParseSafetensors(const void* data, size_t size, uint64_t file_bytes,
                      std::vector<TensorInfo>* tensors, std::string* error);

// Everything before the elements of `tensors` (name, dtype, shape are read; begin and end are set),
// padded to a multiple of 8 bytes.
bool SafetensorsHeader(std::vector<TensorInfo>* tensors, std::string* header, std::string* error);

}  // namespace fovea::files

#endif  // FOVEA_CLI_FILES_SAFETENSORS_H_
