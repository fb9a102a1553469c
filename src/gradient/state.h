// What a plan of gradients knows: the forward pass's plan, whose lengths, maps and trees it uses,
// and how rows and keys are cut into tasks.
//
// The rows and the keys of a sequence's KV head are cut into `chunks` each. Step t adds, for every
// chunk c of the keys, the pairs with chunk (c + t) mod chunks of the rows: tasks of a step share
// neither sums of dQ nor of dK and dV, and every sum runs in one order.
#ifndef FOVEA_SRC_GRADIENT_STATE_H_
#define FOVEA_SRC_GRADIENT_STATE_H_

#include <string>
#include "kernels/gradient_kernel.h"
#include "plan/phases.h"
#include "plan/state.h"

namespace fovea {

// A cut of both is worth its barrier from so many rows and keys on.
constexpr int64_t kLeastChunk = 256;
constexpr int64_t kMostChunks = 8;

struct SequenceGradients {
  Geometry geometry;
  int64_t chunks = 1;
  int64_t chunk_rows = 0, chunk_keys = 0;  // whole tiles; whole blocks
  int64_t keys = 0;                        // that exist: Tk, or its own of a packed batch
  // Of a KV head, in floats from its first one.
  int64_t dq_at = 0, dk_at = 0, dv_at = 0, head_floats = 0;
  int64_t dq_rest = 0, dk_rest = 0, dv_rest = 0;
  // In the order of sequences.
  int64_t first_float = 0;
  int64_t first_double = 0;
  int64_t first_task = 0;  // of begin, a step, and end: Hkv · chunks tasks each
};

struct GradientPhase {
  enum Kind { kForward, kBegin, kBeginBias, kAdd, kEnd, kEndBias, kEndHeads };
  Kind kind = kForward;
  int64_t tasks = 0;
  int64_t step = 0;  // of kAdd; of kForward the number of the forward plan's phase
};

// What dbias needs. Where several pairs share an element, tasks that run at the same time must not.
struct BiasGradientPlan {
  bool sums = false;       // in an array of floats of its own
  int64_t elements = 0;    // of that array
  int64_t stride[4] = {};  // floats
  int64_t rows = 0;        // of the last axis
  // A task goes through all of these, one after the other.
  bool joins_sequences = false, joins_heads = false, joins_chunks = false;
};

struct [[gnu::visibility("hidden")]] GradientPlan::State {
  State(const PlanOptions& options, const ValidProblem& problem) noexcept
      : forward(options, problem),
        sequences(ContainerAllocator<SequenceGradients>(options.allocator)) {}

  LastingState forward;
  const GradientKernels* kernels = nullptr;
  // Ranks and types of the gradients, and `accumulate`.
  GradientProblem bound;
  Vector<SequenceGradients> sequences;  // [B]
  BiasGradientPlan bias;
  int64_t tasks = 0;  // of begin
  int64_t most_chunks = 1;
  // The workspace behind the forward plan's maps and trees.
  uint64_t floats_at = 0, doubles_at = 0, bias_at = 0, workers_at = 0;
  uint64_t worker_bytes = 0;
  static constexpr int kMostPhases = 8 + static_cast<int>(kMostChunks);
  GradientPhase phase[kMostPhases];
  int phases = 0;

  size_t Bytes(int workers) const;
};

// Whether `problem` is one that this library has gradients of. Its forward pass is *valid.
Status CheckGradients(const GradientProblem& problem, const ValidProblem& valid) noexcept;

// No null data where there are elements; lse and out are read.
Status CheckGradientData(const GradientProblem& problem) noexcept;

// Whether the plan is one for such tensors.
Status CheckBoundGradients(const GradientPlan::State& plan,
                           const GradientProblem& problem) noexcept;

// Everything that follows from lengths. Allocates only what vectors lack.
void LayGradients(const GradientProblem& problem, GradientPlan::State* plan);

std::string DescribeGradients(const GradientPlan::State& plan);

// What all tasks of a run share.
struct GradientRun {
  const GradientPlan::State* plan;
  const GradientProblem* problem;  // settled
  char* workspace;                 // aligned
};
void RunGradientTask(const GradientRun& run, int phase, int64_t task, int worker) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_GRADIENT_STATE_H_
