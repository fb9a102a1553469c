// One call from Python: its arrays as a Problem, and its outputs as arrays. Used by attention() and
// by plans.
#ifndef FOVEA_PYTHON_CALL_H_
#define FOVEA_PYTHON_CALL_H_

#include <array>

#include "array.h"
#include "fovea/attention.h"
#include "options.h"

namespace fovea::python {

// A Problem whose tensors are the caller's arrays. Outputs that the caller did not give have a
// shape and no data until Allocate.
class Call {
 public:
  // Borrows all arrays. With the GIL, as everything here.
  Call(nb::handle q, nb::handle k, nb::handle v, const Options& options);

  const Problem& problem() const { return problem_; }
  Library library() const { return library_; }
  // The caller's q, k and v lack B.
  bool lifted() const { return lifted_; }
  // Makes the arrays that are not the caller's. ValueError where one of the caller's shares memory
  // with an input or another output.
  void Allocate();
  // out, or a tuple of out and what else was asked for: lse, weights, scores.
  nb::object Results() const;

 private:
  bool packed() const { return problem_.cu_seqlens_q.present() || problem_.cu_seqlens_k.present(); }
  void BorrowInputs();
  void BorrowMaskBits(int64_t keys);
  void BorrowOutputs(const int64_t (&sizes)[kAxes]);
  // 1 where the caller's arrays lack the row's first axis, B.
  int LackedAxes(const TensorRow& row) const;
  void CheckOverlap() const;

  const Options& options_;
  Borrower borrower_;
  Problem problem_;
  Library library_;
  bool lifted_ = false;                           // q, k and v are [H, T, d]
  std::array<nb::object, kTensorCount> outputs_;  // by the index of the tensor's row
};

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_CALL_H_
