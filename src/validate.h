// Every check of a problem, once, at the boundary: after it the code only asserts.
#ifndef FOVEA_SRC_VALIDATE_H_
#define FOVEA_SRC_VALIDATE_H_

#include <cstdint>

#include "fovea/attention.h"
#include "positions.h"

namespace fovea {

// The sizes of a problem, in the contract's letters. Only CheckProblem makes them.
struct Sizes {
  int64_t B = 0, Hq = 0, Hkv = 0;
  int64_t Tq = 0, Tk = 0;  // of the longest sequence where the batch is packed
  int64_t dk = 0, dv = 0;
  int64_t group() const { return Hkv == 0 ? 1 : Hq / Hkv; }
};

// Everything that can be known without the tensors' data: ranks, types, sizes, strides, options.
// (Of cu_seqlens the data too: they are sizes.)
Status CheckProblem(const Problem& problem, Sizes* sizes) noexcept;

// Lengths and offset of sequence b, read from the caller's tensors and checked; `problem` has
// passed CheckProblem.
Status ReadLengths(const Problem& problem, const Sizes& sizes, int64_t b,
                   SequenceLengths* lengths) noexcept;

// No null data where there are elements, and parents that form a tree; `problem` has passed
// CheckProblem.
Status CheckData(const Problem& problem, const Sizes& sizes) noexcept;

// The same problem, in which axes of a single element, and all axes of tensors without elements,
// have a stride of 0, the innermost one that of dense elements: nothing lies at their strides, so
// that any number is legal, but a step of it may leave the address space. Of the tensors that
// kernels walk along.
Problem WithStridesInMemory(const Problem& problem) noexcept;

// An error whose message is formatted as by printf.
Status Invalid(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
Status Unsupported(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
Status TooSmall(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

// Rank, shape and stride rules that every tensor obeys.
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
Status CheckTensor(const TensorFacts& t, int rank) noexcept;
Status CheckNotNull(const TensorFacts& t) noexcept;
Status CheckType(const TensorFacts& t, DType expected) noexcept;
Status CheckShape(const TensorFacts& t, int axis, int64_t expected, const char* source) noexcept;

}  // namespace fovea

// Returns the status of `expression` from the calling function unless it is ok.
#define FOVEA_RETURN_IF_ERROR(expression)               \
  do {                                                  \
    if (Status status_ = (expression); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#endif  // FOVEA_SRC_VALIDATE_H_
