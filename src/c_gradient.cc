// The C interface's functions of gradients, as c.cc has those of attention.
#include "fovea/c_gradient.h"

#include "c_plans.h"
#include "c_structs.h"
#include "fovea/gradient.h"

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

struct OfGradients {
  using GivenPlan = fovea_gradient_plan;
  using GivenCall = fovea_gradient_call;
  using GivenProblem = fovea_gradient_problem;
  using Problem = GradientProblem;
  using Plan = GradientPlan;
  using Call = BoundGradients;
  static constexpr char kBytesFunction[] = "fovea_gradient_plan_workspace_bytes";

  static Status Read(const fovea_gradient_problem* given, GradientProblem* problem) {
    return ReadGradientProblem(given, problem);
  }
  static Status Once(const GradientProblem& problem, const PlanOptions& options,
                     Executor& executor) {
    return Gradients(problem, options, executor);
  }
};
using Plans = CPlans<OfGradients>;

}  // namespace
}  // namespace fovea

fovea_status fovea_gradient_plan_create(const fovea_gradient_problem* problem,
                                        const fovea_plan_options* options,
                                        fovea_gradient_plan** plan, fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Create(problem, options, plan), error);
}

fovea_status fovea_gradient_plan_update(fovea_gradient_plan* plan,
                                        const fovea_gradient_problem* problem,
                                        fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Update(plan, problem), error);
}

void fovea_gradient_plan_destroy(fovea_gradient_plan* plan) noexcept {
  fovea::Plans::Destroy(plan);
}

size_t fovea_gradient_plan_workspace_bytes(const fovea_gradient_plan* plan,
                                           int32_t workers) noexcept {
  return fovea::Plans::WorkspaceBytes(plan, workers);
}

fovea_target fovea_gradient_plan_target(const fovea_gradient_plan* plan) noexcept {
  return plan == nullptr ? FOVEA_TARGET_AUTO : static_cast<fovea_target>(plan->plan.target());
}

fovea_status fovea_gradient_plan_cost(const fovea_gradient_plan* plan, fovea_cost* cost,
                                      fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Cost(plan, cost), error);
}

size_t fovea_gradient_plan_to_string(const fovea_gradient_plan* plan, char* text,
                                     size_t bytes) noexcept {
  return fovea::Plans::Text(plan, text, bytes);
}

fovea_status fovea_gradient_run(const fovea_gradient_plan* plan,
                                const fovea_gradient_problem* problem, void* workspace,
                                size_t workspace_bytes, const fovea_executor* executor,
                                fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::RunPlan(plan, problem, workspace, workspace_bytes, executor),
                       error);
}

fovea_status fovea_gradients(const fovea_gradient_problem* problem,
                             const fovea_plan_options* options, const fovea_executor* executor,
                             fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::RunOnce(problem, options, executor), error);
}

fovea_status fovea_gradient_bind(const fovea_gradient_plan* plan,
                                 const fovea_gradient_problem* problem, void* workspace,
                                 size_t workspace_bytes, int32_t workers,
                                 fovea_gradient_call** call, fovea_error* error) noexcept {
  return fovea::Report(
      fovea::Plans::BindCall(plan, problem, workspace, workspace_bytes, workers, call), error);
}

int32_t fovea_gradient_call_phases(const fovea_gradient_call* call) noexcept {
  return call == nullptr ? 0 : call->call.Phases();
}

int64_t fovea_gradient_call_tasks(const fovea_gradient_call* call, int32_t phase) noexcept {
  return call == nullptr ? 0 : call->call.Tasks(phase);
}

fovea_status fovea_gradient_call_run_task(const fovea_gradient_call* call, int32_t phase,
                                          int64_t task, int32_t worker) noexcept {
  return fovea::Plans::RunTask(call, phase, task, worker);
}
