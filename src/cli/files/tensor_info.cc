#include "cli/files/tensor_info.h"

namespace fovea::files {

bool ShapeBytes(const std::vector<int64_t>& shape, int64_t element_bytes, uint64_t* bytes) {
  int64_t product = element_bytes;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    empty |= size == 0;
    if (size != 0 && __builtin_mul_overflow(product, size, &product)) return false;
  }
  *bytes = empty ? 0 : static_cast<uint64_t>(product);
  return true;
}

std::string Printable(const std::string& text, size_t most) {
  std::string shown = text.substr(0, most);
  for (char& c : shown) {
    const auto code = static_cast<unsigned char>(c);
    if (code < ' ' || code == 127) c = '?';
  }
  return shown;
}

std::string ToString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t a = 0; a < shape.size(); ++a) text += (a > 0 ? ", " : "") + std::to_string(shape[a]);
  return text + "]";
}

}  // namespace fovea::files
