// The C interface to gradients: fovea/gradient.h, with the conventions of fovea/c.h.
#ifndef FOVEA_C_GRADIENT_H_
#define FOVEA_C_GRADIENT_H_

#include "fovea/c.h"

#ifdef __cplusplus
extern "C" {
#endif

// The gradients of Σ out·dout + Σ lse·dlse: fovea::GradientProblem. Tensors of rank 0 are absent.
typedef struct fovea_gradient_problem {
  size_t size;                   // of this struct in bytes
  const fovea_problem* forward;  // as it was run: its out and lse are read, and must be there
  fovea_tensor dout;             // f32, f16 or bf16, the shape of out
  fovea_tensor dlse;             // optional, f32, the shape of lse

  // Written; optional, but at least one is there.
  fovea_tensor dq;            // f32, f16 or bf16, the shape of q
  fovea_tensor dk;            // f32, f16 or bf16, the shape of k
  fovea_tensor dv;            // f32, f16 or bf16, the shape of v
  fovea_tensor dbias;         // as bias; axes of one element sum over what they stand for
  fovea_tensor dsinks;        // f32 [Hq]
  fovea_tensor dhead_scales;  // f32 [Hq]
  int32_t accumulate;         // 0 or 1: adds to what the gradients hold
  int32_t reserved;           // 0
} fovea_gradient_problem;

// Sets every field to its default, and the size.
static inline void fovea_gradient_problem_init(fovea_gradient_problem* problem) {
  memset(problem, 0, sizeof(*problem));
  problem->size = sizeof(*problem);
}

// How gradients will be computed: fovea::GradientPlan.
typedef struct fovea_gradient_plan fovea_gradient_plan;

// Makes *plan, which is to be destroyed. `options` may be null.
FOVEA_EXPORT fovea_status fovea_gradient_plan_create(const fovea_gradient_problem* problem,
                                                     const fovea_plan_options* options,
                                                     fovea_gradient_plan** plan,
                                                     fovea_error* error) FOVEA_NOEXCEPT;

// Plans again for new lengths, in place and without allocating. On an error the plan is as it was.
FOVEA_EXPORT fovea_status fovea_gradient_plan_update(fovea_gradient_plan* plan,
                                                     const fovea_gradient_problem* problem,
                                                     fovea_error* error) FOVEA_NOEXCEPT;

// Gives the plan's memory back; null is ignored.
FOVEA_EXPORT void fovea_gradient_plan_destroy(fovea_gradient_plan* plan) FOVEA_NOEXCEPT;

// Bytes of a workspace, at whatever address, for a run by that many workers; 0 for a null plan or
// workers < 1.
FOVEA_EXPORT size_t fovea_gradient_plan_workspace_bytes(const fovea_gradient_plan* plan,
                                                        int32_t workers) FOVEA_NOEXCEPT;

// The target whose kernels will run; FOVEA_TARGET_AUTO for a null plan.
FOVEA_EXPORT fovea_target fovea_gradient_plan_target(const fovea_gradient_plan* plan)
    FOVEA_NOEXCEPT;

// Fills *cost, whose size is set, with an estimate.
FOVEA_EXPORT fovea_status fovea_gradient_plan_cost(const fovea_gradient_plan* plan,
                                                   fovea_cost* cost,
                                                   fovea_error* error) FOVEA_NOEXCEPT;

// Several lines for people, as fovea_plan_to_string.
FOVEA_EXPORT size_t fovea_gradient_plan_to_string(const fovea_gradient_plan* plan, char* text,
                                                  size_t bytes) FOVEA_NOEXCEPT;

// Runs the plan on the tensors of `problem`, as fovea_run. `executor` may be null. Allocates
// nothing.
FOVEA_EXPORT fovea_status fovea_gradient_run(const fovea_gradient_plan* plan,
                                             const fovea_gradient_problem* problem, void* workspace,
                                             size_t workspace_bytes, const fovea_executor* executor,
                                             fovea_error* error) FOVEA_NOEXCEPT;

// Plan, workspace and run in one call. `options` and `executor` may be null. Memory comes from the
// allocator of the options.
FOVEA_EXPORT fovea_status fovea_gradients(const fovea_gradient_problem* problem,
                                          const fovea_plan_options* options,
                                          const fovea_executor* executor,
                                          fovea_error* error) FOVEA_NOEXCEPT;

// The host-driven path, as fovea_call: a barrier between phases, no order within one.
typedef struct fovea_gradient_call fovea_gradient_call;

// Checks the problem against the plan, as fovea_gradient_run does, and sets *call, which lies in
// the workspace. Allocates nothing.
FOVEA_EXPORT fovea_status fovea_gradient_bind(const fovea_gradient_plan* plan,
                                              const fovea_gradient_problem* problem,
                                              void* workspace, size_t workspace_bytes,
                                              int32_t workers, fovea_gradient_call** call,
                                              fovea_error* error) FOVEA_NOEXCEPT;

// How many phases the call has; 0 for a null call.
FOVEA_EXPORT int32_t fovea_gradient_call_phases(const fovea_gradient_call* call) FOVEA_NOEXCEPT;
// How many tasks a phase has; 0 for a null call or a phase that does not exist.
FOVEA_EXPORT int64_t fovea_gradient_call_tasks(const fovea_gradient_call* call,
                                               int32_t phase) FOVEA_NOEXCEPT;
// Runs one task, as fovea_call_run_task.
FOVEA_EXPORT fovea_status fovea_gradient_call_run_task(const fovea_gradient_call* call,
                                                       int32_t phase, int64_t task,
                                                       int32_t worker) FOVEA_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif  // FOVEA_C_GRADIENT_H_
