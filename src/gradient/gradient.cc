// The public calls of gradients: check, plan, and hand the phases of tasks to an executor.
#include "fovea/gradient.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <exception>

#include "float_state.h"
#include "gradient/state.h"
#include "kernels/registry.h"
#include "plan/binding.h"
#include "plan/choosing.h"
#include "plan/phases.h"
#include "plan/plan.h"
#include "task_loop.h"

namespace fovea {

namespace {

Status CheckGradientOptions(const PlanOptions& options) {
  FOVEA_RETURN_IF_ERROR(CheckOptions(options));
  if (options.engine == Engine::kRow)
    return Unsupported("options.engine = row, expected auto or tile: gradients have tiles");
  if (options.product != Product::kAuto && options.product != Product::kF32)
    return Unsupported("options.product = %s, expected auto or f32: gradients have products of f32",
                       Name(options.product));
  return Status();
}

// What a plan of the forward pass is asked for: its checks, lengths, maps and trees.
PlanOptions ForwardOptions(const PlanOptions& options) {
  PlanOptions forward = options;
  forward.engine = Engine::kTile;
  forward.product = Product::kF32;
  forward.tile_rows = forward.block_keys = 0;
  forward.split_keys = 0;
  return forward;
}

template <class View>
void BindView(const View& given, View* bound) {
  bound->rank = given.rank;
  bound->dtype = given.dtype;
}

// *plan was made with the options. Allocates.
Status MakeGradientPlan(const GradientProblem& problem, const ValidProblem& valid,
                        GradientPlan::State* plan) noexcept try {
  FOVEA_RETURN_IF_ERROR(MakePlan(valid, &plan->forward));
  plan->kernels = FindGradientKernels(plan->forward.target);
  GradientProblem& bound = plan->bound;
  BindView(problem.dout, &bound.dout);
  BindView(problem.dlse, &bound.dlse);
  BindView(problem.dq, &bound.dq);
  BindView(problem.dk, &bound.dk);
  BindView(problem.dv, &bound.dv);
  BindView(problem.dbias, &bound.dbias);
  BindView(problem.dsinks, &bound.dsinks);
  BindView(problem.dhead_scales, &bound.dhead_scales);
  bound.accumulate = problem.accumulate;
  plan->sequences.reserve(static_cast<size_t>(plan->forward.sizes.B));
  LayGradients(problem, plan);
  return Status();
} catch (const std::exception&) {
  return Status(StatusCode::kOutOfMemory, "no memory for the plan");
}

// As kernels take it.
void Settle(GradientProblem* problem) {
  Settle(&problem->forward);
  const auto settle = [](auto& view) {
    if (view.present()) SettleStrides(view.dtype, view.rank, view.shape, view.stride);
  };
  settle(problem->dout);
  settle(problem->dq);
  settle(problem->dk);
  settle(problem->dv);
  settle(problem->dbias);
}

Status CheckRun(const GradientPlan& plan, const GradientProblem& problem, Workspace workspace,
                int workers, GradientProblem* settled) {
  if (!plan.valid()) return Invalid("plan = empty, expected one that Create has made");
  const GradientPlan::State& state = *plan.state();
  ValidProblem checked;
  FOVEA_RETURN_IF_ERROR(Validate(problem.forward, &checked));
  FOVEA_RETURN_IF_ERROR(CheckGradients(problem, checked));
  FOVEA_RETURN_IF_ERROR(CheckAgainstPlan(state.forward, checked));
  FOVEA_RETURN_IF_ERROR(CheckBoundGradients(state, problem));
  FOVEA_RETURN_IF_ERROR(CheckData(checked, state.forward.lengths.data()));
  FOVEA_RETURN_IF_ERROR(CheckGradientData(problem));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  const size_t needed = plan.WorkspaceBytes(workers);
  if (workspace.data == nullptr)
    return Invalid("workspace.data = null, expected %zu bytes (GradientPlan::WorkspaceBytes(%d))",
                   needed, workers);
  if (workspace.bytes < needed)
    return TooSmall(
        "workspace.bytes = %zu, expected at least %zu (GradientPlan::WorkspaceBytes(%d))",
        workspace.bytes, needed, workers);
  *settled = problem;
  Settle(settled);
  return Status();
}

Status RunPhases(const GradientPlan::State& plan, const GradientProblem& settled, void* workspace,
                 Executor& executor, int workers) {
  const GradientRun run = {&plan, &settled, WorkspaceLayout::Aligned(workspace)};
  for (int n = 0; n < plan.phases; ++n) {
    const auto task = [&](int64_t index, int worker) {
      InDefaultFloatState([&] { RunGradientTask(run, n, index, worker); });
    };
    FOVEA_RETURN_IF_ERROR(TaskLoop(plan.phase[n].tasks, workers, task).In(executor));
  }
  return Status();
}

}  // namespace

void GradientPlan::Destroy::operator()(State* state) const noexcept {
  const Allocator allocator = state->forward.options.allocator;
  state->~State();
  Release(allocator, state, sizeof(State));
}

GradientPlan::GradientPlan() noexcept = default;
GradientPlan::~GradientPlan() = default;
GradientPlan::GradientPlan(GradientPlan&&) noexcept = default;
GradientPlan& GradientPlan::operator=(GradientPlan&&) noexcept = default;

Status GradientPlan::Create(const GradientProblem& problem, const PlanOptions& options,
                            GradientPlan* plan) noexcept {
  return InDefaultFloatState([&]() -> Status {
    ValidProblem checked;
    FOVEA_RETURN_IF_ERROR(Validate(problem.forward, &checked));
    FOVEA_RETURN_IF_ERROR(CheckGradients(problem, checked));
    FOVEA_RETURN_IF_ERROR(CheckGradientOptions(options));
    void* const memory = Allocate(options.allocator, sizeof(State));
    if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
    std::unique_ptr<State, Destroy> state(new (memory) State(ForwardOptions(options), checked));
    FOVEA_RETURN_IF_ERROR(MakeGradientPlan(problem, checked, state.get()));
    plan->state_ = std::move(state);
    return Status();
  });
}

Status GradientPlan::Update(const GradientProblem& problem) noexcept {
  if (!valid()) return Invalid("plan = empty, expected one that Create has made");
  return InDefaultFloatState([&]() -> Status {
    ValidProblem checked;
    FOVEA_RETURN_IF_ERROR(Validate(problem.forward, &checked));
    FOVEA_RETURN_IF_ERROR(CheckGradients(problem, checked));
    FOVEA_RETURN_IF_ERROR(CheckBoundGradients(*state_, problem));
    FOVEA_RETURN_IF_ERROR(UpdatePlan(checked, &state_->forward));
    LayGradients(problem, state_.get());
    return Status();
  });
}

size_t GradientPlan::WorkspaceBytes(int workers) const noexcept {
  return !valid() || workers < 1 ? 0 : state_->Bytes(workers);
}

Target GradientPlan::target() const noexcept {
  return valid() ? state_->forward.target : Target::kAuto;
}

Cost GradientPlan::cost() const noexcept {
  if (!valid()) return Cost();
  return InDefaultFloatState([this] {
    Cost cost = CostOf(state_->forward);
    cost.flops *= 2.5;
    cost.tasks = 0;
    for (int n = 0; n < state_->phases; ++n)
      cost.tasks = std::max(cost.tasks, state_->phase[n].tasks);
    return cost;
  });
}

std::string GradientPlan::ToString() const {
  if (!valid()) return "empty plan\n";
  return InDefaultFloatState([this] { return DescribeGradients(*state_); });
}

Status Bind(const GradientPlan& plan, const GradientProblem& problem, Workspace workspace,
            int workers, BoundGradients* call) noexcept {
  GradientProblem settled;
  FOVEA_RETURN_IF_ERROR(
      InDefaultFloatState([&] { return CheckRun(plan, problem, workspace, workers, &settled); }));
  call->problem_ = settled;
  call->plan_ = plan.state();
  call->workspace_ = WorkspaceLayout::Aligned(workspace.data);
  return Status();
}

int BoundGradients::Phases() const noexcept { return plan_ == nullptr ? 0 : plan_->phases; }

int64_t BoundGradients::Tasks(int phase) const noexcept {
  return phase < 0 || phase >= Phases() ? 0 : plan_->phase[phase].tasks;
}

void BoundGradients::RunTask(int phase, int64_t task, int worker) const noexcept {
  const GradientRun run = {plan_, &problem_, workspace_};
  InDefaultFloatState([&] { RunGradientTask(run, phase, task, worker); });
}

Status Run(const GradientPlan& plan, const GradientProblem& problem, Workspace workspace,
           Executor& executor) noexcept {
  const int workers = executor.Workers();
  GradientProblem settled;
  FOVEA_RETURN_IF_ERROR(
      InDefaultFloatState([&] { return CheckRun(plan, problem, workspace, workers, &settled); }));
  return RunPhases(*plan.state(), settled, workspace.data, executor, workers);
}

Status Gradients(const GradientProblem& problem, const PlanOptions& options,
                 Executor& executor) noexcept {
  GradientPlan plan;
  FOVEA_RETURN_IF_ERROR(GradientPlan::Create(problem, options, &plan));
  const int workers = executor.Workers();
  if (workers < 1) return Invalid("executor.Workers() = %d, expected 1 or greater", workers);
  const size_t bytes = plan.WorkspaceBytes(workers);
  void* const memory = Allocate(options.allocator, bytes);
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
  const Status status = Run(plan, problem, {memory, bytes}, executor);
  Release(options.allocator, memory, bytes);
  return status;
}

Status Gradients(const GradientProblem& problem, Executor& executor) noexcept {
  return Gradients(problem, PlanOptions(), executor);
}

}  // namespace fovea
