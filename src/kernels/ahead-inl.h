// Prefetching what is needed next while micro-kernels run: the next block of K and V and, towards
// an item's end, its output rows and what the next item reads first. A hint: it changes no result.
// Rows are prefetched in ascending order, a few cache lines at each micro-kernel call, so that they
// never wait for each other (a core has 10 to 16 line buffers).
#if defined(FOVEA_SRC_KERNELS_AHEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_AHEAD_INL_H_
#undef FOVEA_SRC_KERNELS_AHEAD_INL_H_
#else
#define FOVEA_SRC_KERNELS_AHEAD_INL_H_
#endif

#include "kernels/kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Runs of rows, prefetched in order.
class PrefetchQueue {
 public:
  // n rows of q, k, v or out from `row` on.
  template <class View>
  void Add(const View& view, const char* row, int64_t row_stride, int64_t n) {
    if (runs_ == kMaxRuns || view.stride[3] != UnitBytes(view.dtype) || n <= 0) return;
    AddRun(row, row_stride, n, BytesOf(view.dtype, view.shape[3]));
  }

  // What the item's rows need of a bias or mask for the block.
  void AddBias(const TensorView& view, const KernelCall& call, const Item& item,
               const Block& block) {
    const int64_t element = SizeOf(view.dtype);
    if (!view.present() || element == 0 || view.stride[view.rank - 1] != element ||
        view.shape[view.rank - 1] == 1)
      return;
    const Broadcast from = BroadcastView(view);
    const int64_t group = call.geometry.group;
    const int64_t begin = item.first_row / group;
    const int64_t end = std::min((item.first_row + item.rows - 1) / group + 1,
                                 call.lengths[item.sequence].q_length);
    const int64_t heads = from.stride[1] == 0 ? 1 : group;
    const int64_t column = block.first + block.begin - call.lengths[item.sequence].keys.first;
    for (int64_t h = 0; h < heads && runs_ < kMaxRuns && begin < end; ++h) {
      AddRun(from.Row(item.sequence, item.kv_head * group + h, begin) + column * element,
             from.stride[2], from.stride[2] == 0 ? 1 : end - begin,
             (block.n - block.begin) * element);
    }
  }

  // Every row of K and V that the block holds.
  void AddBlock(const KernelCall& call, const Item& item, const Block& block) {
    for (const TensorView* view : {&call.problem->k, &call.problem->v}) {
      ForEachRun(call, item, *view, block,
                 [&](const KeyRun& run, int64_t) { Add(*view, run.row, run.row_stride, run.n); });
    }
  }

  // As it was made, without a write to every run.
  void Clear() {
    runs_ = at_ = 0;
    offset_ = lines_ = lines_per_step_ = 0;
  }

  // Spreads what was added over this many calls of Step.
  void SpreadOver(int64_t calls) { lines_per_step_ = calls > 0 ? (lines_ + calls - 1) / calls : 0; }

  HWY_INLINE void Step() {
    for (int64_t n = lines_per_step_; n > 0 && at_ < runs_;) {
      Run& run = run_[at_];
      const int64_t end = std::min(offset_ + n * kLine, run.row_bytes);
      for (; offset_ < end; offset_ += kLine, --n) __builtin_prefetch(run.row + offset_, 0, 2);
      if (offset_ < run.row_bytes) return;
      offset_ = 0;
      run.row += run.stride;
      if (--run.rows == 0) ++at_;
    }
  }

 private:
  void AddRun(const char* row, int64_t stride, int64_t rows, int64_t row_bytes) {
    Run& run = run_[runs_++];
    run = {row, stride, rows, row_bytes};
    if (stride == row_bytes) {  // one long row
      run.row_bytes *= rows;
      run.rows = 1;
    }
    lines_ += run.rows * ((run.row_bytes + kLine - 1) / kLine);
  }

  static constexpr int64_t kLine = 64;
  static constexpr int kMaxRuns = 24;
  struct Run {
    const char* row;
    int64_t stride;
    int64_t rows;
    int64_t row_bytes;
  };
  Run run_[kMaxRuns];
  int runs_ = 0;
  int at_ = 0;
  int64_t offset_ = 0;
  int64_t lines_ = 0;
  int64_t lines_per_step_ = 0;
};

// The item's rows of q or out, in all heads of its group.
template <class View>
HWY_INLINE void AddQueryRows(const KernelCall& call, const View& view, const Item& item,
                             PrefetchQueue& queue) {
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const int64_t group = call.geometry.group;
  const int64_t begin = sequence.q_first + item.first_row / group,
                end = sequence.q_first + (item.first_row + item.rows + group - 1) / group;
  for (int64_t h = 0; h < group; ++h)
    queue.Add(view, RowOf(view, sequence.q_batch, item.kv_head * group + h, begin), view.stride[2],
              end - begin);
}

// What an item writes.
HWY_INLINE void AddOutput(const KernelCall& call, const Item& item, PrefetchQueue& queue) {
  if (item.partial == nullptr) AddQueryRows(call, call.problem->out, item, queue);
}

// The block of keys that an item reads first.
HWY_INLINE Block FirstBlock(const KernelCall& call, const Item& item) {
  const Geometry& g = call.geometry;
  const Score& score = call.problem->score;
  const KeyRange seen = VisibleKeys(call.lengths[item.sequence], score.causal, score.window,
                                    item.first_row / g.group);
  const int64_t first =
      std::clamp(seen.first, item.keys.first, item.keys.end) / g.block_keys * g.block_keys;
  return first < item.keys.end ? BlockAt(item, g.block_keys, first) : Block{first, 0, 0};
}

// What micro-kernels prefetch as they go; Step once at each call of one.
class Ahead {
 public:
  // Rows of K and V are left out where the engine prefetches them itself (kPrefetchesRows). At the
  // beginning of a block of which `tiles` tiles see some: of the item's keys, `behind` lie
  // behind it.
  template <class Engine>
  HWY_INLINE void Plan(const Job& job, const Block& block, int64_t behind, int tiles,
                       bool writes_output) {
    const KernelCall& call = job.call;
    const Geometry& g = job.g;
    block_.Clear();
    if (behind > 0) {
      const Block next = {block.first + g.block_keys, std::min<int64_t>(g.block_keys, behind), 0};
      if constexpr (!Engine::kPrefetchesRows) block_.AddBlock(call, job.item, next);
      block_.AddBias(call.problem->score.bias, call, job.item, next);
      block_.AddBias(call.problem->score.mask, call, job.item, next);
    }
    block_.SpreadOver(tiles * Engine::MicroKernelCalls(block.n, g));
    if (ends_ || behind > kBlocksOfItsEnd * g.block_keys) return;
    ends_ = true;
    if (writes_output) AddOutput(call, job.item, item_);
    if (call.next != nullptr) {
      AddQueryRows(call, call.problem->q, *call.next, item_);
      if constexpr (!Engine::kPrefetchesRows)
        item_.AddBlock(call, *call.next, FirstBlock(call, *call.next));
    }
    item_.SpreadOver(tiles * Engine::MicroKernelCalls(block.n + std::max<int64_t>(behind, 0), g));
  }

  HWY_INLINE void Step() {
    block_.Step();
    item_.Step();
  }

 private:
  static constexpr int64_t kBlocksOfItsEnd = 3;  // behind which an item prepares for the next one

  PrefetchQueue block_;  // the item's next block: made anew for each block
  // what the item writes and the next one reads: spread over the item's last blocks
  PrefetchQueue item_;
  bool ends_ = false;
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
