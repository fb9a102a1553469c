// One call from Python: keyword arguments to a Problem, outputs to arrays, a Status to an
// exception. Used by attention() and by plans.
#ifndef FOVEA_PYTHON_CALL_H_
#define FOVEA_PYTHON_CALL_H_

#include <nanobind/nanobind.h>

#include <array>

#include "fovea/attention.h"
#include "tensor.h"

namespace fovea::python {

// Arguments that are arrays, outputs first.
enum class Array {
  kOut,
  kLse,
  kWeights,
  kScores,
  kQLengths,
  kKvLengths,
  kCuSeqlensQ,
  kCuSeqlensK,
  kQueryOffsets,
  kBias,
  kMask,
  kMaskBits,
  kBlockMap,
  kParents,
  kAlibiSlopes,
  kSinks,
  kCount
};

// The keyword arguments of a call. Copyable: a plan keeps them for its runs, with references to the
// arrays.
struct Options {
  Score score;  // its numbers alone
  PlanOptions plan;
  std::array<nb::object, static_cast<size_t>(Array::kCount)> arrays;  // null or what was given
  // of mask_bits; rank 0: not given
  std::array<int64_t, kMaxRank> mask_shape = {};
  int mask_rank = 0;
  bool bthd = false;      // layout of q, k and v
  bool out_bthd = false;  // and of out: the same unless it is said
  bool out_layout = false;
  bool return_lse = false, return_weights = false, return_scores = false;
  ScoreStage stage = ScoreStage::kMasked;
  int threads = 0;  // 0: the default

  nb::handle array(Array a) const { return arrays[static_cast<size_t>(a)]; }
  bool has(Array a) const { return arrays[static_cast<size_t>(a)].is_valid(); }

  enum class Kind { kAttention, kPlan, kRun };
  // Reads `keywords` over what is there. TypeError for names that `kind` does not have, TypeError
  // or ValueError for values.
  void Read(const nb::kwargs& keywords, Kind kind);
};

// A Problem whose tensors are the caller's arrays. Outputs that the caller did not give have a
// shape and no data until Allocate.
class Call {
 public:
  // Borrows all arrays. With the GIL, as everything here.
  Call(nb::handle q, nb::handle k, nb::handle v, const Options& options);

  const Problem& problem() const { return problem_; }
  Library library() const { return library_; }
  // Makes the arrays that are not the caller's. ValueError where one of the caller's shares memory
  // with an input or another output.
  void Allocate();
  // out, or a tuple of out and what else was asked for: lse, weights, scores.
  nb::object Results() const;

 private:
  template <class Pointer>
  // the caller's axes to B, H, T, d
  BasicView<Pointer> Lift(BasicView<Pointer> view, bool bthd) const;
  void CheckOverlap() const;
  MutableTensorView Output(Array which, const char* name, bool wanted, DType dtype, int rank,
                           const int64_t* shape);

  const Options& options_;
  Borrower borrower_;
  Problem problem_;
  Library library_;
  bool lifted_ = false;  // [H, T, d]
  std::array<nb::object, 4> outputs_;
};

// Throws what a Status that is not ok says: ValueError, UnsupportedError (a ValueError),
// MemoryError.
void Check(const Status& status);
void SetUnsupportedError(nb::handle type);

// Threads for `plan`: 1 where handing out its tasks would cost as much as doing them.
int ThreadsFor(const Cost& cost, int asked);

// Runs `call` on a workspace that belongs to the calling thread, and on the threads that go with
// the library of its arrays. Without the GIL.
Status RunHere(const Plan& plan, const Call& call, int threads) noexcept;

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_CALL_H_
