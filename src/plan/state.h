// What a plan knows: which kernels, tiles and splits each sequence gets, and how many tasks there
// are. Pure: from shapes, types, lengths and ISA alone, never from threads, batch, cache sizes or
// addresses, so that results are repeatable.
#ifndef FOVEA_SRC_PLAN_STATE_H_
#define FOVEA_SRC_PLAN_STATE_H_

#include "fovea/attention.h"
#include "kernels/kernel.h"
#include "mask_map.h"
#include "memory.h"
#include "plan/maps.h"
#include "plan/workspace.h"
#include "validate.h"

namespace fovea {

struct Phase;
constexpr int kPhaseCount = 6;

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
  // Row block 0 is split along the keys: only when all queries are in it. Splits begin at multiples
  // of split_keys, counted in positions. Those that hold resident keys have an item, and so has the
  // first one, which takes the sink.
  bool is_split = false;
  int64_t split_keys = 0;
  int64_t splits = 1;             // items of row block 0
  int64_t skipped_splits = 0;     // behind the first one
  bool costly_rows_last = false;  // causal: later rows see more keys
  double pairs = 0;               // visible pairs of one query head
  // Prefix sums over the plan's order.
  int64_t first_item = 0;
  int64_t first_merge = 0;
  int64_t first_matrix = 0;
  int64_t first_partial = 0;  // floats

  int64_t items_per_head() const { return row_blocks == 0 ? 0 : row_blocks - 1 + splits; }
  int64_t merges_per_head() const { return row_blocks > 0 && is_split ? 1 : 0; }
};

// Of one of kMapSources.
struct PlannedMap {
  PlannedMap(const PlanOptions& o) noexcept
      : fixed(ContainerAllocator<MaskMapEntry>(o.allocator)) {}

  MaskMapLayout layout;
  Vector<MaskMapEntry> fixed;  // of a fixed view; else each run fills one in its workspace …
  int64_t first_task = 0;      // … by tasks from this one on …
  uint64_t begin = 0;          // … at so many bytes behind the first map
};

struct [[gnu::visibility("hidden")]] Plan::State {
  // `planned` is the problem, or where a copy of it will be.
  State(const PlanOptions& o, const ValidProblem& problem, const Problem& planned) noexcept
      : options(o),
        sizes(problem.sizes()),
        bound(planned),
        lengths(ContainerAllocator<SequenceLengths>(o.allocator)),
        sequences(ContainerAllocator<SequencePlan>(o.allocator)),
        maps{{o}, {o}} {}

  PlanOptions options;
  Target target = Target::kAuto;
  ProblemSizes sizes;
  ProblemSizes room;  // Tq and Tk that Update may reach
  // The problem that was planned last, which Run compares with its own: all but data and strides,
  // which mean nothing here.
  const Problem& bound;
  float default_scale = 1;  // of problems that say none

  // [B], then [B] where Update reads the next ones
  Vector<SequenceLengths> lengths;
  Vector<SequencePlan> sequences;  // [B], by falling cost
  PlannedMap maps[kMaps];
  int64_t map_tasks = 0;    // of the maps that runs fill
  int64_t fixed_pages = 0;  // in which the numbers of a fixed table lie
  int64_t tree_nodes = 0;   // room for those of each sequence; 0: no trees
  int64_t items = 0, merges = 0, matrix_items = 0;
  WorkspaceLayout workspace;
  const Phase* phase[kPhaseCount] = {};  // those that have tasks, in order
  int phases = 0;

  const SequenceLengths& LengthsOf(const SequencePlan& s) const {
    return lengths[static_cast<size_t>(s.sequence)];
  }
};

// One that outlives the problem it was made for.
struct [[gnu::visibility("hidden")]] LastingState : Plan::State {
  LastingState(const PlanOptions& o, const ValidProblem& problem) noexcept
      : State(o, problem, copy), copy(*problem) {}

  Problem copy;
};

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_STATE_H_
