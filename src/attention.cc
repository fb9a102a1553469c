// The public calls: check, plan, and hand the phases of tasks to an executor.
#include "fovea/attention.h"

#include <cinttypes>
#include <cmath>

#include "plan.h"

namespace fovea {
namespace {

constexpr uintptr_t kAlignment = 64;

}  // namespace

Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
            BoundCall* call) noexcept {
  if (!plan.valid()) return Invalid("plan = empty, expected one that Create has made");
  FOVEA_RETURN_IF_ERROR(CheckAgainstPlan(*plan.state(), problem));
  FOVEA_RETURN_IF_ERROR(CheckData(problem, plan.state()->sizes));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  const size_t needed = plan.WorkspaceBytes(workers);
  if (workspace.data == nullptr)
    return Invalid("workspace.data = null, expected %zu bytes (Plan::WorkspaceBytes(%d))", needed,
                   workers);
  if (workspace.bytes < needed) {
    return TooSmall("workspace.bytes = %zu, expected at least %zu (Plan::WorkspaceBytes(%d))",
                    workspace.bytes, needed, workers);
  }
  call->plan_ = plan.state();
  call->problem_ = WithStridesInMemory(problem);
  const uintptr_t address = reinterpret_cast<uintptr_t>(workspace.data);
  const uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  // Split states first, then the map of the mask, then a slice for each worker.
  call->workspace_ = static_cast<char*>(workspace.data) + (aligned - address);
  return Status();
}

int BoundCall::Phases() const noexcept { return plan_ == nullptr ? 0 : plan_->phases; }

int64_t BoundCall::Tasks(int phase) const noexcept {
  return phase < 0 || phase >= Phases() ? 0 : plan_->Tasks(plan_->phase[phase]);
}

void BoundCall::RunTask(int phase, int64_t task, int worker) const noexcept {
  const Plan::State& plan = *plan_;
  float* partials = reinterpret_cast<float*>(workspace_);
  char* const after_partials =
      workspace_ + static_cast<size_t>(plan.partial_floats) * sizeof(float);
  MaskMapEntry* const map = reinterpret_cast<MaskMapEntry*>(after_partials);
  char* scratch =
      after_partials + plan.map_bytes() + static_cast<size_t>(worker) * plan.worker_bytes;
  KernelCall call;
  if (plan.map_layout.entries() > 0)
    call.mask_map = {plan.map_layout, plan.options.fixed_mask ? plan.fixed_map.data() : map};
  call.problem = &problem_;
  call.lengths = plan.lengths.data();
  call.scale = problem_.score.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(plan.sizes.dk))));
  const SequencePlan* sequence;
  switch (plan.phase[phase]) {
    case Phase::kMap:
      return FillMaskMap(problem_.score.mask, plan.map_layout, task, map);
    case Phase::kItems: {
      const Item item = ItemOf(plan, task, partials, &sequence);
      call.geometry = sequence->geometry;
      const SequencePlan* next_sequence = nullptr;
      const Item next =
          task + 1 < plan.items ? ItemOf(plan, task + 1, partials, &next_sequence) : Item();
      if (next_sequence != nullptr && next_sequence->kernels == sequence->kernels)
        call.next = &next;
      return sequence->kernels->attend(call, item, scratch);
    }
    case Phase::kMerges: {
      const MergeItem item = MergeOf(plan, task, partials, &sequence);
      call.geometry = sequence->geometry;
      return sequence->kernels->merge(call, item, scratch);
    }
    case Phase::kWeights:
    case Phase::kScores: {
      const bool scores = plan.phase[phase] == Phase::kScores;
      call.matrix = scores ? &problem_.scores : &problem_.weights;
      call.stage = scores ? problem_.score_stage : ScoreStage::kWeights;
      const Item item = MatrixItemOf(plan, task, &sequence);
      call.geometry = sequence->geometry;
      return sequence->kernels->matrix(call, item, scratch);
    }
  }
}

Status Run(const Plan& plan, const Problem& problem, Workspace workspace,
           Executor& executor) noexcept {
  BoundCall call;
  FOVEA_RETURN_IF_ERROR(Bind(plan, problem, workspace, executor.Workers(), &call));
  struct Context {
    const BoundCall* call;
    int phase;
  } context = {&call, 0};
  for (; context.phase < call.Phases(); ++context.phase) {
    executor.ForEach(
        call.Tasks(context.phase),
        [](void* p, int64_t task, int worker) {
          const Context& c = *static_cast<const Context*>(p);
          c.call->RunTask(c.phase, task, worker);
        },
        &context);
  }
  return Status();
}

Status Attention(const Problem& problem, const PlanOptions& options, Executor& executor) noexcept {
  Plan plan;
  FOVEA_RETURN_IF_ERROR(Plan::Create(problem, options, &plan));
  const size_t bytes = plan.WorkspaceBytes(executor.Workers());
  if (bytes == 0)
    return Invalid("executor.Workers() = %d, expected 1 or greater", executor.Workers());
  void* const memory = Allocate(options.allocator, bytes);
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
  const Status status = Run(plan, problem, {memory, bytes}, executor);
  Release(options.allocator, memory, bytes);
  return status;
}

Status Attention(const Problem& problem, Executor& executor) noexcept {
  return Attention(problem, PlanOptions(), executor);
}

}  // namespace fovea
