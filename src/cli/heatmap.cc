#include "cli/heatmap.h"

#include <algorithm>
#include <cmath>

namespace fovea::cli {
namespace {

constexpr const char* kShades[] = {"·", "░", "▒", "▓", "█"};
// Black over violet and orange to pale yellow, in the 6×6×6 cube of the 256 colours.
constexpr int kColours[] = {16, 17, 54, 90, 126, 162, 203, 209, 215, 221, 228};
constexpr size_t kLongestRowLabel = 12, kLongestColumnLabel = 8;

// The code points of UTF-8 text, each as the bytes that make it; control characters as '?', so that
// no label steers the terminal.
std::vector<std::string> Letters(const std::string& text) {
  std::vector<std::string> letters;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
    if (continues && !letters.empty()) {
      letters.back() += c;
    } else {
      letters.emplace_back(1, static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
    }
  }
  return letters;
}

// 0 … levels − 1.
size_t LevelOf(float weight, float largest, size_t levels) {
  if (!(weight > 0) || !(largest > 0)) return 0;
  const float level = std::sqrt(std::min(weight / largest, 1.0f)) * static_cast<float>(levels);
  return std::min(static_cast<size_t>(level), levels - 1);
}

std::string Cell(float weight, float largest, size_t width, bool colour) {
  std::string cell;
  if (colour) {
    const int shade = kColours[LevelOf(weight, largest, std::size(kColours))];
    return "\033[48;5;" + std::to_string(shade) + "m" + std::string(width, ' ') + "\033[0m";
  }
  for (size_t n = 0; n < width; ++n) cell += kShades[LevelOf(weight, largest, std::size(kShades))];
  return cell;
}

std::string Padded(const std::string& label, size_t width) {
  const std::vector<std::string> letters = Letters(label);
  const size_t shown = std::min(letters.size(), width);
  std::string text(width - shown, ' ');
  for (size_t n = 0; n < shown; ++n) text += letters[n];
  return text;
}

}  // namespace

std::string HeatMap(const std::vector<float>& weights, const std::vector<std::string>& row_labels,
                    const std::vector<std::string>& column_labels, bool colour) {
  size_t margin = 0, height = 0;
  std::vector<std::vector<std::string>> columns;
  for (const std::string& label : row_labels)
    margin = std::max(margin, std::min(Letters(label).size(), kLongestRowLabel));
  for (const std::string& label : column_labels) {
    columns.push_back(Letters(label));
    height = std::max(height, std::min(columns.back().size(), kLongestColumnLabel));
  }
  const size_t room = static_cast<size_t>(kTerminalColumns) - margin - 1;
  const size_t width = 2 * columns.size() <= room ? 2 : 1;
  const size_t shown = std::min(columns.size(), room / width);
  const float largest = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());

  std::string text;
  for (size_t line = 0; line < height; ++line) {  // labels end right above their columns
    std::string above(margin + 1, ' ');
    for (size_t j = 0; j < shown; ++j) {
      const size_t letters = std::min(columns[j].size(), height);
      above += line + letters < height ? " " : columns[j][line + letters - height];
      above += std::string(width - 1, ' ');
    }
    above.erase(above.find_last_not_of(' ') + 1);
    text += above + "\n";
  }
  for (size_t i = 0; i < row_labels.size(); ++i) {
    text += Padded(row_labels[i], margin) + " ";
    for (size_t j = 0; j < shown; ++j)
      text += Cell(weights[i * columns.size() + j], largest, width, colour);
    text += "\n";
  }
  if (shown < columns.size())
    text += "(" + std::to_string(columns.size() - shown) + " more columns at the right)\n";
  return text;
}

}  // namespace fovea::cli
