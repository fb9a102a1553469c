// Any bytes are safe to read as the start of a .safetensors file, and what is accepted lies inside
// the file.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using fovea::files::TensorInfo;
  if (size == 0) return 0;
  // The first byte says how much longer than its beginning the file is.
  const uint64_t file_bytes = size - 1 + (uint64_t{1} << data[0] % 64) - 1;
  std::vector<TensorInfo> tensors;
  std::string error;
  const bool ok = fovea::files::ParseSafetensors(data + 1, size - 1, file_bytes, &tensors, &error);
  if (!ok && (error.empty() || error.find('\n') != std::string::npos)) std::abort();
  if (!ok) return 0;
  for (const TensorInfo& info : tensors) {
    if (info.begin > info.end || info.end > file_bytes) std::abort();
    uint64_t bytes = 0;
    const int64_t element = fovea::SizeOf(info.dtype);
    if (element != 0 &&
        (!fovea::files::ShapeBytes(info.shape, element, &bytes) || bytes != info.end - info.begin))
      std::abort();
  }
  return 0;
}
