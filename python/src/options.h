// The keyword arguments of a call, read.
#ifndef FOVEA_PYTHON_OPTIONS_H_
#define FOVEA_PYTHON_OPTIONS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "errors.h"
#include "fovea/attention.h"
#include "src/tensors.h"

namespace fovea::python {

// What the tensor of a row is called here: the row's name, but for two of them.
const char* KeywordOf(const TensorRow& row);

// A boolean, also one of NumPy's; TypeError for others.
bool Flag(nb::handle value, const char* name);

// The index of the row that is called so.
size_t TensorOf(const char* keyword);

// Copyable: a plan keeps them for its runs, with references to the arrays.
struct Options {
  Score score;  // its numbers and its function alone
  PlanOptions plan;
  // By the index of the tensor's row: null or what was given …
  std::array<nb::object, kTensorCount> arrays;
  // … and, of an output, whether it is to be returned even if not given.
  std::array<bool, kTensorCount> wanted = {};
  // what score.function and its context lie in
  nb::object kept_function, kept_memory;
  nb::object mask_bits;
  // of mask_bits; rank 0: not given
  std::array<int64_t, kMaxRank> mask_shape = {};
  int mask_rank = 0;
  int64_t k_group_stride = 0, v_group_stride = 0;  // of Problem
  int64_t page_keys = 0;                           // 0: not given
  bool ring = false;
  bool bthd = false;      // layout of q, k and v
  bool out_bthd = false;  // and of out: the same unless it is said
  bool out_layout = false;
  ScoreStage stage = ScoreStage::kMasked;
  int threads = 0;  // 0: the default
  // For a kernel of PyTorch's dispatcher: no further questions to tensors.
  bool for_dispatcher = false;

  enum class Kind { kAttention, kPlan, kRun };
  // Reads `keywords` over what is there. TypeError for names that `kind` does not have, TypeError
  // or ValueError for values.
  void Read(const nb::kwargs& keywords, Kind kind);
};

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_OPTIONS_H_
