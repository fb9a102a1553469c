// Pictures of weights: order of shades, labels, and 80 columns whatever is drawn.
#include "cli/heatmap.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fovea::cli {
namespace {

int Columns(const std::string& line) {
  int columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return columns;
}

TEST(HeatMapTest, ShadesRiseWithWeights) {
  EXPECT_EQ(HeatMap({0.0f, 1.0f, 0.25f, 0.01f}, {"a", "b"}, {"c", "d"}, false),
            "  c d\na ··██\nb ▒▒··\n");
}

TEST(HeatMapTest, ColumnLabelsStandAboveTheirColumns) {
  EXPECT_EQ(HeatMap({0, 0}, {"row"}, {"ab", "c"}, false), "    a\n    b c\nrow ····\n");
}

TEST(HeatMapTest, FitsIntoATerminal) {
  for (const size_t columns : {1u, 28u, 40u, 70u, 300u}) {
    const std::vector<std::string> labels(columns, "incomprehensible \xc3\xa9tude");
    const std::string text = HeatMap(std::vector<float>(2 * columns, 0.5f),
                                     {"long row label indeed", "b"}, labels, false);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(Columns(line), kTerminalColumns) << line;
  }
}

TEST(HeatMapTest, ColoursAreResetOnEveryLine) {
  std::istringstream lines(HeatMap({1.0f}, {"a"}, {"b"}, true));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  EXPECT_EQ(line.substr(line.size() - 4), "\033[0m");
}

TEST(HeatMapTest, LabelsDoNotSteerTheTerminal) {
  EXPECT_EQ(HeatMap({0.0f}, {"\033[2J"}, {"\n"}, false).find('\033'), std::string::npos);
}

TEST(HeatMapTest, DrawsNothingOfNothing) { EXPECT_EQ(HeatMap({}, {}, {}, false), ""); }

}  // namespace
}  // namespace fovea::cli
