// Before and behind the parts of a gradient: sums of zero and delta, and what leaves the kernel.
#if defined(FOVEA_SRC_KERNELS_GRADIENT_ENDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_GRADIENT_ENDS_INL_H_
#undef FOVEA_SRC_KERNELS_GRADIENT_ENDS_INL_H_
#else
#define FOVEA_SRC_KERNELS_GRADIENT_ENDS_INL_H_
#endif

#include <cmath>

#include "kernels/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Rows and keys that have sums: [first, end) cut to what lies before the lengths.
struct GradientRange {
  int64_t first, end;
};
HWY_INLINE GradientRange RowsWithSums(const Job& job) {
  const Item& item = job.item;
  return {item.first_row,
          std::min(item.first_row + item.rows, job.sequence.q_length * job.g.group)};
}
HWY_INLINE GradientRange KeysWithSums(const Job& job) {
  return {job.item.keys.first, std::min(job.item.keys.end, job.sequence.keys.end)};
}

// Σ out·dout − dlse of query i of head h. Channels where out is 0 count nothing, whatever dout is:
// rows that see nothing.
HWY_INLINE float DeltaOf(const Job& job, const GradientCall& call, int64_t h, int64_t i,
                         float* stage) {
  const DF df;
  const GradientProblem& problem = *call.problem;
  const MutableTensorView& out = problem.forward.out;
  const TensorView& dout = problem.dout;
  float* const x = stage;
  float* const y = stage + kStageColumns;
  double delta = 0;
  for (int64_t c = 0; c < job.g.dv; c += kStageColumns) {
    const int64_t n = std::min(job.g.dv - c, kStageColumns);
    LoadRow({QueryRow(job, out, h, i), out.dtype, out.stride[3]}, c, n, x);
    LoadRow({QueryRow(job, dout, h, i), dout.dtype, dout.stride[3]}, c, n, y);
    for (int64_t z = n; z < RoundUp(n, kLanes); ++z) x[z] = y[z] = 0;
    VF sum = hn::Zero(df);
    for (int64_t z = 0; z < n; z += kLanes) {
      const VF a = hn::Load(df, x + z), b = hn::Load(df, y + z);
      sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(a, hn::Zero(df)), hn::Mul(a, b)));
    }
    delta += static_cast<double>(hn::ReduceSum(df, sum));
  }
  const TensorView& dlse = problem.dlse;
  if (dlse.present()) delta -= static_cast<double>(ReadAs<float>(QueryRow(job, dlse, h, i)));
  return static_cast<float>(delta);
}

// n sums from `sums` on, and their rests.
HWY_INLINE void ZeroSums(float* sums, int64_t n, int64_t rest) {
  std::fill_n(sums, n, 0.0f);
  if (rest != 0) std::fill_n(sums + rest, n, 0.0f);
}

template <class Engine>
void BeginGradients(const GradientCall& call, const GradientItem& item, char* scratch) {
  constexpr int64_t kRows = Engine::Lanes::kRows;
  const Geometry& g = call.forward.geometry;
  const GradientScratch w = CarveGradients<Engine>(g, scratch);
  const Job job = BeginJob<Engine>(call.forward, item.forward, w.forward, 1.0f);
  const GradientSums& sums = item.sums;
  job.w.header->executed_target = HWY_TARGET;
  const GradientRange rows = RowsWithSums(job), keys = KeysWithSums(job);
  if (rows.first < rows.end) {
    const int64_t tile = rows.first / kRows, end = (rows.end + kRows - 1) / kRows;
    const int64_t floats = kRows * g.dk;
    ZeroSums(sums.dq + tile * floats, (end - tile) * floats, sums.dq_rest);
    for (int64_t r = rows.first; r < end * kRows; ++r) {
      sums.delta[r] = r >= rows.end
                          ? 0.0f
                          : DeltaOf(job, call, item.forward.kv_head * g.group + r % g.group,
                                    r / g.group, job.w.stage);
    }
  }
  if (keys.first < keys.end) {
    const int64_t block = keys.first / kGradientKeys;
    const int64_t n = (keys.end + kGradientKeys - 1) / kGradientKeys - block;
    const int64_t of_k = kGradientKeys * ColumnFloats(g.dk),
                  of_v = kGradientKeys * ColumnFloats(g.dv);
    ZeroSums(sums.dk + block * of_k, n * of_k, sums.dk_rest);
    ZeroSums(sums.dv + block * of_v, n * of_v, sums.dv_rest);
  }
}

// dq of a row that has sums, of query i of head h, and its part of dsinks and dhead_scales.
// `values` are its sums.
HWY_INLINE void EndRow(const Job& job, const GradientCall& call, const GradientItem& item,
                       int64_t h, int64_t i, float delta, float* values, float* old) {
  const GradientProblem& problem = *call.problem;
  const Score& score = problem.forward.score;
  const Geometry& g = job.g;
  const int64_t head = item.chunk * g.group + h % g.group;
  const double scale = ScaleOf(job.call, h);
  if (problem.dsinks.present()) {
    const float sink = PerHeadAt(score.sinks, h);
    const float lse = ReadAs<float>(QueryRow(job, problem.forward.lse, h, i));
    if (sink != MinusInfinityScalar()) {
      item.sums.sinks[head] -= std::exp(static_cast<double>(sink) - static_cast<double>(lse)) *
                               static_cast<double>(delta);
    }
  }
  if (problem.dhead_scales.present()) {
    const TensorView& q = problem.forward.q;
    double sum = 0;
    LoadRow({QueryRow(job, q, h, i), q.dtype, q.stride[3]}, 0, g.dk, old);
    for (int64_t c = 0; c < g.dk; ++c) {
      if (values[c] != 0) sum += static_cast<double>(old[c]) * static_cast<double>(values[c]);
    }
    item.sums.head_scales[head] += sum * static_cast<double>(job.call.scale);
  }
  if (!problem.dq.present()) return;
  for (int64_t c = 0; c < g.dk; ++c)
    values[c] = static_cast<float>(static_cast<double>(values[c]) * scale);
  StoreGradient(problem.dq, QueryRow(job, problem.dq, h, i), 0, g.dk, problem.accumulate, values,
                old);
}

template <class Engine>
HWY_INLINE void EndRows(const Job& job, const GradientCall& call, const GradientItem& item,
                        const GradientScratch& w) {
  constexpr int64_t kRows = Engine::Lanes::kRows;
  const Geometry& g = job.g;
  const GradientSums& sums = item.sums;
  const GradientProblem& problem = *call.problem;
  const GradientRange rows = RowsWithSums(job);
  float* const values = w.row;
  float* const old = w.row + CopiedStride(std::max({g.dk, g.dv, kGradientKeys}));
  for (int64_t r = rows.first; r < rows.end; ++r) {
    const float* const from = sums.dq + r / kRows * kRows * g.dk + r % kRows;
    for (int64_t c = 0; c < g.dk; ++c) {
      values[c] = from[c * kRows];
      if (sums.dq_rest != 0) values[c] += from[sums.dq_rest + c * kRows];
    }
    EndRow(job, call, item, item.forward.kv_head * g.group + r % g.group, r / g.group,
           sums.delta[r], values, old);
  }
  if (!problem.dq.present() || problem.accumulate) return;
  std::fill_n(values, g.dk, 0.0f);
  for (int64_t r = std::max(rows.end, rows.first); r < item.forward.first_row + item.forward.rows;
       ++r) {
    const int64_t h = item.forward.kv_head * g.group + r % g.group, i = r / g.group;
    StoreGradient(problem.dq, QueryRow(job, problem.dq, h, i), 0, g.dk, false, values, old);
  }
}

// dk or dv of the item's keys.
HWY_INLINE void EndKeys(const Job& job, const MutableTensorView& view, float* sums, int64_t rest,
                        int64_t d, bool accumulate, float* values, float* old) {
  if (!view.present()) return;
  const GradientRange with_sums = KeysWithSums(job);
  const Item& item = job.item;
  for (int64_t j = item.keys.first; j < item.keys.end; ++j) {
    if (j >= with_sums.end) {
      if (accumulate) return;
      std::fill_n(values, d, 0.0f);
    } else {
      const int64_t block = j / kGradientKeys * kGradientKeys;
      float* const from = sums + block * ColumnFloats(d);
      ForEachColumnBlock(d, [&](int64_t c, auto vectors) HWY_ATTR {
        constexpr int64_t kWidth = vectors() * kLanes;
        const float* const p = from + kGradientKeys * c + (j - block) * kWidth;
        for (int64_t x = 0; x < std::min(d - c, kWidth); ++x)
          values[c + x] = rest == 0 ? p[x] : p[x] + p[rest + x];
      });
    }
    char* const row = RowOf(view, job.sequence.kv_batch, item.kv_head, job.sequence.kv_first + j);
    StoreGradient(view, row, 0, d, accumulate, values, old);
  }
}

// As GradientKernels::bias_row says. The scratch is that of a worker, used from its start.
inline void StoreBiasRow(const GradientProblem& problem, int64_t row, const float* sums,
                         int64_t rest, char* /*scratch*/) {
  const MutableTensorView& view = problem.dbias;
  if (sums == nullptr && problem.accumulate) return;
  char* to = static_cast<char*>(view.data);
  int64_t left = row;
  for (int a = view.rank - 2; a >= 0; --a) {
    to += left % view.shape[a] * view.stride[a];
    left /= view.shape[a];
  }
  const int64_t n = view.shape[view.rank - 1];
  constexpr int64_t kSome = 256;
  float values[kSome], old[kSome];
  for (int64_t first = 0; first < n; first += kSome) {
    const int64_t some = std::min(n - first, kSome);
    for (int64_t x = 0; x < some; ++x) {
      const float* const sum = sums == nullptr ? nullptr : sums + row * n + first + x;
      values[x] = sum == nullptr ? 0.0f : sum[0] + sum[rest];
    }
    StoreGradient(view, to, first, some, problem.accumulate, values, old);
  }
}

template <class Engine>
void EndGradients(const GradientCall& call, const GradientItem& item, char* scratch) {
  const Geometry& g = call.forward.geometry;
  const GradientScratch w = CarveGradients<Engine>(g, scratch);
  const Job job = BeginJob<Engine>(call.forward, item.forward, w.forward, 1.0f);
  const GradientProblem& problem = *call.problem;
  float* const old = w.row + CopiedStride(std::max({g.dk, g.dv, kGradientKeys}));
  EndRows<Engine>(job, call, item, w);
  EndKeys(job, problem.dk, item.sums.dk, item.sums.dk_rest, g.dk, problem.accumulate, w.row, old);
  EndKeys(job, problem.dv, item.sums.dv, item.sums.dv_rest, g.dv, problem.accumulate, w.row, old);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
