// What is computed on both revisions: a problem, who owns its tensors, and how it is run.
#ifndef FOVEA_TESTS_SAME_BITS_PROBLEM_H_
#define FOVEA_TESTS_SAME_BITS_PROBLEM_H_

#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "tensor.h"

namespace fovea::same_bits {

// The ways to call the library.
enum class Way {
  kRun,      // Plan::Create and Run
  kOneShot,  // Attention
  kUpdate,   // Plan::Create for Case::before, Update and Run
  kTasks,    // Bind, then all tasks, the last one first, by two workers in turns
};

struct Case {
  std::string name;
  Way way = Way::kRun;
  Problem problem;                  // views of the tensors below; not used by a merge
  Problem before;                   // for kUpdate
  PlanOptions options;              // target, engine and product are set by who runs it
  std::vector<PartialState> parts;  // not empty: merge these into out and lse

  std::vector<Tensor> inputs;
  Tensor out, lse, weights, scores;

  // Keeps the tensor and returns its view.
  TensorView Own(Tensor tensor);
  // Makes the outputs and lets `problem` look at them.
  void OwnOutputs(Tensor new_out, Tensor new_lse, Tensor new_weights, Tensor new_scores);
  // Fills `before` with the problem, lengths and offsets being zero.
  void MakeBefore();
};

// Runs the case into its outputs, which are reset first.
Status RunCase(Case* c, const PlanOptions& options);

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_PROBLEM_H_
