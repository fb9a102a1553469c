// Lists in command lines and names.
#ifndef FOVEA_MEASURE_TEXT_H_
#define FOVEA_MEASURE_TEXT_H_

#include <string>
#include <vector>

namespace fovea::measure {

// What lies between separators, empty parts too: one at least.
inline std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_TEXT_H_
