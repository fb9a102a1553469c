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
  // where the first key lies in the tensor, along axes 0 and 2: by which scales of codes are found
  int64_t batch, first;
};

// Of k or v: the run from key j of the item's sequence on.
HWY_INLINE KeyRun RunFrom(const KernelCall& call, const Item& item, const TensorView& view,
                          int64_t j) {
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const int64_t first = sequence.kv_first + j;
  return {RowOf(view, sequence.kv_batch, item.kv_head, first), view.stride[2],
          sequence.kv_length - j, sequence.kv_batch, first};
}

// Scales or zeros of a head's codes, in the batch or page of that number.
HWY_INLINE CodeFactors FactorsOf(const TensorView& codes, const TensorView& view, int64_t batch,
                                 int64_t head) {
  if (!view.present()) return CodeFactors();
  return {RowOf(view, GroupOf(batch, view.shape[0], codes.shape[0]),
                GroupOf(head, view.shape[1], codes.shape[1]), 0),
          view.dtype,
          view.shape[2],
          view.shape[3],
          view.stride[2],
          view.stride[3]};
}

// The first `n` keys of a run of k or v (`view` is that of the call's problem), all channels as
// f32, to_stride floats from key to key.
HWY_INLINE void LoadKeys(const KernelCall& call, const Item& item, const TensorView& view,
                         const KeyRun& run, int64_t n, float* to, int64_t to_stride) {
  SourceRows rows = {run.row, view.dtype, view.stride[3], run.row_stride};
  CodeScales scales;
  if (HasScaleViews(view.dtype)) {
    const Problem& problem = *call.problem;
    const bool is_k = &view == &problem.k;
    const TensorView& scale = is_k ? problem.k_scale : problem.v_scale;
    const TensorView& zero = is_k ? problem.k_zero : problem.v_zero;
    scales = {FactorsOf(view, scale, run.batch, item.kv_head),
              FactorsOf(view, zero, run.batch, item.kv_head), view.shape[2], view.shape[3],
              run.first};
    scales.group_stride = is_k ? problem.k_group_stride : problem.v_group_stride;
    scales.group_channels = view.shape[3] / std::max(scales.scale.columns, scales.zero.columns);
    rows.scales = &scales;
  }
  LoadRows(rows, n, 0, view.shape[3], to, to_stride);
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
  KeyRun run_ = {nullptr, 0, 0, 0, 0};
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
