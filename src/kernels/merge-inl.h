// Joining the partial states of a row block whose key range was split.
#if defined(FOVEA_SRC_KERNELS_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MERGE_INL_H_
#undef FOVEA_SRC_KERNELS_MERGE_INL_H_
#else
#define FOVEA_SRC_KERNELS_MERGE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "kernels/output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Merges the partial states of a row block in key order (the law of fovea/merge.h, with m and l
// kept apart), in doubles: any number of parts then loses nothing.
template <class Engine>
void MergeParts(const KernelCall& call, const MergeItem& item, char* scratch) {
  const Geometry& g = call.geometry;
  constexpr double kMost = static_cast<double>(hwy::HighestValue<float>());
  float* HWY_RESTRICT out = CarveScratch<Engine>(g, scratch).v_row;
  const Problem& problem = *call.problem;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const int64_t part_floats = PartialFloats(item.rows, g.dv);
  for (int64_t row = 0; row < item.rows; ++row) {
    const int64_t r = item.first_row + row, i = r / g.group,
                  h = item.kv_head * g.group + r % g.group;
    const float* m_of = item.partials + item.rows * g.dv + row;
    const float* l_of = m_of + item.rows;
    float m = MinusInfinityScalar();
    int64_t seen = 0;  // parts that saw a key or the sink
    for (int64_t n = 0; n < item.parts; ++n) {
      if (l_of[n * part_floats] == 0.0f) continue;
      const float part_m = m_of[n * part_floats];
      m = seen++ == 0 ? part_m : std::max(m, part_m);
    }
    const auto weight_of = [&](int64_t n) HWY_ATTR {
      const float part_l = l_of[n * part_floats], part_m = m_of[n * part_floats];
      if (part_l == 0.0f || seen == 1) return static_cast<double>(part_l);
      return static_cast<double>(part_l) *
             static_cast<double>(hn::GetLane(ExpNonPositive(DF(), hn::Set(DF(), part_m - m))));
    };
    double l = 0;
    for (int64_t n = 0; n < item.parts; ++n) l += weight_of(n);
    for (int64_t c = 0; c < g.dv; c += kStageColumns) {
      const int64_t channels = std::min(g.dv - c, kStageColumns);
      double sum[kStageColumns] = {};
      for (int64_t n = 0; n < item.parts; ++n) {
        // A part that saw nothing. A weight of 0 still hands on NaN.
        if (l_of[n * part_floats] == 0.0f) continue;
        const double share = weight_of(n) / l;
        const float* const part = item.partials + n * part_floats + row * g.dv + c;
        for (int64_t x = 0; x < channels; ++x) sum[x] += share * static_cast<double>(part[x]);
      }
      for (int64_t x = 0; x < channels; ++x)
        out[c + x] =
            static_cast<float>(std::isfinite(sum[x]) ? std::clamp(sum[x], -kMost, kMost) : sum[x]);
    }
    StoreRow(out, g.dv, problem.out.dtype,
             RowOf(problem.out, sequence.q_batch, h, sequence.q_first + i), problem.out.stride[3]);
    if (problem.lse.present()) StoreLse(call, sequence, h, i, LogSumExp(m, l));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
