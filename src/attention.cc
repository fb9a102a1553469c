// The public calls: check, plan, and hand the phases of tasks to an executor.
#include "fovea/attention.h"

#include "plan/binding.h"
#include "plan/choosing.h"
#include "plan/phases.h"
#include "plan/plan.h"

namespace fovea {
namespace {

// Whether `plan` can run `problem` in that workspace.
Status CheckRun(const Plan& plan, const Problem& problem, Workspace workspace, int workers) {
  if (!plan.valid()) return Invalid("plan = empty, expected one that Create has made");
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckAgainstPlan(*plan.state(), checked));
  FOVEA_RETURN_IF_ERROR(CheckData(checked, plan.state()->lengths.data()));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  const size_t needed = plan.WorkspaceBytes(workers);
  if (workspace.data == nullptr)
    return Invalid("workspace.data = null, expected %zu bytes (Plan::WorkspaceBytes(%d))", needed,
                   workers);
  if (workspace.bytes < needed) {
    return TooSmall("workspace.bytes = %zu, expected at least %zu (Plan::WorkspaceBytes(%d))",
                    workspace.bytes, needed, workers);
  }
  return Status();
}

// Runs a checked problem in a workspace that is large enough.
void RunPhases(const Plan::State& plan, const Problem& problem, void* workspace,
               Executor& executor) {
  Problem settled = problem;
  Settle(&settled);
  const RunContext context = {&plan, &settled, WorkspaceLayout::Aligned(workspace)};
  for (int n = 0; n < plan.phases; ++n) {
    const Phase& phase = *plan.phase[n];
    struct Loop {
      const RunContext* context;
      void (*run)(const RunContext& context, int64_t task, int worker);
    } loop = {&context, phase.run};
    executor.ForEach(
        phase.tasks(plan),
        [](void* p, int64_t task, int worker) {
          const Loop& l = *static_cast<const Loop*>(p);
          l.run(*l.context, task, worker);
        },
        &loop);
  }
}

}  // namespace

Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
            BoundCall* call) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckRun(plan, problem, workspace, workers));
  call->plan_ = plan.state();
  call->problem_ = problem;
  Settle(&call->problem_);
  call->workspace_ = WorkspaceLayout::Aligned(workspace.data);
  return Status();
}

int BoundCall::Phases() const noexcept { return plan_ == nullptr ? 0 : plan_->phases; }

int64_t BoundCall::Tasks(int phase) const noexcept {
  return phase < 0 || phase >= Phases() ? 0 : plan_->phase[phase]->tasks(*plan_);
}

void BoundCall::RunTask(int phase, int64_t task, int worker) const noexcept {
  plan_->phase[phase]->run({plan_, &problem_, workspace_}, task, worker);
}

Status Run(const Plan& plan, const Problem& problem, Workspace workspace,
           Executor& executor) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckRun(plan, problem, workspace, executor.Workers()));
  RunPhases(*plan.state(), problem, workspace.data, executor);
  return Status();
}

// As Create and Run, but what they check and read twice is checked and read once.
Status Attention(const Problem& problem, const PlanOptions& options, Executor& executor) noexcept {
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckOptions(options));
  Plan::State plan(options);
  FOVEA_RETURN_IF_ERROR(MakePlan(checked, &plan));
  FOVEA_RETURN_IF_ERROR(CheckData(checked, plan.lengths.data()));
  const int workers = executor.Workers();
  if (workers < 1) return Invalid("executor.Workers() = %d, expected 1 or greater", workers);
  const size_t bytes = plan.workspace.Bytes(workers);
  void* const memory = Allocate(options.allocator, bytes);
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
  RunPhases(plan, problem, memory, executor);
  Release(options.allocator, memory, bytes);
  return Status();
}

Status Attention(const Problem& problem, Executor& executor) noexcept {
  return Attention(problem, PlanOptions(), executor);
}

}  // namespace fovea
