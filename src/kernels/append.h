// The contract between Append and its kernels: rows of new keys or values of one head, and where
// they go. Compiled once; knows no SIMD. Nothing here checks, allocates or fails.
#ifndef FOVEA_SRC_KERNELS_APPEND_H_
#define FOVEA_SRC_KERNELS_APPEND_H_

#include <cstdint>

#include "fovea/tensor.h"

namespace fovea {

// Rows that a kernel takes at once.
constexpr int kAppendRows = 32;

// Where the scales of codes come from.
enum class ScaleSource : uint8_t {
  kNone,     // float types, and blocks, which have theirs inside; f8 without one
  kWritten,  // one for each group of each row, f32: made of the row, and written
  kFixed,    // the caller's, the same for all rows
};

struct AppendRows {
  int count;  // ≤ kAppendRows
  int64_t d;  // elements of a row, whole units

  const char* from[kAppendRows];
  DType from_type;
  int64_t from_stride;  // bytes

  char* to[kAppendRows];
  DType to_type;
  int64_t to_stride;  // bytes from unit to unit; those of quantised types are side by side

  ScaleSource source;
  // kWritten: element a of a row has scale ⌊a·groups / d⌋, `scale_stride` bytes apart
  int64_t groups;
  int64_t group_stride;  // bytes from the codes of a group to the next group's; 0: all are dense
  char* scale[kAppendRows];
  int64_t scale_stride;
  char* zero[kAppendRows];
  int64_t zero_stride;
  // kFixed: likewise, of all rows
  const char* fixed_scale;
  DType fixed_type;
};

// Writes the rows in ascending order. Returns how many NaN became numbers.
using AppendFunction = int64_t(const AppendRows& rows);

// Null where the target has no code here.
AppendFunction* FindAppendKernel(int64_t highway_target) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_KERNELS_APPEND_H_
