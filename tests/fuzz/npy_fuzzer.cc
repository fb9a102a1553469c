// Any bytes are safe to read as the start of a .npy file, and what is accepted lies inside the
// file.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cli/files/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using fovea::files::TensorInfo;
  if (size == 0) return 0;
  // The first byte says how much longer than its beginning the file is.
  const uint64_t file_bytes = size - 1 + (uint64_t{1} << data[0] % 64) - 1;
  TensorInfo info;
  std::string error;
  const bool ok = fovea::files::ParseNpy(data + 1, size - 1, file_bytes, &info, &error);
  if (!ok && (error.empty() || error.find('\n') != std::string::npos)) std::abort();
  if (!ok) return 0;
  if (info.begin > info.end || info.end > file_bytes || info.shape.size() > fovea::files::kMaxAxes)
    std::abort();
  uint64_t bytes = 0;
  const int64_t element = fovea::SizeOf(info.dtype);
  if (element == 0) return 0;
  if (!fovea::files::ShapeBytes(info.shape, element, &bytes) || bytes != info.end - info.begin)
    std::abort();
  // What is read can be written, and reads the same.
  std::string header;
  if (info.fortran_order) return 0;
  if (!fovea::files::NpyHeader(info.dtype, info.shape, &header, &error)) std::abort();
  TensorInfo again;
  if (!fovea::files::ParseNpy(header.data(), header.size(), header.size() + bytes, &again, &error))
    std::abort();
  if (again.dtype != info.dtype || again.shape != info.shape) std::abort();
  return 0;
}
