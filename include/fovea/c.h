// Fovea for C, and for every language that calls C: all that the C++ interface does, as C11. What
// is computed, what a plan binds and which problems are errors is said once, in fovea/attention.h,
// fovea/score.h and fovea/merge.h; fields here have the names that they have there.
//
// Values and structs are in fovea/c_types.h, which also says how structs grow; callers include this
// header alone.
//
// Errors. A function that can fail returns a fovea_status and explains it in a fovea_error of the
// caller's, if one is given: nothing is kept in the library or in the thread, so fibers and loaded
// plug-ins see their own messages. No C++ exception leaves any function, and none may enter through
// a callback. Null pointers and values out of range are errors, never undefined; an object that has
// been destroyed, or an address that is not what its type says, cannot be told apart. On an error
// no output is touched: neither tensors nor what a pointer was to receive. The exception is an
// executor that does not call every task once, or calls tasks or workers that do not exist.
//
// Threads. Functions may be called by any threads at the same time, but for one that updates or
// destroys a plan while another uses it.
#ifndef FOVEA_C_H_
#define FOVEA_C_H_

#include "fovea/c_types.h"
#include "fovea/export.h"
#include "fovea/version.h"

#ifdef __cplusplus
// C++ knows by this that no exception leaves the function.
#define FOVEA_NOEXCEPT noexcept
extern "C" {
#else
#define FOVEA_NOEXCEPT
#endif

// ---------------------------------------------------------------- version, names, targets

// Of the library, which may be another than the headers': major << 16 | minor << 8 | patch.
FOVEA_EXPORT uint32_t fovea_version(void) FOVEA_NOEXCEPT;

// "f32", …, "none"; "unknown" for values outside the enumeration. In static storage, as all names.
FOVEA_EXPORT const char* fovea_dtype_name(fovea_dtype dtype) FOVEA_NOEXCEPT;
// "avx2", …; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* fovea_target_name(fovea_target target) FOVEA_NOEXCEPT;
// "auto", "tile", "row"; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* fovea_engine_name(fovea_engine engine) FOVEA_NOEXCEPT;
// "auto", "f32", "bf16"; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* fovea_product_name(fovea_product product) FOVEA_NOEXCEPT;

// Bytes of one element; 0 for FOVEA_NONE, for types whose elements are packed (FOVEA_BIT, 4 bits,
// blocks) and for values outside the enumeration.
FOVEA_EXPORT int64_t fovea_dtype_bytes(fovea_dtype dtype) FOVEA_NOEXCEPT;
// Bytes of so many elements side by side: fovea::BytesOf.
FOVEA_EXPORT int64_t fovea_row_bytes(fovea_dtype dtype, int64_t elements) FOVEA_NOEXCEPT;

// The target of that name, usable or not; the message of an error lists the names.
FOVEA_EXPORT fovea_status fovea_parse_target(const char* name, fovea_target* target,
                                             fovea_error* error) FOVEA_NOEXCEPT;

// Writes the first `capacity` of the targets in the library, the most capable first (`targets` may
// be null when it is 0), and returns how many there are.
FOVEA_EXPORT size_t fovea_compiled_targets(fovea_target* targets, size_t capacity) FOVEA_NOEXCEPT;
// Of those, the ones that this CPU can run, the best first: fovea::UsableTargets.
FOVEA_EXPORT size_t fovea_usable_targets(fovea_target* targets, size_t capacity) FOVEA_NOEXCEPT;

// What FOVEA_TARGET_AUTO means in this process.
FOVEA_EXPORT fovea_status fovea_active_target(fovea_target* target,
                                              fovea_error* error) FOVEA_NOEXCEPT;

// The standard ALiBi slopes of Hq ≥ 0 heads, Hq floats; max_bias is 8 in the paper.
FOVEA_EXPORT fovea_status fovea_alibi_slopes(int64_t Hq, float max_bias, float* slopes,
                                             fovea_error* error) FOVEA_NOEXCEPT;

// ---------------------------------------------------------------- plan

// How a problem will be computed: fovea::Plan.
typedef struct fovea_plan fovea_plan;

// Makes *plan, which is to be destroyed. `options` may be null. Reads no tensor data but lengths,
// offsets, cu_seqlens and a fixed mask.
FOVEA_EXPORT fovea_status fovea_plan_create(const fovea_problem* problem,
                                            const fovea_plan_options* options, fovea_plan** plan,
                                            fovea_error* error) FOVEA_NOEXCEPT;

// Plans again for new lengths, in place and without allocating. On an error the plan is as it was.
FOVEA_EXPORT fovea_status fovea_plan_update(fovea_plan* plan, const fovea_problem* problem,
                                            fovea_error* error) FOVEA_NOEXCEPT;

// Gives the plan's memory back; null is ignored.
FOVEA_EXPORT void fovea_plan_destroy(fovea_plan* plan) FOVEA_NOEXCEPT;

// Bytes of a workspace, at whatever address, for a run by that many workers; 0 for a null plan or
// workers < 1.
FOVEA_EXPORT size_t fovea_plan_workspace_bytes(const fovea_plan* plan,
                                               int32_t workers) FOVEA_NOEXCEPT;

// The target whose kernels will run; FOVEA_TARGET_AUTO for a null plan.
FOVEA_EXPORT fovea_target fovea_plan_target(const fovea_plan* plan) FOVEA_NOEXCEPT;
// That of the costliest sequence; FOVEA_ENGINE_AUTO for a null plan.
FOVEA_EXPORT fovea_engine fovea_plan_engine(const fovea_plan* plan) FOVEA_NOEXCEPT;
// FOVEA_PRODUCT_BF16 if that of any sequence is; FOVEA_PRODUCT_AUTO for a null plan.
FOVEA_EXPORT fovea_product fovea_plan_product(const fovea_plan* plan) FOVEA_NOEXCEPT;

// Fills *cost, whose size is set, with an estimate from shapes, lengths, causal and window alone.
FOVEA_EXPORT fovea_status fovea_plan_cost(const fovea_plan* plan, fovea_cost* cost,
                                          fovea_error* error) FOVEA_NOEXCEPT;

// Several lines for people, cut to `bytes` with the terminating zero (text may be null when it is
// 0). Returns the bytes of all of it, the zero included: as snprintf, plus one. 0 for a null plan
// or without memory.
FOVEA_EXPORT size_t fovea_plan_to_string(const fovea_plan* plan, char* text,
                                         size_t bytes) FOVEA_NOEXCEPT;

// ---------------------------------------------------------------- run

// Runs the plan on the tensors of `problem`. `executor` may be null: the calling thread. The
// workspace is the caller's, at least fovea_plan_workspace_bytes(plan, workers) bytes that no other
// run uses at the same time. Allocates nothing.
FOVEA_EXPORT fovea_status fovea_run(const fovea_plan* plan, const fovea_problem* problem,
                                    void* workspace, size_t workspace_bytes,
                                    const fovea_executor* executor,
                                    fovea_error* error) FOVEA_NOEXCEPT;

// Plan, workspace and run in one call. `options` and `executor` may be null. Memory comes from the
// allocator of the options.
FOVEA_EXPORT fovea_status fovea_attention(const fovea_problem* problem,
                                          const fovea_plan_options* options,
                                          const fovea_executor* executor,
                                          fovea_error* error) FOVEA_NOEXCEPT;

// The host-driven path: a checked call as phases of independent tasks (fovea::BoundCall).
//
//   fovea_call* call;
//   if (fovea_bind(plan, &problem, workspace, bytes, workers, &call, &error) != FOVEA_OK) …
//   for (int32_t phase = 0; phase < fovea_call_phases(call); ++phase) {
//     // every thread: fovea_call_run_task(call, phase, task, worker) for its share of the tasks
//     // barrier
//   }
//
// Between any two tasks the host may stop for good: then out, lse, weights and scores hold
// anything. The call lies in the workspace: nothing to free, and a workspace holds one call. Plan,
// workspace and tensors must outlive it; `problem` itself need not.
typedef struct fovea_call fovea_call;

// Checks the problem against the plan, as fovea_run does, and sets *call. Allocates nothing.
FOVEA_EXPORT fovea_status fovea_bind(const fovea_plan* plan, const fovea_problem* problem,
                                     void* workspace, size_t workspace_bytes, int32_t workers,
                                     fovea_call** call, fovea_error* error) FOVEA_NOEXCEPT;

// How many phases the call has; 0 for a null call.
FOVEA_EXPORT int32_t fovea_call_phases(const fovea_call* call) FOVEA_NOEXCEPT;
// How many tasks a phase has; 0 for a null call or a phase that does not exist.
FOVEA_EXPORT int64_t fovea_call_tasks(const fovea_call* call, int32_t phase) FOVEA_NOEXCEPT;

// Runs one task; no two at the same time with the same worker. FOVEA_INVALID_ARGUMENT, and nothing
// done, for a phase, task or worker that does not exist.
// Neither allocates nor blocks.
FOVEA_EXPORT fovea_status fovea_call_run_task(const fovea_call* call, int32_t phase, int64_t task,
                                              int32_t worker) FOVEA_NOEXCEPT;

// ---------------------------------------------------------------- merge

// The attention state over the union of disjoint key sets: fovea::Merge. `lse` may be null.
FOVEA_EXPORT fovea_status fovea_merge(const fovea_partial_state* parts, int64_t count,
                                      const fovea_tensor* out, const fovea_tensor* lse,
                                      fovea_error* error) FOVEA_NOEXCEPT;

// ---------------------------------------------------------------- helpers

// A dense tensor in C order of 1 to 4 axes; an absent one for another rank or a null shape. Rows of
// packed elements are whole units.
FOVEA_EXPORT fovea_tensor fovea_dense(const void* data, fovea_dtype dtype, int32_t rank,
                                      const int64_t* shape) FOVEA_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif  // FOVEA_C_H_
