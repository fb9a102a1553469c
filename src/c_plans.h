// What the C interface does with plans, whatever is planned: attention (c.cc), gradients
// (c_gradient.cc).
#ifndef FOVEA_SRC_C_PLANS_H_
#define FOVEA_SRC_C_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "c_structs.h"
#include "errors.h"
#include "memory.h"

namespace fovea {

// `Of` names
//
//   GivenPlan, GivenCall, GivenProblem   the structs of C: a plan {allocator, plan}, a call that
//                                        lies at the start of a workspace {call, workers}, a
//                                        problem
//   Problem, Plan, Call                  the classes
//   kBytesFunction                       the function that tells how much workspace is needed
//   Read(given, &problem), Once(problem, options, executor)
template <class Of>
struct CPlans {
  using GivenPlan = typename Of::GivenPlan;
  using GivenCall = typename Of::GivenCall;
  using GivenProblem = typename Of::GivenProblem;
  using Problem = typename Of::Problem;

  static Status Create(const GivenProblem* given, const fovea_plan_options* given_options,
                       GivenPlan** result) {
    if (result == nullptr) return Invalid("plan = null, expected where to put it");
    Problem problem;
    PlanOptions options;
    FOVEA_RETURN_IF_ERROR(Of::Read(given, &problem));
    FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
    typename Of::Plan plan;
    FOVEA_RETURN_IF_ERROR(Of::Plan::Create(problem, options, &plan));
    void* const memory = Allocate(options.allocator, sizeof(GivenPlan));
    if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
    *result = new (memory) GivenPlan{options.allocator, std::move(plan)};
    return Status();
  }

  static void Destroy(GivenPlan* plan) {
    if (plan == nullptr) return;
    const Allocator allocator = plan->allocator;
    plan->~GivenPlan();
    Release(allocator, plan, sizeof(GivenPlan));
  }

  static Status Update(GivenPlan* plan, const GivenProblem* given) {
    if (plan == nullptr) return Invalid("plan = null");
    Problem problem;
    FOVEA_RETURN_IF_ERROR(Of::Read(given, &problem));
    return plan->plan.Update(problem);
  }

  // 0 for what there is not.
  static size_t WorkspaceBytes(const GivenPlan* plan, int32_t workers) {
    if (plan == nullptr || workers < 1) return 0;
    constexpr size_t kCallBytes = sizeof(GivenCall) + alignof(GivenCall) - 1;
    const size_t bytes = plan->plan.WorkspaceBytes(workers);
    return bytes > SIZE_MAX - kCallBytes ? SIZE_MAX : bytes + kCallBytes;
  }

  static Status Cost(const GivenPlan* plan, fovea_cost* result) {
    if (plan == nullptr) return Invalid("plan = null");
    return WriteCost(plan->plan.cost(), result);
  }

  static size_t Text(const GivenPlan* plan, char* text, size_t bytes) noexcept try {
    return plan == nullptr ? 0 : WriteText(plan->plan.ToString(), text, bytes);
  } catch (const std::bad_alloc&) {
    return 0;
  }

  static Status RunPlan(const GivenPlan* plan, const GivenProblem* given, void* workspace,
                        size_t bytes, const fovea_executor* given_executor) {
    if (plan == nullptr) return Invalid("plan = null");
    Problem problem;
    HostExecutor executor;
    FOVEA_RETURN_IF_ERROR(Of::Read(given, &problem));
    FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
    FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, executor.Get().Workers()));
    return Run(plan->plan, problem, {workspace, bytes}, executor.Get());
  }

  static Status RunOnce(const GivenProblem* given, const fovea_plan_options* given_options,
                        const fovea_executor* given_executor) {
    Problem problem;
    PlanOptions options;
    HostExecutor executor;
    FOVEA_RETURN_IF_ERROR(Of::Read(given, &problem));
    FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
    FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
    return Of::Once(problem, options, executor.Get());
  }

  static Status BindCall(const GivenPlan* plan, const GivenProblem* given, void* workspace,
                         size_t bytes, int workers, GivenCall** result) {
    if (plan == nullptr) return Invalid("plan = null");
    if (result == nullptr) return Invalid("call = null, expected where to put it");
    Problem problem;
    FOVEA_RETURN_IF_ERROR(Of::Read(given, &problem));
    if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
    FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, workers));
    void* place = workspace;
    size_t left = bytes;
    // there is room: CheckWorkspace
    std::align(alignof(GivenCall), sizeof(GivenCall), place, left);
    GivenCall bound = {typename Of::Call(), workers};
    const Workspace behind = {static_cast<char*>(place) + sizeof(GivenCall),
                              left - sizeof(GivenCall)};
    FOVEA_RETURN_IF_ERROR(Bind(plan->plan, problem, behind, workers, &bound.call));
    *result = new (place) GivenCall(bound);
    return Status();
  }

  // A task of a phase by one of the workers that the call was bound for.
  static fovea_status RunTask(const GivenCall* call, int32_t phase, int64_t task, int32_t worker) {
    if (call == nullptr || task < 0 || task >= call->call.Tasks(phase) || worker < 0 ||
        worker >= call->workers)
      return FOVEA_INVALID_ARGUMENT;
    call->call.RunTask(phase, task, worker);
    return FOVEA_OK;
  }

 private:
  static Status CheckWorkspace(const GivenPlan& plan, const void* workspace, size_t bytes,
                               int workers) {
    const size_t needed = WorkspaceBytes(&plan, workers);
    if (workspace == nullptr)
      return Invalid("workspace = null, expected %zu bytes (%s)", needed, Of::kBytesFunction);
    if (bytes < needed)
      return TooSmall("workspace_bytes = %zu, expected at least %zu (%s)", bytes, needed,
                      Of::kBytesFunction);
    return Status();
  }
};

}  // namespace fovea

#endif  // FOVEA_SRC_C_PLANS_H_
