#include "measure/gradient_accuracy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::measure {
namespace {

using reference::At;

void Judge(double value, double expected, double bound, Accuracy* accuracy) {
  const double error = std::fabs(value - expected);
  const double share = std::isfinite(error) ? error / bound : HUGE_VAL;
  if (accuracy->bound == 0 || share > accuracy->worst_share) accuracy->bound = bound;
  accuracy->max_error = std::max(accuracy->max_error, error);
  accuracy->worst_share = std::max(accuracy->worst_share, share);
}

// What rounding to the gradient's type adds to a bound.
double RoundingOf(DType type) {
  return type == DType::kBF16 ? 0x1p-8 : type == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

double ScaleOf(const Problem& problem, int64_t h) {
  const double scale = problem.score.scale.has_value()
                           ? static_cast<double>(*problem.score.scale)
                           : 1 / std::sqrt(static_cast<double>(problem.q.shape[3]));
  return scale * reference::HeadFactor(problem.score.head_scales, h);
}

void CompareRow(const GradientProblem& g, int64_t b, int64_t h, int64_t i, Accuracy* accuracy) {
  const Problem& problem = g.forward;
  const int64_t hkv = h / (problem.q.shape[1] / problem.k.shape[1]);
  const int64_t keys = problem.k.shape[2], dk = problem.q.shape[3], dv = problem.v.shape[3];
  const reference::Row row = reference::ForwardRow(problem, b, h, i);
  std::vector<double> dp(static_cast<size_t>(keys));
  double delta = 0, most_dp = 0, most_k = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const size_t n = static_cast<size_t>(j);
    if (!row.visible[n]) continue;
    for (int64_t c = 0; c < dv; ++c) dp[n] += At(g.dout, b, h, i, c) * At(problem.v, b, hkv, j, c);
    delta += row.weights[n] * dp[n];
    most_dp = std::max(most_dp, std::fabs(dp[n]));
    for (int64_t c = 0; c < dk; ++c)
      most_k = std::max(most_k, std::fabs(At(problem.k, b, hkv, j, c)));
  }
  std::vector<double> dq(static_cast<size_t>(dk));
  const double scale = ScaleOf(problem, h), softcap = static_cast<double>(problem.score.softcap);
  for (int64_t j = 0; j < keys; ++j) {
    const size_t n = static_cast<size_t>(j);
    if (!row.visible[n]) continue;
    const double t = softcap > 0 ? std::tanh(row.scaled[n] / softcap) : 0;
    const double dx = row.weights[n] * (dp[n] - delta) * (1 - t * t) * scale;
    for (int64_t c = 0; c < dk; ++c) dq[static_cast<size_t>(c)] += dx * At(problem.k, b, hkv, j, c);
  }
  const double t = reference::RelativeTolerance(row) + RoundingOf(problem.out.dtype);
  const double bound = t * std::fabs(scale) * (most_dp + std::fabs(delta)) * most_k + 1e-30;
  const TensorView given = g.dq;
  for (int64_t c = 0; c < dk; ++c) {
    const double expected = dq[static_cast<size_t>(c)];
    Judge(At(given, b, h, i, c), expected, bound + RoundingOf(given.dtype) * std::fabs(expected),
          accuracy);
  }
}

// The two sums, of KV head hkv of sequence b.
void CompareSums(const GradientProblem& g, int64_t b, int64_t hkv, Accuracy* accuracy) {
  const Problem& problem = g.forward;
  const int64_t group = problem.q.shape[1] / problem.k.shape[1];
  const int64_t queries = problem.q.shape[2], keys = problem.k.shape[2];
  const int64_t dk = problem.q.shape[3], dv = problem.v.shape[3];
  const TensorView of_q = g.dq, of_k = g.dk, of_v = g.dv, lse = problem.lse;
  std::vector<double> sum(static_cast<size_t>(dv)), expected(static_cast<size_t>(dv));
  double most = 0, by_q = 0, by_k = 0, size = 0;
  for (int64_t h = hkv * group; h < (hkv + 1) * group; ++h) {
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t c = 0; c < dk; ++c) {
        const double product = At(problem.q, b, h, i, c) * At(of_q, b, h, i, c);
        by_q += product, size += std::fabs(product);
      }
      if (std::isinf(At(lse, b, h, i))) continue;
      for (int64_t c = 0; c < dv; ++c) {
        const double d = At(g.dout, b, h, i, c);
        expected[static_cast<size_t>(c)] += d;
        most = std::max(most, std::fabs(d));
      }
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t c = 0; c < dk; ++c) by_k += At(problem.k, b, hkv, j, c) * At(of_k, b, hkv, j, c);
    for (int64_t c = 0; c < dv; ++c) sum[static_cast<size_t>(c)] += At(of_v, b, hkv, j, c);
  }
  const double rows = std::sqrt(static_cast<double>(queries * group));
  const double t = 1e-5 + RoundingOf(of_v.dtype) + RoundingOf(problem.out.dtype);
  for (size_t c = 0; c < sum.size(); ++c)
    Judge(sum[c], expected[c], t * rows * most + 1e-30, accuracy);
  Judge(by_k, by_q, 10 * t * size / rows + 1e-30, accuracy);
}

}  // namespace

Accuracy CompareGradients(const GradientProblem& problem, int rows) {
  const TensorView& q = problem.forward.q;
  const int64_t total = q.shape[0] * q.shape[1] * q.shape[2];
  Accuracy accuracy;
  for (int64_t n = 0; n < std::min<int64_t>(rows, total); ++n) {
    const int64_t index = n == rows - 1 ? total - 1 : n * 2654435761 % total;
    CompareRow(problem, index / (q.shape[1] * q.shape[2]), index / q.shape[2] % q.shape[1],
               index % q.shape[2], &accuracy);
  }
  if (total == 0) return accuracy;
  CompareSums(problem, 0, 0, &accuracy);
  CompareSums(problem, q.shape[0] - 1, problem.forward.k.shape[1] - 1, &accuracy);
  return accuracy;
}

}  // namespace fovea::measure
