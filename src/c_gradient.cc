// The C interface's functions of gradients, as c.cc has those of attention.
#include "fovea/c_gradient.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "c_structs.h"
#include "errors.h"
#include "fovea/gradient.h"
#include "memory.h"

struct fovea_gradient_plan {
  fovea::Allocator allocator;
  fovea::GradientPlan plan;
};

// Lies at the start of a workspace.
struct fovea_gradient_call {
  fovea::BoundGradients call;
  int workers;
};

namespace fovea {
namespace {

Status CreatePlan(const fovea_gradient_problem* given, const fovea_plan_options* given_options,
                  fovea_gradient_plan** result) {
  if (result == nullptr) return Invalid("plan = null, expected where to put it");
  GradientProblem problem;
  PlanOptions options;
  FOVEA_RETURN_IF_ERROR(ReadGradientProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
  GradientPlan plan;
  FOVEA_RETURN_IF_ERROR(GradientPlan::Create(problem, options, &plan));
  void* const memory = Allocate(options.allocator, sizeof(fovea_gradient_plan));
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  *result = new (memory) fovea_gradient_plan{options.allocator, std::move(plan)};
  return Status();
}

Status UpdatePlan(fovea_gradient_plan* plan, const fovea_gradient_problem* given) {
  if (plan == nullptr) return Invalid("plan = null");
  GradientProblem problem;
  FOVEA_RETURN_IF_ERROR(ReadGradientProblem(given, &problem));
  return plan->plan.Update(problem);
}

Status CheckWorkspace(const fovea_gradient_plan& plan, const void* workspace, size_t bytes,
                      int workers) {
  const size_t needed = fovea_gradient_plan_workspace_bytes(&plan, workers);
  if (workspace == nullptr)
    return Invalid("workspace = null, expected %zu bytes (fovea_gradient_plan_workspace_bytes)",
                   needed);
  if (bytes < needed)
    return TooSmall(
        "workspace_bytes = %zu, expected at least %zu (fovea_gradient_plan_workspace_bytes)", bytes,
        needed);
  return Status();
}

Status RunPlan(const fovea_gradient_plan* plan, const fovea_gradient_problem* given,
               void* workspace, size_t bytes, const fovea_executor* given_executor) {
  if (plan == nullptr) return Invalid("plan = null");
  GradientProblem problem;
  HostExecutor executor;
  FOVEA_RETURN_IF_ERROR(ReadGradientProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
  FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, executor.Get().Workers()));
  return Run(plan->plan, problem, {workspace, bytes}, executor.Get());
}

Status RunOnce(const fovea_gradient_problem* given, const fovea_plan_options* given_options,
               const fovea_executor* given_executor) {
  GradientProblem problem;
  PlanOptions options;
  HostExecutor executor;
  FOVEA_RETURN_IF_ERROR(ReadGradientProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
  FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
  return Gradients(problem, options, executor.Get());
}

Status BindCall(const fovea_gradient_plan* plan, const fovea_gradient_problem* given,
                void* workspace, size_t bytes, int workers, fovea_gradient_call** result) {
  if (plan == nullptr) return Invalid("plan = null");
  if (result == nullptr) return Invalid("call = null, expected where to put it");
  GradientProblem problem;
  FOVEA_RETURN_IF_ERROR(ReadGradientProblem(given, &problem));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, workers));
  void* place = workspace;
  size_t left = bytes;
  // there is room: CheckWorkspace
  std::align(alignof(fovea_gradient_call), sizeof(fovea_gradient_call), place, left);
  fovea_gradient_call bound = {BoundGradients(), workers};
  const Workspace behind = {static_cast<char*>(place) + sizeof(fovea_gradient_call),
                            left - sizeof(fovea_gradient_call)};
  FOVEA_RETURN_IF_ERROR(Bind(plan->plan, problem, behind, workers, &bound.call));
  *result = new (place) fovea_gradient_call(bound);
  return Status();
}

Status RunTask(const fovea_gradient_call* call, int32_t phase, int64_t task, int32_t worker) {
  if (call == nullptr) return Invalid("call = null");
  if (task < 0 || task >= call->call.Tasks(phase) || worker < 0 || worker >= call->workers)
    return Invalid("a phase, task or worker that does not exist");
  call->call.RunTask(phase, task, worker);
  return Status();
}

}  // namespace
}  // namespace fovea

fovea_status fovea_gradient_plan_create(const fovea_gradient_problem* problem,
                                        const fovea_plan_options* options,
                                        fovea_gradient_plan** plan, fovea_error* error) noexcept {
  return fovea::Report(fovea::CreatePlan(problem, options, plan), error);
}

fovea_status fovea_gradient_plan_update(fovea_gradient_plan* plan,
                                        const fovea_gradient_problem* problem,
                                        fovea_error* error) noexcept {
  return fovea::Report(fovea::UpdatePlan(plan, problem), error);
}

void fovea_gradient_plan_destroy(fovea_gradient_plan* plan) noexcept {
  if (plan == nullptr) return;
  const fovea::Allocator allocator = plan->allocator;
  plan->~fovea_gradient_plan();
  fovea::Release(allocator, plan, sizeof(fovea_gradient_plan));
}

size_t fovea_gradient_plan_workspace_bytes(const fovea_gradient_plan* plan,
                                           int32_t workers) noexcept {
  if (plan == nullptr || workers < 1) return 0;
  constexpr size_t kCallBytes = sizeof(fovea_gradient_call) + alignof(fovea_gradient_call) - 1;
  const size_t bytes = plan->plan.WorkspaceBytes(workers);
  return bytes > SIZE_MAX - kCallBytes ? SIZE_MAX : bytes + kCallBytes;
}

fovea_target fovea_gradient_plan_target(const fovea_gradient_plan* plan) noexcept {
  return plan == nullptr ? FOVEA_TARGET_AUTO : static_cast<fovea_target>(plan->plan.target());
}

fovea_status fovea_gradient_plan_cost(const fovea_gradient_plan* plan, fovea_cost* cost,
                                      fovea_error* error) noexcept {
  return fovea::Report(
      plan == nullptr ? fovea::Invalid("plan = null") : fovea::WriteCost(plan->plan.cost(), cost),
      error);
}

size_t fovea_gradient_plan_to_string(const fovea_gradient_plan* plan, char* text,
                                     size_t bytes) noexcept try {
  return plan == nullptr ? 0 : fovea::WriteText(plan->plan.ToString(), text, bytes);
} catch (const std::bad_alloc&) {
  return 0;
}

fovea_status fovea_gradient_run(const fovea_gradient_plan* plan,
                                const fovea_gradient_problem* problem, void* workspace,
                                size_t workspace_bytes, const fovea_executor* executor,
                                fovea_error* error) noexcept {
  return fovea::Report(fovea::RunPlan(plan, problem, workspace, workspace_bytes, executor), error);
}

fovea_status fovea_gradients(const fovea_gradient_problem* problem,
                             const fovea_plan_options* options, const fovea_executor* executor,
                             fovea_error* error) noexcept {
  return fovea::Report(fovea::RunOnce(problem, options, executor), error);
}

fovea_status fovea_gradient_bind(const fovea_gradient_plan* plan,
                                 const fovea_gradient_problem* problem, void* workspace,
                                 size_t workspace_bytes, int32_t workers,
                                 fovea_gradient_call** call, fovea_error* error) noexcept {
  return fovea::Report(fovea::BindCall(plan, problem, workspace, workspace_bytes, workers, call),
                       error);
}

int32_t fovea_gradient_call_phases(const fovea_gradient_call* call) noexcept {
  return call == nullptr ? 0 : call->call.Phases();
}

int64_t fovea_gradient_call_tasks(const fovea_gradient_call* call, int32_t phase) noexcept {
  return call == nullptr ? 0 : call->call.Tasks(phase);
}

fovea_status fovea_gradient_call_run_task(const fovea_gradient_call* call, int32_t phase,
                                          int64_t task, int32_t worker) noexcept {
  return fovea::Report(fovea::RunTask(call, phase, task, worker), nullptr);
}
