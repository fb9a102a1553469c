// A matrix of attention weights as a picture for a terminal of 80 columns.
#ifndef FOVEA_CLI_HEATMAP_H_
#define FOVEA_CLI_HEATMAP_H_

#include <string>
#include <vector>

namespace fovea::cli {

constexpr int kTerminalColumns = 80;

// weights [rows, columns] dense in C order, 0 … 1; a row a line, darker for less, on a square-root
// scale up to the largest weight. Row labels stand at the left, column labels above, downwards.
// Shades of Unicode blocks, or 256 colours of the terminal. Labels are UTF-8; what does not fit
// into 80 columns is left out at the right, and a last line says so.
std::string HeatMap(const std::vector<float>& weights, const std::vector<std::string>& row_labels,
                    const std::vector<std::string>& column_labels, bool colour);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_HEATMAP_H_
