// What leaves the kernel: O / l and lse of a tile, or its part of a partial state.
#if defined(FOVEA_SRC_KERNELS_OUTPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_OUTPUT_INL_H_
#undef FOVEA_SRC_KERNELS_OUTPUT_INL_H_
#else
#define FOVEA_SRC_KERNELS_OUTPUT_INL_H_
#endif

#include <cmath>

#include "kernels/mend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// The rows of an output tensor that the tile writes: those of query 0 are `index` on the third axis
// of `batch`.
HWY_INLINE Destination OutputOf(const Job& job, const Tile& tile, const MutableTensorView& view,
                                int64_t batch, int64_t index) {
  Destination out;
  out.count = tile.count;
  out.dtype = view.dtype;
  out.stride = view.stride[3];
  out.plain = true;
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
    out.row[r] = RowOf(view, batch, h, index + i);
    out.plain = out.plain && IsPlainF32(view.dtype, view.stride[3], 0, out.row[r]);
  });
  return out;
}

HWY_INLINE float LogSumExp(float m, double l) {
  return l == 0 ? MinusInfinityScalar() : static_cast<float>(static_cast<double>(m) + std::log(l));
}

// log-sum-exp of the rows of a tile.
HWY_INLINE void LogSumExps(const Tile& tile, float* HWY_RESTRICT lse) {
  const DF df;
  for (int r = 0; r < tile.count; r += kLanes) {
    const size_t n = static_cast<size_t>(std::min(tile.count - r, kLanes));
    const VF m = hn::LoadN(df, tile.state.m + r, n), l = hn::LoadN(df, tile.state.l + r, n);
    const VF sum = hn::IfThenElse(hn::IsNaN(l), l, hn::Add(m, hn::Log(df, l)));
    hn::StoreN(hn::IfThenElse(hn::Eq(l, hn::Zero(df)), MinusInfinity(), sum), df, lse + r, n);
  }
}

HWY_INLINE void StoreLse(const KernelCall& call, const SequenceLengths& sequence, int64_t h,
                         int64_t i, float value) {
  std::memcpy(RowOf(call.problem->lse, sequence.q_batch, h, sequence.q_first + i), &value,
              sizeof(value));
}

// 1 / l, and 0 for rows that have seen nothing.
HWY_INLINE void InverseDenominators(const float* l, int64_t count, int64_t lanes, float* inverse) {
  for (int64_t r = 0; r < lanes; ++r) inverse[r] = r >= count || l[r] == 0.0f ? 0.0f : 1.0f / l[r];
}

// The tile's rows of a partial state.
HWY_INLINE Destination PartialOutputOf(const Job& job, const Tile& tile) {
  Destination out;
  out.count = tile.count;
  out.dtype = DType::kF32;
  out.stride = sizeof(float);
  out.plain = true;
  const int64_t row = tile.first_row - job.item.first_row;
  for (int r = 0; r < tile.count; ++r)
    out.row[r] = reinterpret_cast<char*>(job.item.partial + (row + r) * job.g.dv);
  return out;
}

// out = O / l and lse; or the tile's part of a partial state. Returns the faults of O; where the
// job scales values only what had one is stored.
template <class Engine>
HWY_INLINE SumFaults StoreOutput(const Job& job, const Tile& tile) {
  const KernelCall& call = job.call;
  const Item& item = job.item;
  const Geometry& g = job.g;
  const SequenceLengths& sequence = job.sequence;
  float* inverse = job.w.row_values;
  InverseDenominators(Engine::Denominators(tile, g), tile.count, g.tile_lanes, inverse);
  const Destination out = item.partial != nullptr ? PartialOutputOf(job, tile)
                                                  : OutputOf(job, tile, call.problem->out,
                                                             sequence.q_batch, sequence.q_first);
  if (job.value_scale != 1.0f) {
    MendSums<Engine>(tile, g, inverse, static_cast<double>(job.value_scale), out);
    return SumFaults();
  }
  const SumFaults faults = FaultsOfSums<Engine>(tile, g, inverse);
  tile.faults[0] = 0;
  if (faults.any()) NoteFaults<Engine>(tile, g);
  Engine::OutputLanes::ToRows(tile.o, g.dv, g.dv, inverse, out);
  if (item.partial != nullptr) {
    float* const m = item.partial + item.rows * g.dv + (tile.first_row - item.first_row);
    std::copy_n(tile.state.m, tile.count, m);
    std::copy_n(tile.state.l, tile.count, m + item.rows);
  } else if (call.problem->lse.present()) {
    float* lse = job.w.row_values;
    LogSumExps(tile, lse);
    ForEachRow(job, tile,
               [&](int r, int64_t h, int64_t i) { StoreLse(call, sequence, h, i, lse[r]); });
  }
  return faults;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
