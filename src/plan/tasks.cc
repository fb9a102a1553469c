#include "plan/tasks.h"

#include <algorithm>

#include "plan/arithmetic.h"

namespace fovea {
namespace {

const SequencePlan& SequenceOf(const Plan::State& plan, int64_t task,
                               int64_t SequencePlan::* first) {
  const auto after =
      std::upper_bound(plan.sequences.begin(), plan.sequences.end(), task,
                       [&](int64_t t, const SequencePlan& s) { return t < s.*first; });
  // sequences without tasks share their first with the next one, which upper_bound steps over
  return *(after - 1);
}

// Row block `block` of the sequence, whole key range.
Item RowBlock(const Plan::State& plan, const SequencePlan& s, int64_t head, int64_t block,
              int64_t queries) {
  Item item;
  item.sequence = s.sequence;
  item.kv_head = head;
  item.first_row = block * s.item_rows;
  item.rows = std::min(s.item_rows, queries * s.geometry.group - item.first_row);
  item.keys = plan.LengthsOf(s).keys;
  return item;
}

// Where the partial states of a split row block lie.
float* PartialsOf(const Plan::State& plan, const SequencePlan& s, int64_t head, int64_t rows,
                  float* partials) {
  return partials + s.first_partial + head * s.splits * PartialFloats(rows, plan.sizes.dv);
}

// The row block that comes `index`-th of `blocks`.
int64_t InCostOrder(const SequencePlan& s, int64_t blocks, int64_t index) {
  return s.costly_rows_last ? blocks - 1 - index : index;
}

}  // namespace

void NumberTasks(Plan::State* plan) noexcept {
  const int64_t Hkv = plan->sizes.Hkv;
  std::sort(plan->sequences.begin(), plan->sequences.end(),
            [](const SequencePlan& x, const SequencePlan& y) {
              return x.pairs != y.pairs ? x.pairs > y.pairs : x.sequence < y.sequence;
            });
  const bool empty = plan->sizes.Hq == 0;
  int64_t partial_floats = 0;
  uint64_t worker_bytes = WorkspaceLayout::kAlignment;  // the scratch header
  plan->items = plan->merges = plan->matrix_items = 0;
  for (SequencePlan& s : plan->sequences) {
    s.first_item = plan->items;
    s.first_merge = plan->merges;
    s.first_matrix = plan->matrix_items;
    s.first_partial = partial_floats;
    if (empty) s.row_blocks = s.matrix_blocks = 0;
    plan->items = Plus(plan->items, Times(Hkv, s.items_per_head()));
    plan->merges = Plus(plan->merges, Times(Hkv, s.merges_per_head()));
    if (plan->sizes.Tk > 0)
      plan->matrix_items = Plus(plan->matrix_items, Times(Hkv, s.matrix_blocks));
    const int64_t rows = std::min(s.item_rows, plan->LengthsOf(s).queries * s.geometry.group);
    if (s.merges_per_head() > 0) {
      partial_floats =
          Plus(partial_floats, Times(Times(Hkv, s.splits), PartialFloats(rows, plan->sizes.dv)));
    }
    if (s.row_blocks + s.matrix_blocks > 0)
      worker_bytes = std::max<uint64_t>(worker_bytes, s.kernels->scratch_bytes(s.geometry));
  }
  constexpr int64_t kAlignedFloats = WorkspaceLayout::kAlignment / sizeof(float);
  plan->workspace.partial_bytes =
      static_cast<uint64_t>(RoundUp(partial_floats, kAlignedFloats)) * sizeof(float);
  plan->workspace.worker_bytes = worker_bytes;
}

Item ItemOf(const Plan::State& plan, int64_t task, float* partials,
            const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_item);
  *sequence = &s;
  const int64_t head = (task - s.first_item) / s.items_per_head();
  const int64_t index = (task - s.first_item) % s.items_per_head();
  const int64_t queries = plan.LengthsOf(s).queries;
  if (!s.is_split) return RowBlock(plan, s, head, InCostOrder(s, s.row_blocks, index), queries);
  if (index >= s.splits) return RowBlock(plan, s, head, index - s.splits + 1, queries);
  Item item = RowBlock(plan, s, head, 0, queries);
  const int64_t split = index == 0 ? 0 : index + s.skipped_splits;
  const KeyRange resident = item.keys;
  item.keys.first = std::max(split * s.split_keys, resident.first);
  item.keys.end = std::max(std::min((split + 1) * s.split_keys, resident.end), item.keys.first);
  item.partial = PartialsOf(plan, s, head, item.rows, partials) +
                 index * PartialFloats(item.rows, plan.sizes.dv);
  item.takes_sink = index == 0;
  return item;
}

MergeItem MergeOf(const Plan::State& plan, int64_t task, float* partials,
                  const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_merge);
  *sequence = &s;
  const int64_t head = task - s.first_merge;
  const Item item = RowBlock(plan, s, head, 0, plan.LengthsOf(s).queries);
  return {item.sequence,
          head,
          item.first_row,
          item.rows,
          PartialsOf(plan, s, head, item.rows, partials),
          s.splits};
}

Item MatrixItemOf(const Plan::State& plan, int64_t task, const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_matrix);
  *sequence = &s;
  const int64_t head = (task - s.first_matrix) / s.matrix_blocks,
                index = (task - s.first_matrix) % s.matrix_blocks;
  return RowBlock(plan, s, head, InCostOrder(s, s.matrix_blocks, index), plan.sizes.Tq);
}

}  // namespace fovea
