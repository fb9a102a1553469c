// Gradients of scaled dot-product attention: what training needs. Of a loss whose derivatives by
// out and lse are given, the derivatives by q, k, v, bias, sinks and head scales, streaming: no
// matrix of scores is ever stored.
//
// Letters, floating-point state and broadcasting are those of fovea/attention.h.
#ifndef FOVEA_GRADIENT_H_
#define FOVEA_GRADIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/attention.h"
#include "fovea/detail/macros_begin.h"

namespace fovea {

// The gradients of Σ out·dout + Σ lse·dlse. Any strides (bytes), each tensor with its own type.
// Gradients overlap neither inputs nor each other. Removed pairs, empty rows, and rows and keys
// that take no part get exact zeros, whatever q, k, v and dout hold there.
struct GradientProblem {
  // The problem as it was run: `out` and `lse` are read here, not written, and must both be there;
  // `weights` and `scores` must be absent. lse decides the softmax: one over more keys than k has
  // (of a merged state, see fovea/merge.h) makes this the part of those keys. A score function is
  // StatusCode::kUnsupported, and so are caches: pages, rings, key_offsets.
  Problem forward;

  TensorView dout;  // f32, f16 or bf16, the shape of out
  TensorView dlse;  // optional, f32, the shape of lse; absent: zeros

  // Each is optional; at least one must be there. f32, f16 or bf16.
  MutableTensorView dq;  // the shape of q
  MutableTensorView dk;  // the shape of k
  MutableTensorView dv;  // the shape of v
  // The shape of score.bias, which must be there: axes of one element sum over what they stand for.
  MutableTensorView dbias;
  MutableTensorView dsinks;        // f32 [Hq]; score.sinks must be there
  MutableTensorView dhead_scales;  // f32 [Hq]; score.head_scales must be there

  // Adds to what the gradients hold, instead of replacing it: steps of a ring, micro-batches.
  bool accumulate = false;
};

// How gradients will be computed: fovea::Plan's rules, with the gradient tensors' ranks and types
// and `accumulate` bound as well. Sums are f32, in an order that depends on types, sizes and
// lengths of each sequence alone, so results do not depend on threads. Products are f32: narrower
// types are widened.
class FOVEA_EXPORT GradientPlan {
 public:
  // An invalid plan; owns nothing.
  GradientPlan() noexcept;
  ~GradientPlan();
  // Leaves an invalid plan behind.
  GradientPlan(GradientPlan&&) noexcept;
  // Releases what this plan held; leaves an invalid plan behind.
  GradientPlan& operator=(GradientPlan&&) noexcept;

  // As Plan::Create. Of the options, engine must be kAuto or kTile, product kAuto or kF32, and the
  // test hooks tile_rows, block_keys and split_keys have no effect. On an error *plan is unchanged.
  static Status Create(const GradientProblem& problem, const PlanOptions& options,
                       GradientPlan* plan) noexcept;

  // As Plan::Update: new lengths and sizes within the room, without allocating.
  Status Update(const GradientProblem& problem) noexcept;

  // False before the first successful Create, and after a move.
  bool valid() const noexcept { return state_ != nullptr; }
  // Bytes that a run with that many workers needs: f32 sums of the gradients (of dq, dk and dv, and
  // of a dbias that broadcasts), whatever their types, and a fixed part for each worker. 0 for an
  // invalid plan or workers < 1.
  size_t WorkspaceBytes(int workers) const noexcept;
  // The target whose kernels will run; kAuto for an invalid plan.
  Target target() const noexcept;
  // An estimate: 2.5 × the forward's operations; all 0 for an invalid plan.
  Cost cost() const noexcept;
  // Several lines for people.
  std::string ToString() const;

  struct State;
  // For the library's own sources.
  const State* state() const noexcept { return state_.get(); }

 private:
  struct Destroy {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Destroy> state_;
};

// Runs `plan` on the tensors of `problem`: as Run of fovea/attention.h, errors and thread safety
// included. On an error nothing is written.
FOVEA_EXPORT Status Run(const GradientPlan& plan, const GradientProblem& problem,
                        Workspace workspace, Executor& executor = SerialExecutor()) noexcept;

// Plan, workspace and run in one call. Plan and workspace come from options.allocator.
FOVEA_EXPORT Status Gradients(const GradientProblem& problem, const PlanOptions& options,
                              Executor& executor) noexcept;
// The same with malloc, and without options.
FOVEA_EXPORT Status Gradients(const GradientProblem& problem,
                              Executor& executor = SerialExecutor()) noexcept;

// The host-driven path, as BoundCall: phases of independent tasks, a barrier between them.
class FOVEA_EXPORT BoundGradients {
 public:
  // How many phases there are; 0 before Bind.
  int Phases() const noexcept;
  // How many tasks a phase has; 0 for a phase that does not exist.
  int64_t Tasks(int phase) const noexcept;
  // Runs one task; phase and task must exist. `worker` in [0, workers of Bind); no two concurrent
  // tasks may share one. Never throws, allocates or blocks.
  void RunTask(int phase, int64_t task, int worker) const noexcept;

 private:
  friend Status Bind(const GradientPlan& plan, const GradientProblem& problem, Workspace workspace,
                     int workers, BoundGradients* call) noexcept;
  const GradientPlan::State* plan_ = nullptr;
  GradientProblem problem_;
  char* workspace_ = nullptr;
};

// Checks `problem` against `plan`, as Run does, and fills *call. No allocation; on an error *call
// is unchanged.
FOVEA_EXPORT Status Bind(const GradientPlan& plan, const GradientProblem& problem,
                         Workspace workspace, int workers, BoundGradients* call) noexcept;

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_GRADIENT_H_
