// What a plan knows: which kernels, tiles and splits each sequence gets, and how tasks are
// numbered. Pure: from shapes, types, lengths and ISA alone, never from threads, batch, cache sizes
// or addresses, so that results are repeatable.
//
// Tasks are numbered, not stored. Map: runs of groups of the mask. Items: sequences by falling
// cost; in each, KV heads; in each, row blocks, the costliest first, or the splits of the only row
// block with queries. Merges: one per split row block. Weights and scores: as items, without
// splits. Empty phases are left out.
#ifndef FOVEA_SRC_PLAN_H_
#define FOVEA_SRC_PLAN_H_

#include "fovea/attention.h"
#include "kernels/kernel.h"
#include "mask_map.h"
#include "memory.h"
#include "validate.h"

namespace fovea {

// One sequence of the batch.
struct SequencePlan {
  int64_t sequence = 0;
  Engine engine = Engine::kAuto;
  Product product = Product::kAuto;
  const EngineKernels* kernels = nullptr;
  Geometry geometry;
  int64_t item_rows = 1;   // rows of a row block
  int64_t row_blocks = 0;  // of a KV head
  // the same for weights and scores, which have Tq rows even where a packed batch has fewer
  int64_t matrix_blocks = 0;
  // key ranges of row block 0; more than 1 only when all queries are in it
  int64_t splits = 1;
  int64_t split_keys = 0;
  bool costly_rows_last = false;  // causal: later rows see more keys
  double pairs = 0;               // visible pairs of one query head
  // Prefix sums over the plan's order.
  int64_t first_item = 0;
  int64_t first_merge = 0;
  int64_t first_matrix = 0;
  int64_t first_partial = 0;  // floats

  int64_t items_per_head() const { return row_blocks == 0 ? 0 : row_blocks - 1 + splits; }
  int64_t merges_per_head() const { return row_blocks > 0 && splits > 1 ? 1 : 0; }
};

// The ranks of optional tensors; 0 = absent.
struct Present {
  int32_t lse = 0, weights = 0, scores = 0, alibi_slopes = 0, bias = 0, mask = 0, sinks = 0,
          block_map = 0, parents = 0, cu_seqlens_q = 0, cu_seqlens_k = 0;
};

enum class Phase { kMap, kItems, kMerges, kWeights, kScores };
constexpr int kPhases = 5;

struct [[gnu::visibility("hidden")]] Plan::State {
  explicit State(const PlanOptions& o) noexcept
      : options(o),
        lengths(ContainerAllocator<SequenceLengths>(o.allocator)),
        sequences(ContainerAllocator<SequencePlan>(o.allocator)),
        fixed_map(ContainerAllocator<MaskMapEntry>(o.allocator)) {}

  PlanOptions options;
  Target target = Target::kAuto;
  Sizes sizes;
  Sizes room;  // Tq and Tk that Update may reach
  // What Run compares.
  DType q_type = DType::kNone, k_type = DType::kNone, v_type = DType::kNone,
        out_type = DType::kNone, bias_type = DType::kNone;
  Present present;
  ScoreStage score_stage = ScoreStage::kMasked;
  Causal causal = Causal::kNone;
  Window window;

  Vector<SequenceLengths> lengths;  // [B]
  Vector<SequencePlan> sequences;   // [B], by falling cost
  MaskMapLayout map_layout;
  Vector<MaskMapEntry> fixed_map;  // of a fixed mask; else each run fills one in its workspace
  int64_t items = 0, merges = 0, matrix_items = 0;
  int64_t partial_floats = 0;
  size_t worker_bytes = 0;
  Phase phase[kPhases] = {};
  int phases = 0;

  int64_t Tasks(Phase p) const noexcept;
  // Bytes of the map in a run's workspace, a multiple of 64.
  uint64_t map_bytes() const noexcept;  // more than a host of 32 bits has, perhaps
};

// The sequence that a task belongs to, and the task as kernels want it. `partials` is the workspace
// part that holds split states.
Item ItemOf(const Plan::State& plan, int64_t task, float* partials,
            const SequencePlan** sequence) noexcept;
MergeItem MergeOf(const Plan::State& plan, int64_t task, float* partials,
                  const SequencePlan** sequence) noexcept;
Item MatrixItemOf(const Plan::State& plan, int64_t task, const SequencePlan** sequence) noexcept;

// Whether `problem` is one that the plan was made for. No allocation.
Status CheckAgainstPlan(const Plan::State& plan, const Problem& problem) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_H_
