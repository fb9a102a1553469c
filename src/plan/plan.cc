#include "plan/plan.h"

#include <algorithm>
#include <cmath>
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

// Of the map of a fixed view: that of a mask of 256 GiB. More is not worth asking for.
constexpr int64_t kMostMapEntries = int64_t{1} << 28;

// So many numbers begin at a multiple of WorkspaceLayout::kAlignment.
constexpr int64_t kAlignedNodes = WorkspaceLayout::kAlignment / sizeof(int32_t);

// Memory for the map of a fixed view that Update may reach.
Status ReserveFixedMap(const MapSource& source, const Problem& problem, const ProblemSizes& room,
                       PlannedMap* map) {
  const TensorView& view = source.view(problem);
  FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts(source.name, view)));
  const MaskMapLayout most = LayoutWith(view, room.Tq, room.Tk);
  int64_t entries = most.batches;
  bool overflows = false;
  for (int64_t n : {most.heads, most.query_groups, most.key_groups})
    overflows = overflows || __builtin_mul_overflow(entries, n, &entries);
  if (overflows || entries > kMostMapEntries)
    return Status(StatusCode::kOutOfMemory, "no memory for the map of a fixed mask or bias");
  map->fixed.reserve(static_cast<size_t>(entries));
  return Status();
}

// Of all sequences, to lengths[0 … B − 1].
Status ReadAllLengths(const ValidProblem& problem, SequenceLengths* lengths) {
  for (int64_t b = 0; b < problem.sizes().B; ++b)
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, b, &lengths[b]));
  return Status();
}

// The maps of fixed views, and room for those that runs fill.
void LayMaps(const Problem& problem, Plan::State* plan) {
  int64_t tasks = 0;
  uint64_t bytes = 0;
  for (int n = 0; n < kMaps; ++n) {
    PlannedMap& map = plan->maps[n];
    const int64_t entries = map.layout.entries();
    map.first_task = tasks;
    map.begin = bytes;
    if (kMapSources[n].fixed(plan->options)) {
      map.fixed.resize(static_cast<size_t>(entries));
      for (int64_t task = 0; task < map.layout.tasks(); ++task)
        FillMaskMap(kMapSources[n].view(problem), map.layout, task, map.fixed.data());
    } else {
      tasks += map.layout.tasks();
      bytes += static_cast<uint64_t>(
          RoundUp(Times(entries, sizeof(MaskMapEntry)), WorkspaceLayout::kAlignment));
    }
  }
  plan->map_tasks = tasks;
  plan->workspace.map_bytes = bytes;
}

// The table that runs will trust. Reads it.
Status CheckFixedTable(const ValidProblem& problem, const SequenceLengths* lengths) {
  if (!problem->pages.present()) return Status();
  FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts("pages.table", problem->pages.table)));
  return CheckTable(problem, lengths);
}

// Everything that follows from what is bound and from lengths. Allocates only what the vectors
// lack.
void Lay(const Problem& problem, Plan::State* plan) {
  plan->sequences.clear();
  for (int64_t b = 0; b < plan->sizes.B; ++b) plan->sequences.push_back(PlanSequence(*plan, b));
  NumberTasks(plan);
  LayMaps(problem, plan);
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
  FOVEA_RETURN_IF_ERROR(CheckProduct(*plan));
  BindProblem(problem, plan);
  plan->default_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(plan->sizes.dk)));
  plan->room = plan->sizes;
  plan->room.Tq = std::max(plan->sizes.Tq, options.max_queries);
  plan->room.Tk = std::max(plan->sizes.Tk, options.max_keys);
  for (int n = 0; n < kMaps; ++n) {
    const MapSource& source = kMapSources[n];
    if (source.fixed(options))
      FOVEA_RETURN_IF_ERROR(ReserveFixedMap(source, *problem, plan->room, &plan->maps[n]));
  }
  // In 32 bits there may be more sequences than bytes.
  if (static_cast<uint64_t>(plan->sizes.B) > plan->lengths.max_size() / 2)
    return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  const size_t sequences = static_cast<size_t>(plan->sizes.B);
  plan->sequences.reserve(sequences);
  plan->lengths.resize(2 * sequences);
  FOVEA_RETURN_IF_ERROR(ReadAllLengths(problem, plan->lengths.data()));
  if (options.fixed_tables) FOVEA_RETURN_IF_ERROR(CheckFixedTable(problem, plan->lengths.data()));
  Lay(*problem, plan);
  return Status();
} catch (const std::exception&) {  // bad_alloc, or length_error for more sequences than a vector
                                   // may hold
  return Status(StatusCode::kOutOfMemory, "no memory for the plan");
}

Status UpdatePlan(const ValidProblem& problem, LastingState* plan) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckUpdate(*plan, problem));
  SequenceLengths* const next = plan->lengths.data() + plan->sizes.B;
  FOVEA_RETURN_IF_ERROR(ReadAllLengths(problem, next));
  if (plan->options.fixed_tables) FOVEA_RETURN_IF_ERROR(CheckFixedTable(problem, next));
  // From here on nothing can fail, so that a refused update leaves the plan as it was.
  std::copy(next, next + plan->sizes.B, plan->lengths.data());
  plan->sizes = problem.sizes();
  plan->copy = *problem;
  BindProblem(problem, plan);
  Lay(*problem, plan);
  return Status();
}

void Plan::Destroy::operator()(State* state) const noexcept {
  const Allocator allocator = state->options.allocator;
  LastingState* const whole = static_cast<LastingState*>(state);
  whole->~LastingState();
  Release(allocator, whole, sizeof(LastingState));
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
    void* const memory = Allocate(options.allocator, sizeof(LastingState));
    if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
    std::unique_ptr<State, Destroy> state(new (memory) LastingState(options, checked));
    FOVEA_RETURN_IF_ERROR(MakePlan(checked, state.get()));
    plan->state_ = std::move(state);
    return Status();
  });
}

Status Plan::Update(const Problem& problem) noexcept {
  if (!valid()) return Invalid("plan = empty, expected one that Create has made");
  return InDefaultFloatState([&]() -> Status {
    ValidProblem checked;
    FOVEA_RETURN_IF_ERROR(Validate(problem, &checked));
    return UpdatePlan(checked, static_cast<LastingState*>(state_.get()));
  });
}

size_t Plan::WorkspaceBytes(int workers) const noexcept {
  return !valid() || workers < 1 ? 0 : state_->workspace.Bytes(workers);
}

}  // namespace fovea
