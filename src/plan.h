// What a plan knows: which kernels, tiles and splits each sequence gets, and how tasks are numbered. Pure: from shapes, types, lengths and ISA alone,
// never from threads, batch, cache sizes or addresses, so that results are repeatable.
//
// Items are numbered, not stored. Phase 0 (items): sequences by falling cost; in each, KV heads; in each, row blocks, the costliest first, or the splits of
// the only row block with queries. Phase 1 (merges): one per split row block. Phase 2 (weights): as items, without splits. Empty phases are left out.
#ifndef FOVEA_SRC_PLAN_H_
#define FOVEA_SRC_PLAN_H_

#include <vector>

#include "fovea/attention.h"
#include "kernels/kernel.h"
#include "validate.h"

namespace fovea {

// One sequence of the batch.
struct SequencePlan {
  int64_t sequence = 0;
  Engine engine = Engine::kAuto;
  const EngineKernels* kernels = nullptr;
  Geometry geometry;
  int64_t item_rows = 1;   // rows of a row block
  int64_t row_blocks = 0;  // of a KV head
  int64_t splits = 1;      // key ranges of row block 0; more than 1 only when all queries are in it
  int64_t split_keys = 0;
  bool costly_rows_last = false;  // causal: later rows see more keys
  double pairs = 0;               // visible pairs of one query head
  // Prefix sums over the plan's order.
  int64_t first_item = 0;
  int64_t first_merge = 0;
  int64_t first_weight = 0;
  int64_t first_partial = 0;  // floats

  int64_t items_per_head() const { return row_blocks == 0 ? 0 : row_blocks - 1 + splits; }
  int64_t merges_per_head() const { return row_blocks > 0 && splits > 1 ? 1 : 0; }
};

// The ranks of optional tensors; 0 = absent.
struct Present {
  int32_t lse = 0, weights = 0, alibi_slopes = 0, bias = 0, mask = 0, sinks = 0;
};

enum class Phase { kItems, kMerges, kWeights };

struct Plan::State {
  PlanOptions options;
  Target target = Target::kAuto;
  Sizes sizes;
  Sizes room;  // Tq and Tk that Update may reach
  // What Run compares.
  DType q_type = DType::kNone, k_type = DType::kNone, v_type = DType::kNone, out_type = DType::kNone, bias_type = DType::kNone;
  Present present;
  Causal causal = Causal::kNone;
  Window window;

  std::vector<SequenceLengths> lengths;  // [B]
  std::vector<SequencePlan> sequences;   // [B], by falling cost
  int64_t items = 0, merges = 0, weight_items = 0;
  int64_t partial_floats = 0;
  size_t worker_bytes = 0;
  Phase phase[3] = {};
  int phases = 0;

  int64_t Tasks(Phase p) const { return p == Phase::kItems ? items : p == Phase::kMerges ? merges : weight_items; }
};

// The sequence that a task belongs to, and the task as kernels want it. `partials` is the workspace part that holds split states.
Item ItemOf(const Plan::State& plan, int64_t task, float* partials, const SequencePlan** sequence) noexcept;
MergeItem MergeOf(const Plan::State& plan, int64_t task, float* partials, const SequencePlan** sequence) noexcept;
Item WeightsItemOf(const Plan::State& plan, int64_t task, const SequencePlan** sequence) noexcept;

// Whether `problem` is one that the plan was made for. No allocation.
Status CheckAgainstPlan(const Plan::State& plan, const Problem& problem) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_H_
