// How dK and dV lie among the sums, and rows of gradients on their way to the caller's memory.
#if defined(FOVEA_SRC_KERNELS_GRADIENT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_GRADIENT_ROWS_INL_H_
#undef FOVEA_SRC_KERNELS_GRADIENT_ROWS_INL_H_
#else
#define FOVEA_SRC_KERNELS_GRADIENT_ROWS_INL_H_
#endif

#include <type_traits>

#include "kernels/gradient_kernel.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Rows of d channels lie in *blocks of columns*: of two vectors each, but for the last one, which
// may be of one. A block holds its channels of all rows, one row after the other.
constexpr int64_t kBlockColumns = 2 * kLanes;

// f(first channel, vectors of the block), the latter a constant.
template <class F>
HWY_INLINE void ForEachColumnBlock(int64_t d, const F& f) {
  for (int64_t c = 0; c < d; c += kBlockColumns) {
    if (d - c > kLanes) {
      f(c, std::integral_constant<int, 2>());
    } else {
      f(c, std::integral_constant<int, 1>());
    }
  }
}

// Floats of a row, whole vectors.
HWY_INLINE int64_t ColumnFloats(int64_t d) { return RoundUp(d, kLanes); }

// Where channel c of row r is, of n rows.
HWY_INLINE int64_t PlaceInColumns(int64_t n, int64_t d, int64_t r, int64_t c) {
  const int64_t first = c / kBlockColumns * kBlockColumns;
  const int64_t width = std::min(ColumnFloats(d) - first, kBlockColumns);
  return n * first + r * width + c - first;
}

// to[r][c] = lanes[c][r] for kRows rows, in blocks of columns.
template <int kRows>
HWY_INLINE void ByRows(const float* lanes, int64_t d, float* to) {
  const VF one = hn::Set(DF(), 1.0f);
  ForEachColumnBlock(d, [&](int64_t c, auto vectors) HWY_ATTR {
    constexpr int64_t kWidth = vectors() * kLanes;
    float* const block = to + kRows * c;
    const int64_t columns = std::min(d - c, kWidth);
    if (columns < kWidth) std::fill_n(block, kRows * kWidth, 0.0f);
    for (int r = 0; r < kRows; r += kLanes) {
      float* rows[kLanes];
      for (int x = 0; x < kLanes; ++x) rows[x] = block + (r + x) * kWidth;
      TransposeOut<kRows>(lanes + c * kRows + r, columns, one, rows);
    }
    // A transpose fills four columns at a time.
    for (int64_t x = columns; x % 4 != 0; ++x) {
      for (int r = 0; r < kRows; ++r) block[r * kWidth + x] = 0.0f;
    }
  });
}

HWY_INLINE void ZeroNonFinite(float* values, int64_t n) {
  const DF df;
  for (int64_t x = 0; x < n; x += kLanes) {
    const VF v = hn::Load(df, values + x);
    hn::Store(hn::IfThenElseZero(hn::IsFinite(v), v), df, values + x);
  }
}

// n elements of a row of a gradient from element `first` on; `old` has room for as many.
HWY_INLINE void StoreGradient(const MutableTensorView& view, char* row, int64_t first, int64_t n,
                              bool accumulate, float* values, float* old) {
  const int64_t stride = view.stride[view.rank - 1];
  if (accumulate) {
    LoadRow({row, view.dtype, stride}, first, n, old);
    for (int64_t x = 0; x < n; ++x) values[x] += old[x];
  }
  StoreRow(values, n, view.dtype, row + first * stride, stride);
}

// sum[0 … n) += x[0 … n), with what that loses added to the rests.
HWY_INLINE void AddToBiasSums(const float* x, int64_t n, int64_t rest, float* sum) {
  for (int64_t j = 0; j < n; ++j) {
    const float a = sum[j], b = x[j] + sum[j + rest], s = a + b, of_b = s - a;
    const float lost = (a - (s - of_b)) + (b - of_b);
    sum[j] = s;
    sum[j + rest] = lost - lost == 0 ? lost : 0;
  }
}

// The gradients of a part's scores, to those of the bias. `row` has room for 2·kGradientKeys.
template <class Lanes>
HWY_NOINLINE void AddBiasGradient(const Job& job, const GradientCall& call, const Part& part,
                                  const float* ds, float* row) {
  constexpr int kRows = Lanes::kRows;
  const Score& score = job.call.problem->score;
  const MutableTensorView& view = call.problem->dbias;
  const BiasSums& sums = call.bias;
  const int64_t first = part.span.first, n = part.span.end - first;
  const int64_t key = part.block.first + first, b = job.item.sequence;
  float* const stage = job.w.stage;
  static_assert(kGradientKeys <= kStageColumns);
  for (int r = 0; r < kRows; r += kLanes) {
    float* rows[kLanes];
    for (int x = 0; x < kLanes; ++x) rows[x] = stage + (r + x) * kStageColumns;
    TransposeOut<kRows>(ds + Lanes::Index(r, first, 0), n, hn::Set(DF(), 1.0f), rows);
  }
  ForEachRow(job, *part.tile, [&](int r, int64_t h, int64_t i) {
    if (i >= job.sequence.q_length) return;
    float* const of_row = stage + r * kStageColumns;
    if (score.bias_scales.present()) {
      const float factor = PerHeadAt(score.bias_scales, h);
      // A removed pair has none whatever the factor.
      for (int64_t j = 0; j < n; ++j) of_row[j] = of_row[j] == 0 ? 0 : of_row[j] * factor;
    }
    if (sums.sums == nullptr) {
      char* const to = static_cast<char*>(view.data) +
                       (view.rank > 3 ? b * view.stride[view.rank - 4] : 0) +
                       (view.rank > 2 ? h * view.stride[view.rank - 3] : 0) +
                       (view.rank > 1 ? i * view.stride[view.rank - 2] : 0);
      StoreGradient(view, to, key, n, true, of_row, row);
      return;
    }
    float* const to = sums.sums + b * sums.stride[0] + h * sums.stride[1] + i * sums.stride[2];
    if (sums.stride[3] != 0) return AddToBiasSums(of_row, n, sums.rest, to + key);
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(of_row[j]);
    const float rounded = static_cast<float>(sum);
    AddToBiasSums(&rounded, 1, sums.rest, to);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
