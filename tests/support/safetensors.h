// The safetensors format, as far as the test data needs it: an 8-byte little-endian header length,
// a JSON header, raw data in C order. Independent of the program's reader on purpose. Test data is
// trusted: anything wrong with it throws.
#ifndef FOVEA_TESTS_SUPPORT_SAFETENSORS_H_
#define FOVEA_TESTS_SUPPORT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fovea::test {

struct StoredTensor {
  std::string dtype;  // as in the file: "F32", "F16", "U16", "BOOL", "I32", …
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;
};

// Throws std::runtime_error naming the file.
std::map<std::string, StoredTensor> ReadSafetensors(const std::string& path);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_SAFETENSORS_H_
