#include "support/safetensors.h"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fovea::test {

std::map<std::string, StoredTensor> ReadSafetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  const std::vector<unsigned char> raw{std::istreambuf_iterator<char>(file),
                                       std::istreambuf_iterator<char>()};

  constexpr size_t kLengthBytes = 8;
  if (raw.size() < kLengthBytes) throw std::runtime_error(path + ": no header");
  uint64_t header_bytes = 0;
  for (size_t n = kLengthBytes; n-- > 0;) header_bytes = header_bytes << 8 | raw[n];
  if (header_bytes > raw.size() - kLengthBytes)
    throw std::runtime_error(path + ": the header is longer than the file");
  const auto data = raw.begin() + static_cast<ptrdiff_t>(kLengthBytes + header_bytes);
  const auto header = nlohmann::json::parse(raw.begin() + kLengthBytes, data);

  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const ptrdiff_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    if (begin > end || end > raw.end() - data)
      throw std::runtime_error(path + ": " + name + " lies outside the file");
    StoredTensor& tensor = tensors[name];
    tensor.dtype = entry.at("dtype");
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    tensor.bytes.assign(data + begin, data + end);
  }
  return tensors;
}

}  // namespace fovea::test
