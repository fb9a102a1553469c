// How tasks are numbered; they are not stored. Map: runs of groups of the mask. Trees: one for
// each sequence. Items: sequences by
// falling cost; in each, KV heads; in each, row blocks, the costliest first, or the splits of the
// only row block with queries. Merges: one per split row block. Weights and scores: as items,
// without splits.
#ifndef FOVEA_SRC_PLAN_TASKS_H_
#define FOVEA_SRC_PLAN_TASKS_H_

#include "plan/state.h"

namespace fovea {

// Orders plan->sequences and counts their tasks, and the workspace that those need.
void NumberTasks(Plan::State* plan) noexcept;

// The sequence that a task belongs to, and the task as kernels want it. `partials` is the workspace
// part that holds split states.
Item ItemOf(const Plan::State& plan, int64_t task, float* partials,
            const SequencePlan** sequence) noexcept;
MergeItem MergeOf(const Plan::State& plan, int64_t task, float* partials,
                  const SequencePlan** sequence) noexcept;
Item MatrixItemOf(const Plan::State& plan, int64_t task, const SequencePlan** sequence) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_TASKS_H_
