// Where the rows of K and V lie: the one file that makes addresses of the positions of keys.
//
// A sequence's keys are runs of rows that are equally far apart: all of them, those of a page, or
// those up to the end of a ring. Who reads keys asks for the run from a position on. What wants a
// block in place looks whether the run reaches to its end; all else goes from run to run. Numbers
// of pages that hold no resident key are not read.
#if defined(FOVEA_SRC_KERNELS_KV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_KV_INL_H_
#undef FOVEA_SRC_KERNELS_KV_INL_H_
#else
#define FOVEA_SRC_KERNELS_KV_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

struct KeyRun {
  const char* row;       // of the first key
  int64_t row_stride;    // bytes
  int64_t n;             // keys that lie so, at least 1 before the sequence's end
  int64_t batch, first;  // where the first row is on axes 0 and 2 of k and v
};

// n / by, both 0 or more: most are small, and CPUs divide those faster.
HWY_INLINE int64_t Quotient(int64_t n, int64_t by) {
  const uint64_t a = static_cast<uint64_t>(n), b = static_cast<uint64_t>(by);
  if (((a | b) >> 32) != 0) return n / by;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// The number of page `x` of a sequence.
HWY_INLINE int64_t PageAt(const PageTable& pages, int64_t sequence, int64_t x) {
  const TensorView& table = pages.table;
  const char* p = static_cast<const char*>(table.data);
  if (pages.begins.present()) {
    const TensorView& begins = pages.begins;
    x += IntegerAt(begins.dtype,
                   static_cast<const char*>(begins.data) + sequence * begins.stride[0]);
    return IntegerAt(table.dtype, p + x * table.stride[0]);
  }
  return IntegerAt(table.dtype, p + sequence * table.stride[0] + x * table.stride[1]);
}

// Where the run from the resident key at `position` on lies, in pages or in a ring.
inline HWY_NOINLINE KeyRun RunInCache(const KernelCall& call, const Item& item, int64_t position) {
  const Problem& problem = *call.problem;
  const KeyRange& keys = call.lengths[item.sequence].keys;
  const int64_t rows = problem.k.shape[2], left = keys.end - position;
  const int64_t n = problem.ring ? position : position - keys.first;
  const int64_t x = Quotient(n, rows), row = n - x * rows;
  const int64_t batch = problem.ring ? item.sequence : PageAt(problem.pages, item.sequence, x);
  return {nullptr, 0, std::min(left, rows - row), batch, row};
}

// Of k, v or a view with the same first axes: the run from the resident key at `position` of the
// item's sequence on.
HWY_INLINE KeyRun RunFrom(const KernelCall& call, const Item& item, const TensorView& view,
                          int64_t position) {
  const SequenceLengths& sequence = call.lengths[item.sequence];
  KeyRun run = {nullptr, 0, sequence.keys.end - position, sequence.kv_batch,
                sequence.kv_first + (position - sequence.keys.first)};
  if (call.in_runs) run = RunInCache(call, item, position);
  run.row = RowOf(view, run.batch, item.kv_head, run.first);
  run.row_stride = view.stride[2];
  return run;
}

// f(run, key of the block that is its first) for the runs that make up what is resident of the
// block.
template <class F>
HWY_INLINE void ForEachRun(const KernelCall& call, const Item& item, const TensorView& view,
                           const Block& block, const F& f) {
  for (int64_t j = block.begin; j < block.n;) {
    KeyRun run = RunFrom(call, item, view, block.first + j);
    run.n = std::min(run.n, block.n - j);
    f(run, j);
    j += run.n;
  }
}

// The rows of a block of k or v, one after the other. For keys that are not resident the first one
// that is stands in.
class KeyWalk {
 public:
  KeyWalk(const Job& job, const TensorView& view, const Block& block)
      : job_(job), view_(view), key_(block.first + block.begin), absent_(block.begin) {}

  HWY_INLINE const char* Next() {
    if (absent_ > 0) {
      --absent_;
      return RunFrom(job_.call, job_.item, view_, key_).row;
    }
    if (run_.n == 0) run_ = RunFrom(job_.call, job_.item, view_, key_);
    const char* row = run_.row;
    run_.row += run_.row_stride;
    --run_.n;
    ++key_;
    return row;
  }

 private:
  const Job& job_;
  const TensorView& view_;
  int64_t key_;
  int64_t absent_;
  KeyRun run_ = {nullptr, 0, 0, 0, 0};
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
