// Rows of a tensor in the caller's memory, as the formats of elements read and write them. Knows no
// attention and no SIMD.
#ifndef FOVEA_SRC_KERNELS_ROWS_H_
#define FOVEA_SRC_KERNELS_ROWS_H_

#include <cstdint>

#include "fovea/tensor.h"

namespace fovea {

// Scales, or zeros, of a matrix of codes: element [r, c] of the codes uses element [⌊r·rows /
// code_rows⌋, ⌊c·columns / code_columns⌋].
struct CodeFactors {
  const char* data = nullptr;
  DType dtype = DType::kNone;  // kNone: there are none
  int64_t rows = 1, columns = 1;
  int64_t row_stride = 0, stride = 0;  // bytes
};

// What codes need to become numbers: of the matrix that the rows are from.
struct CodeScales {
  CodeFactors scale, zero;
  int64_t code_rows, code_columns;
  int64_t first;  // the number of the first row
  // Groups of so many channels lie so many bytes apart; a stride of 0: channels are dense.
  int64_t group_channels = 0, group_stride = 0;
};

// Rows that are read. In a row, units (internal::ElementFormat) are `stride` bytes apart; a stride
// of 0 means that one element stands for all.
struct SourceRows {
  const char* row;
  DType dtype;
  int64_t stride;
  int64_t row_stride = 0;              // bytes
  const CodeScales* scales = nullptr;  // of types with HasScaleViews
};

// Rows that are written: row r starts at row[r], its units are `stride` bytes apart.
struct TargetRows {
  char* const* row;
  int count;
  DType dtype;
  int64_t stride;
};

}  // namespace fovea

#endif  // FOVEA_SRC_KERNELS_ROWS_H_
