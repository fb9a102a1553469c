// The public calls: check, plan, and hand the phases of tasks to an executor.
#include "fovea/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "float_state.h"
#include "plan/binding.h"
#include "plan/choosing.h"
#include "plan/phases.h"
#include "plan/plan.h"
#include "task_loop.h"

namespace fovea {
namespace {

// On the stack: what a plan of a few sequences allocates.
constexpr size_t kCallBytes = 4096;

// Every check of a problem for a plan.
Status CheckProblem(const Plan::State& plan, const Problem& problem, bool* settled) {
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckAgainstPlan(plan, checked));
  *settled = IsSettled(checked);
  FOVEA_RETURN_IF_ERROR(CheckData(checked, plan.lengths.data()));
  return plan.options.fixed_tables ? Status() : CheckTable(checked, plan.lengths.data());
}

// Whether `plan` can run `problem` in that workspace, and whether the problem is settled.
Status CheckRun(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
                bool* settled) {
  if (!plan.valid()) return Invalid("plan = empty, expected one that Create has made");
  const Repetition repetition = CompareWithPlanned(*plan.state(), problem);
  *settled = repetition.settled;
  if (!repetition.same) {
    FOVEA_RETURN_IF_ERROR(
        InDefaultFloatState([&] { return CheckProblem(*plan.state(), problem, settled); }));
  }
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

// What Attention needs for a call: in place as long as it is little and the caller names no
// allocator.
class CallMemory {
 public:
  // *options are the caller's, from now on with the allocator to use; this must outlive what it
  // gives.
  explicit CallMemory(PlanOptions* options) noexcept {
    Allocator& allocator = options->allocator;
    if (allocator.allocate == nullptr && allocator.release == nullptr)
      allocator = {Take, Return, this};
  }
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

 private:
  static void* Take(void* self, size_t bytes) {
    CallMemory& memory = *static_cast<CallMemory*>(self);
    if (bytes > memory.left_) return std::malloc(bytes);
    char* const taken = memory.bytes_ + sizeof(memory.bytes_) - memory.left_;
    constexpr size_t kAlignment = alignof(std::max_align_t);
    memory.left_ -= std::min((bytes + kAlignment - 1) / kAlignment * kAlignment, memory.left_);
    return taken;
  }
  static void Return(void* self, void* memory, size_t /*bytes*/) {
    const CallMemory& own = *static_cast<const CallMemory*>(self);
    const std::less<const char*> below;
    const char* const given = static_cast<const char*>(memory);
    if (below(given, own.bytes_) || !below(given, own.bytes_ + sizeof(own.bytes_)))
      std::free(memory);
  }

  size_t left_ = kCallBytes;
  alignas(std::max_align_t) char bytes_[kCallBytes];
};

// As Create and CheckRun, but what they check and read twice is checked and read once.
Status Prepare(const Problem& problem, const PlanOptions& options, Later<Plan::State>* plan,
               bool* settled) {
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
  FOVEA_RETURN_IF_ERROR(CheckOptions(options));
  FOVEA_RETURN_IF_ERROR(MakePlan(checked, plan->Make(options, checked, problem)));
  *settled = IsSettled(checked);
  FOVEA_RETURN_IF_ERROR(CheckData(checked, (*plan)->lengths.data()));
  return CheckTable(checked, (*plan)->lengths.data());
}

// Every task of every run goes through here.
void RunInDefaultState(const RunContext& context, const Phase& phase, int64_t task, int worker) {
  InDefaultFloatState([&] { phase.run(context, task, worker); });
}

// Runs a checked problem in a workspace that is large enough.
Status RunPhases(const Plan::State& plan, const Problem& problem, bool settled, void* workspace,
                 Executor& executor, int workers) {
  Later<Problem> copy;
  if (!settled) Settle(copy.Make(problem));
  const RunContext context = {&plan, settled ? &problem : &*copy,
                              WorkspaceLayout::Aligned(workspace), ScaleOf(plan, problem)};
  const bool counts = &executor != &SerialExecutor();  // it is ours
  for (int n = 0; n < plan.phases; ++n) {
    const Phase& phase = *plan.phase[n];
    const int64_t tasks = phase.tasks(plan);
    const auto run = [&](int64_t task, int worker) {
      RunInDefaultState(context, phase, task, worker);
    };
    if (counts) {
      FOVEA_RETURN_IF_ERROR(TaskLoop(tasks, workers, run).In(executor));
    } else {
      for (int64_t task = 0; task < tasks; ++task) run(task, 0);
    }
  }
  return Status();
}

}  // namespace

Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
            BoundCall* call) noexcept {
  bool settled;
  FOVEA_RETURN_IF_ERROR(CheckRun(plan, problem, workspace, workers, &settled));
  call->problem_ = problem;
  if (!settled) Settle(&call->problem_);
  call->plan_ = plan.state();
  call->workspace_ = WorkspaceLayout::Aligned(workspace.data);
  return Status();
}

int BoundCall::Phases() const noexcept { return plan_ == nullptr ? 0 : plan_->phases; }

int64_t BoundCall::Tasks(int phase) const noexcept {
  return phase < 0 || phase >= Phases() ? 0 : plan_->phase[phase]->tasks(*plan_);
}

void BoundCall::RunTask(int phase, int64_t task, int worker) const noexcept {
  RunInDefaultState({plan_, &problem_, workspace_, ScaleOf(*plan_, problem_)}, *plan_->phase[phase],
                    task, worker);
}

Status Run(const Plan& plan, const Problem& problem, Workspace workspace,
           Executor& executor) noexcept {
  const int workers = executor.Workers();
  bool settled;
  FOVEA_RETURN_IF_ERROR(CheckRun(plan, problem, workspace, workers, &settled));
  return RunPhases(*plan.state(), problem, settled, workspace.data, executor, workers);
}

Status Attention(const Problem& problem, const PlanOptions& given_options,
                 Executor& executor) noexcept {
  PlanOptions options = given_options;
  CallMemory in_place(&options);
  Later<Plan::State> plan;
  bool settled;
  FOVEA_RETURN_IF_ERROR(
      InDefaultFloatState([&] { return Prepare(problem, options, &plan, &settled); }));
  const int workers = executor.Workers();
  if (workers < 1) return Invalid("executor.Workers() = %d, expected 1 or greater", workers);
  const size_t bytes = plan->workspace.Bytes(workers);
  void* const memory = Allocate(options.allocator, bytes);
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
  const Status status = RunPhases(*plan, problem, settled, memory, executor, workers);
  Release(options.allocator, memory, bytes);
  return status;
}

Status Attention(const Problem& problem, Executor& executor) noexcept {
  return Attention(problem, PlanOptions(), executor);
}

}  // namespace fovea
