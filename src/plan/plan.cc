#include "plan/plan.h"

#include <algorithm>
#include <exception>

#include "float_state.h"
#include "plan/arithmetic.h"
#include "plan/binding.h"
#include "plan/choosing.h"
#include "plan/phases.h"
#include "plan/tasks.h"
#include "target.h"

namespace fovea {
namespace {

// Of the map of a fixed mask: that of a mask of 256 GiB. More is not worth asking for.
constexpr int64_t kMostMapEntries = int64_t{1} << 28;

// So many numbers begin at a multiple of WorkspaceLayout::kAlignment.
constexpr int64_t kAlignedNodes = WorkspaceLayout::kAlignment / sizeof(int32_t);

// Memory for the map of a fixed mask that Update may reach.
Status ReserveFixedMap(const TensorView& mask, Plan::State* plan) {
  FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts("mask", mask)));
  const MaskMapLayout most = LayoutWith(mask, plan->room.Tq, plan->room.Tk);
  int64_t entries = most.batches;
  bool overflows = false;
  for (int64_t n : {most.heads, most.query_groups, most.key_groups})
    overflows = overflows || __builtin_mul_overflow(entries, n, &entries);
  if (overflows || entries > kMostMapEntries)
    return Status(StatusCode::kOutOfMemory, "no memory for the map of the fixed mask");
  plan->fixed_map.reserve(static_cast<size_t>(entries));
  return Status();
}

// Of all sequences, to lengths[0 … B − 1].
Status ReadAllLengths(const ValidProblem& problem, SequenceLengths* lengths) {
  for (int64_t b = 0; b < problem.sizes().B; ++b)
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, b, &lengths[b]));
  return Status();
}

// Everything that follows from what is bound and from lengths. Allocates only what the vectors
// lack.
void Lay(const TensorView& mask, Plan::State* plan) {
  plan->sequences.clear();
  for (int64_t b = 0; b < plan->sizes.B; ++b) plan->sequences.push_back(PlanSequence(*plan, b));
  NumberTasks(plan);
  const int64_t entries = plan->map_layout.entries();
  if (plan->options.fixed_mask) {
    plan->fixed_map.resize(static_cast<size_t>(entries));
    for (int64_t task = 0; task < plan->map_layout.tasks(); ++task)
      FillMaskMap(mask, plan->map_layout, task, plan->fixed_map.data());
  } else {
    plan->workspace.map_bytes = static_cast<uint64_t>(
        RoundUp(Times(entries, sizeof(MaskMapEntry)), WorkspaceLayout::kAlignment));
  }
  const bool has_trees = plan->bound.score.parents.present() && plan->sizes.Hq > 0;
  plan->tree_nodes = has_trees ? RoundUp(plan->sizes.Tq, kAlignedNodes) : 0;
  plan->workspace.tree_bytes =
      static_cast<uint64_t>(Times(Times(plan->sizes.B, plan->tree_nodes), 2 * sizeof(int32_t)));
  plan->phases = 0;
  for (const Phase& phase : kPhases) {
    if (phase.tasks(*plan) > 0) plan->phase[plan->phases++] = &phase;
  }
}

}  // namespace

Status MakePlan(const ValidProblem& problem, Plan::State* plan) noexcept try {
  const PlanOptions& options = plan->options;
  FOVEA_RETURN_IF_ERROR(ChooseTarget(options.target, &plan->target));
  BindProblem(problem, plan);
  FOVEA_RETURN_IF_ERROR(CheckProduct(*plan));
  plan->room = plan->sizes;
  plan->room.Tq = std::max(plan->sizes.Tq, options.max_queries);
  plan->room.Tk = std::max(plan->sizes.Tk, options.max_keys);
  if (options.fixed_mask) FOVEA_RETURN_IF_ERROR(ReserveFixedMap(problem->score.mask, plan));
  // In 32 bits there may be more sequences than bytes.
  if (static_cast<uint64_t>(plan->sizes.B) > plan->lengths.max_size() / 2)
    return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  const size_t sequences = static_cast<size_t>(plan->sizes.B);
  plan->sequences.reserve(sequences);
  plan->lengths.resize(2 * sequences);
  FOVEA_RETURN_IF_ERROR(ReadAllLengths(problem, plan->lengths.data()));
  Lay(problem->score.mask, plan);
  return Status();
} catch (const std::exception&) {  // bad_alloc, or length_error for more sequences than a vector
                                   // may hold
  return Status(StatusCode::kOutOfMemory, "no memory for the plan");
}

void Plan::Destroy::operator()(State* state) const noexcept {
  const Allocator allocator = state->options.allocator;
  state->~State();
  Release(allocator, state, sizeof(State));
}

Plan::Plan() noexcept = default;
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

Status Plan::Create(const Problem& problem, const PlanOptions& options, Plan* plan) noexcept {
  return InDefaultFloatState([&]() -> Status {
    ValidProblem checked;
    FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
    FOVEA_RETURN_IF_ERROR(CheckOptions(options));
    void* const memory = Allocate(options.allocator, sizeof(State));
    if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
    std::unique_ptr<State, Destroy> state(new (memory) State(options));
    FOVEA_RETURN_IF_ERROR(MakePlan(checked, state.get()));
    plan->state_ = std::move(state);
    return Status();
  });
}

Status Plan::Update(const Problem& problem) noexcept {
  if (!valid()) return Invalid("plan = empty, expected one that Create has made");
  return InDefaultFloatState([&]() -> Status {
    State& state = *state_;
    ValidProblem checked;
    FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
    FOVEA_RETURN_IF_ERROR(CheckUpdate(state, checked));
    SequenceLengths* const next = state.lengths.data() + state.sizes.B;
    FOVEA_RETURN_IF_ERROR(ReadAllLengths(checked, next));
    // From here on nothing can fail, so that a refused update leaves the plan as it was.
    std::copy(next, next + state.sizes.B, state.lengths.data());
    BindSizes(checked, &state);
    Lay(problem.score.mask, &state);
    return Status();
  });
}

size_t Plan::WorkspaceBytes(int workers) const noexcept {
  return !valid() || workers < 1 ? 0 : state_->workspace.Bytes(workers);
}

}  // namespace fovea
