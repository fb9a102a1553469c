#include "plan/phases.h"

#include "plan/tasks.h"

namespace fovea {
namespace {

// The n-th map that the run fills.
MaskMapEntry* EntriesOf(const RunContext& context, int n) {
  const Plan::State& plan = *context.plan;
  return plan.workspace.Map(context.workspace, plan.maps[n].begin);
}

// The n-th map as kernels read it.
MaskMap MapOf(const RunContext& context, int n) {
  const PlannedMap& map = context.plan->maps[n];
  if (map.layout.entries() == 0) return {};
  const bool fixed = kMapSources[n].fixed(context.plan->options);
  return {map.layout, fixed ? map.fixed.data() : EntriesOf(context, n)};
}

}  // namespace

KernelCall CallOf(const RunContext& context, const Geometry& geometry) {
  const Plan::State& plan = *context.plan;
  KernelCall call;
  call.problem = context.problem;
  call.lengths = plan.lengths.data();
  call.geometry = geometry;
  call.scale = *context.problem->score.scale;
  call.in_runs = context.problem->ring || context.problem->pages.present();
  call.mask_map = MapOf(context, kMapOfMask);
  call.bias_map = MapOf(context, kMapOfBias);
  if (plan.tree_nodes > 0) call.trees = {plan.workspace.Trees(context.workspace), plan.tree_nodes};
  return call;
}

namespace {

int64_t MapTasks(const Plan::State& plan) { return plan.map_tasks; }

void RunMap(const RunContext& context, int64_t task, int /*worker*/) {
  // A fixed one has no tasks of its own.
  int n = kMaps - 1;
  while (task < context.plan->maps[n].first_task || kMapSources[n].fixed(context.plan->options))
    --n;
  const PlannedMap& map = context.plan->maps[n];
  FillMaskMap(kMapSources[n].view(*context.problem), map.layout, task - map.first_task,
              EntriesOf(context, n));
}

int64_t TreeTasks(const Plan::State& plan) { return plan.tree_nodes > 0 ? plan.sizes.B : 0; }

void RunTree(const RunContext& context, int64_t b, int /*worker*/) {
  const Plan::State& plan = *context.plan;
  int32_t* const enter = plan.workspace.Trees(context.workspace) + 2 * b * plan.tree_nodes;
  NumberNodes(context.problem->score.parents, b, plan.lengths[static_cast<size_t>(b)].q_length,
              enter, enter + plan.tree_nodes);
}

int64_t ItemTasks(const Plan::State& plan) { return plan.items; }

void RunItem(const RunContext& context, int64_t task, int worker) {
  const Plan::State& plan = *context.plan;
  float* const partials = plan.workspace.Partials(context.workspace);
  const SequencePlan* sequence;
  const Item item = ItemOf(plan, task, partials, &sequence);
  KernelCall call = CallOf(context, sequence->geometry);
  const SequencePlan* next_sequence = nullptr;
  const Item next =
      task + 1 < plan.items ? ItemOf(plan, task + 1, partials, &next_sequence) : Item();
  if (next_sequence != nullptr && next_sequence->kernels == sequence->kernels) call.next = &next;
  sequence->kernels->attend(call, item, plan.workspace.Scratch(context.workspace, worker));
}

int64_t MergeTasks(const Plan::State& plan) { return plan.merges; }

void RunMerge(const RunContext& context, int64_t task, int worker) {
  const Plan::State& plan = *context.plan;
  const SequencePlan* sequence;
  const MergeItem item = MergeOf(plan, task, plan.workspace.Partials(context.workspace), &sequence);
  sequence->kernels->merge(CallOf(context, sequence->geometry), item,
                           plan.workspace.Scratch(context.workspace, worker));
}

void RunMatrix(const RunContext& context, int64_t task, int worker, const MutableTensorView& matrix,
               ScoreStage stage) {
  const Plan::State& plan = *context.plan;
  const SequencePlan* sequence;
  const Item item = MatrixItemOf(plan, task, &sequence);
  KernelCall call = CallOf(context, sequence->geometry);
  call.matrix = &matrix;
  call.stage = stage;
  sequence->kernels->matrix(call, item, plan.workspace.Scratch(context.workspace, worker));
}

int64_t WeightTasks(const Plan::State& plan) {
  return plan.bound.weights.present() ? plan.matrix_items : 0;
}

void RunWeights(const RunContext& context, int64_t task, int worker) {
  RunMatrix(context, task, worker, context.problem->weights, ScoreStage::kWeights);
}

int64_t ScoreTasks(const Plan::State& plan) {
  return plan.bound.scores.present() ? plan.matrix_items : 0;
}

void RunScores(const RunContext& context, int64_t task, int worker) {
  RunMatrix(context, task, worker, context.problem->scores, context.problem->score_stage);
}

}  // namespace

const Phase kPhases[kPhaseCount] = {
    {"maps", MapTasks, RunMap},           {"trees", TreeTasks, RunTree},
    {"items", ItemTasks, RunItem},        {"merges", MergeTasks, RunMerge},
    {"weights", WeightTasks, RunWeights}, {"scores", ScoreTasks, RunScores}};

}  // namespace fovea
