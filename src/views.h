// Checks that any strided view of the caller's can be put to, and the reading of integers. Knows
// nothing of attention.
#ifndef FOVEA_SRC_VIEWS_H_
#define FOVEA_SRC_VIEWS_H_

#include <cstdint>

#include "errors.h"
#include "fovea/tensor.h"

namespace fovea {

// A view for reading or writing, under the name that messages give it.
struct TensorFacts {
  const char* name;
  const void* data;
  DType dtype;
  int32_t rank;
  const int64_t* shape;
  const int64_t* stride;
};
template <class View>
TensorFacts Facts(const char* name, const View& view) {
  return {name, view.data, view.dtype, view.rank, view.shape, view.stride};
}

// No axis is longer than 2^15 or has a stride beyond ±2^45: products of four cannot overflow. Of
// axes beyond the rank, too.
inline bool IsPlain(const TensorFacts& t) {
  uint64_t beyond = 0;
  for (int a = 0; a < kMaxRank; ++a) {
    beyond |= static_cast<uint64_t>(t.shape[a]) >> 15;
    beyond |= (static_cast<uint64_t>(t.stride[a]) + (uint64_t{1} << 45)) >> 46;
  }
  return beyond == 0;
}

// Rank, a known type, sizes of 0 or more, and fewer than 2^63 elements and bytes.
Status CheckTensor(const TensorFacts& t, int rank) noexcept;
// Data where there are elements.
Status CheckNotNull(const TensorFacts& t) noexcept;
Status CheckType(const TensorFacts& t, DType expected) noexcept;
Status CheckShape(const TensorFacts& t, int axis, int64_t expected, const char* source) noexcept;

// An element of a view of i32 or i64 with one or two axes.
int64_t ReadInteger(const TensorView& view, int64_t index, int64_t second = 0) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_VIEWS_H_
