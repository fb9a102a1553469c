// The public calls: check, plan, and hand the phases of tasks to an executor.
#include "fovea/attention.h"

#include <cstdint>

#include "float_state.h"
#include "plan/binding.h"
#include "plan/choosing.h"
#include "plan/phases.h"
#include "plan/plan.h"
#include "task_loop.h"

namespace fovea {
namespace {

// Whether `plan` can run `problem` in that workspace. If so, *settled is what kernels take.
Status CheckRun(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
                Problem* settled) {
  if (!plan.valid()) return Invalid("plan = empty, expected one that Create has made");
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckAgainstPlan(*plan.state(), checked));
  const Plan::State& state = *plan.state();
  FOVEA_RETURN_IF_ERROR(CheckData(checked, state.lengths.data()));
  if (!state.options.fixed_tables) FOVEA_RETURN_IF_ERROR(CheckTable(checked, state.lengths.data()));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  const size_t needed = plan.WorkspaceBytes(workers);
  if (workspace.data == nullptr)
    return Invalid("workspace.data = null, expected %zu bytes (Plan::WorkspaceBytes(%d))", needed,
                   workers);
  if (workspace.bytes < needed) {
    return TooSmall("workspace.bytes = %zu, expected at least %zu (Plan::WorkspaceBytes(%d))",
                    workspace.bytes, needed, workers);
  }
  *settled = problem;
  Settle(settled);
  return Status();
}

// As Create and CheckRun, but what they check and read twice is checked and read once.
Status Prepare(const Problem& problem, const PlanOptions& options, Plan::State* plan,
               Problem* settled) {
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckOptions(options));
  FOVEA_RETURN_IF_ERROR(MakePlan(checked, plan));
  FOVEA_RETURN_IF_ERROR(CheckData(checked, plan->lengths.data()));
  FOVEA_RETURN_IF_ERROR(CheckTable(checked, plan->lengths.data()));
  *settled = problem;
  Settle(settled);
  return Status();
}

// Every task of every run goes through here.
void RunInDefaultState(const RunContext& context, const Phase& phase, int64_t task, int worker) {
  InDefaultFloatState([&] { phase.run(context, task, worker); });
}

// Runs a settled problem in a workspace that is large enough.
Status RunPhases(const Plan::State& plan, const Problem& problem, void* workspace,
                 Executor& executor, int workers) {
  const RunContext context = {&plan, &problem, WorkspaceLayout::Aligned(workspace)};
  for (int n = 0; n < plan.phases; ++n) {
    const Phase& phase = *plan.phase[n];
    const auto run = [&](int64_t task, int worker) {
      RunInDefaultState(context, phase, task, worker);
    };
    FOVEA_RETURN_IF_ERROR(TaskLoop(phase.tasks(plan), workers, run).In(executor));
  }
  return Status();
}

}  // namespace

Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
            BoundCall* call) noexcept {
  FOVEA_RETURN_IF_ERROR(InDefaultFloatState(
      [&] { return CheckRun(plan, problem, workspace, workers, &call->problem_); }));
  call->plan_ = plan.state();
  call->workspace_ = WorkspaceLayout::Aligned(workspace.data);
  return Status();
}

int BoundCall::Phases() const noexcept { return plan_ == nullptr ? 0 : plan_->phases; }

int64_t BoundCall::Tasks(int phase) const noexcept {
  return phase < 0 || phase >= Phases() ? 0 : plan_->phase[phase]->tasks(*plan_);
}

void BoundCall::RunTask(int phase, int64_t task, int worker) const noexcept {
  RunInDefaultState({plan_, &problem_, workspace_}, *plan_->phase[phase], task, worker);
}

Status Run(const Plan& plan, const Problem& problem, Workspace workspace,
           Executor& executor) noexcept {
  const int workers = executor.Workers();
  Problem settled;
  FOVEA_RETURN_IF_ERROR(
      InDefaultFloatState([&] { return CheckRun(plan, problem, workspace, workers, &settled); }));
  return RunPhases(*plan.state(), settled, workspace.data, executor, workers);
}

Status Attention(const Problem& problem, const PlanOptions& options, Executor& executor) noexcept {
  Plan::State plan(options);
  Problem settled;
  FOVEA_RETURN_IF_ERROR(
      InDefaultFloatState([&] { return Prepare(problem, options, &plan, &settled); }));
  const int workers = executor.Workers();
  if (workers < 1) return Invalid("executor.Workers() = %d, expected 1 or greater", workers);
  const size_t bytes = plan.workspace.Bytes(workers);
  void* const memory = Allocate(options.allocator, bytes);
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
  const Status status = RunPhases(plan, settled, memory, executor, workers);
  Release(options.allocator, memory, bytes);
  return status;
}

Status Attention(const Problem& problem, Executor& executor) noexcept {
  return Attention(problem, PlanOptions(), executor);
}

}  // namespace fovea
