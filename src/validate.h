// Every check of a problem, once, at the boundary: after it the code only asserts.
#ifndef FOVEA_SRC_VALIDATE_H_
#define FOVEA_SRC_VALIDATE_H_

#include <cstdint>

#include "errors.h"
#include "fovea/attention.h"
#include "positions.h"
#include "tensors.h"
#include "views.h"

namespace fovea {

// The sizes of a problem, in the contract's letters.
struct ProblemSizes {
  int64_t B = 0, Hq = 0, Hkv = 0;
  int64_t Tq = 0, Tk = 0;  // of the longest sequence where the batch is packed
  int64_t dk = 0, dv = 0;
  int64_t page = 0;  // keys of a page; 0: there are none
  int64_t group() const { return Hkv == 0 ? 1 : Hq / Hkv; }
};

// The tensors that a problem has, those that it must have included.
class GivenTensors {
 public:
  struct Entry {
    int index;  // of its row
    const TensorRow* row;
    TensorFacts facts;
  };

  void Collect(const Problem& problem) noexcept;
  const Entry* begin() const { return entries_; }
  const Entry* end() const { return entries_ + count_; }

 private:
  int count_ = 0;
  Entry entries_[kTensorCount];
};

// A problem of the caller's that has passed Validate: the one way to make it. Of its data only
// cu_seqlens and pages.begins were looked at, which are sizes.
class ValidProblem {
 public:
  ValidProblem() = default;
  const Problem& operator*() const { return *problem_; }
  const Problem* operator->() const { return problem_; }
  const ProblemSizes& sizes() const { return sizes_; }
  const GivenTensors& tensors() const { return tensors_; }

 private:
  friend Status Validate(const Problem& problem, ValidProblem* valid) noexcept;
  const Problem* problem_ = nullptr;
  ProblemSizes sizes_;
  GivenTensors tensors_;
};

// Everything that can be known without the tensors' data: ranks, types, sizes, strides, options.
// *valid refers to `problem`; on an error it is unspecified.
Status Validate(const Problem& problem, ValidProblem* valid) noexcept;

// Lengths and offset of sequence b, read from the caller's tensors and checked.
Status ReadLengths(const ValidProblem& problem, int64_t b, SequenceLengths* lengths) noexcept;

// No null data where there are elements, and parents that form a tree. `lengths` are what
// ReadLengths read, of all sequences.
Status CheckData(const ValidProblem& problem, const SequenceLengths* lengths) noexcept;

// The numbers of all pages that hold resident keys, likewise.
Status CheckTable(const ValidProblem& problem, const SequenceLengths* lengths) noexcept;

// What a row says about any tensor: rank, type, sizes of 0 or more, strides that stay countable.
Status CheckForm(const TensorRow& row, const TensorFacts& t) noexcept;

// Nothing lies at the strides of axes of a single element, nor at any of a tensor without elements,
// so that any number is legal there. But kernels take steps of it, which must not leave the address
// space, and want dense elements along the innermost axis: Settle makes it 0, and there that of
// dense elements, in all tensors that kernels walk along. IsSettled: there is no need to.
bool IsSettled(const TensorFacts& t) noexcept;
bool IsSettled(const ValidProblem& problem) noexcept;
void Settle(Problem* problem) noexcept;
void SettleStrides(DType dtype, int rank, const int64_t* shape, int64_t* stride) noexcept;

// By their bits: comparing numbers could raise a flag.
bool IsScale(float scale) noexcept;      // finite
bool IsSoftcap(float softcap) noexcept;  // finite, 0 or greater

}  // namespace fovea

#endif  // FOVEA_SRC_VALIDATE_H_
