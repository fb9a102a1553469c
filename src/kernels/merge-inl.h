// Joining the partial states of a row block whose key range was split.
#if defined(FOVEA_SRC_KERNELS_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MERGE_INL_H_
#undef FOVEA_SRC_KERNELS_MERGE_INL_H_
#else
#define FOVEA_SRC_KERNELS_MERGE_INL_H_
#endif

#include "kernels/output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Merges the partial states of a row block in key order (the law of fovea/merge.h, with m and l
// kept apart).
template <class Engine>
void MergeParts(const KernelCall& call, const MergeItem& item, char* scratch) {
  const Geometry& g = call.geometry;
  float* HWY_RESTRICT sum = CarveScratch<Engine>(g, scratch).v_row;
  const Problem& problem = *call.problem;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const int64_t part_floats = PartialFloats(item.rows, g.dv);
  for (int64_t row = 0; row < item.rows; ++row) {
    const int64_t r = item.first_row + row, i = r / g.group,
                  h = item.kv_head * g.group + r % g.group;
    const float* m_of = item.partials + item.rows * g.dv + row;
    const float* l_of = m_of + item.rows;
    float m = MinusInfinityScalar();
    for (int64_t n = 0; n < item.parts; ++n) {
      if (!(l_of[n * part_floats] == 0.0f)) m = std::max(m, m_of[n * part_floats]);
    }
    std::fill_n(sum, g.dv, 0.0f);
    float l = 0.0f;
    for (int64_t n = 0; n < item.parts; ++n) {
      const float part_l = l_of[n * part_floats];
      if (part_l == 0.0f) continue;  // saw no key
      const float weight =
          part_l * hn::GetLane(ExpNonPositive(DF(), hn::Set(DF(), m_of[n * part_floats] - m)));
      const float* part = item.partials + n * part_floats + row * g.dv;
      for (int64_t c = 0; c < g.dv; ++c) sum[c] += weight * part[c];
      l += weight;
    }
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int64_t c = 0; c < g.dv; ++c) sum[c] *= inverse;
    StoreRow(sum, g.dv, problem.out.dtype,
             RowOf(problem.out, sequence.q_batch, h, sequence.q_first + i), problem.out.stride[3]);
    if (problem.lse.present()) StoreLse(call, sequence, h, i, LogSumExp(m, l));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
