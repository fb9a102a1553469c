// Where the rows of K and V lie: the one file that makes addresses of the positions of keys.
//
// A sequence's keys are runs of rows that are equally far apart; today each sequence is one. Who
// reads keys asks for the run from a position on. What wants a block in place looks whether the run
// reaches to its end; all else goes from run to run.
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
  const char* row;     // of the first key
  int64_t row_stride;  // bytes
  int64_t n;           // keys that lie so, at least 1 before the sequence's end
};

// Of k or v: the run from key j of the item's sequence on.
HWY_INLINE KeyRun RunFrom(const KernelCall& call, const Item& item, const TensorView& view,
                          int64_t j) {
  const SequenceLengths& sequence = call.lengths[item.sequence];
  return {RowOf(view, sequence.kv_batch, item.kv_head, sequence.kv_first + j), view.stride[2],
          sequence.kv_length - j};
}

// f(run, key of the block that is its first) for the runs that make up the block.
template <class F>
HWY_INLINE void ForEachRun(const KernelCall& call, const Item& item, const TensorView& view,
                           const Block& block, const F& f) {
  for (int64_t j = 0; j < block.n;) {
    KeyRun run = RunFrom(call, item, view, block.first + j);
    run.n = std::min(run.n, block.n - j);
    f(run, j);
    j += run.n;
  }
}

// The rows of a block of k or v, one after the other.
class KeyWalk {
 public:
  KeyWalk(const Job& job, const TensorView& view, const Block& block)
      : job_(job), view_(view), key_(block.first) {}

  HWY_INLINE const char* Next() {
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
  KeyRun run_ = {nullptr, 0, 0};
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
