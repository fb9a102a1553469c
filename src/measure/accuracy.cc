#include "measure/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::measure {
namespace {

// Equal infinities and two NaNs are no error; any other meeting with one is an infinite error.
double ErrorOf(double value, double expected) {
  if (std::isnan(value) && std::isnan(expected)) return 0;
  if (value == expected) return 0;
  const double error = std::fabs(value - expected);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// An error in units of its bound, where no error is within any bound, 0 included.
double Share(double error, double bound) { return error == 0 ? 0 : error / bound; }

// Row n of `rows` samples out of `total` rows: the first, the last, and between them what
// multiplying with a large prime scatters.
int64_t SampledRow(int64_t n, int64_t rows, int64_t total) {
  return n > 0 && n == rows - 1 ? total - 1 : n * 2654435761 % total;
}

}  // namespace

void AddRow(const Problem& problem, Product product, int64_t b, int64_t h, int64_t i,
            Accuracy* accuracy) {
  const reference::Row row = reference::ForwardRow(problem, b, h, i);
  const double tolerance = reference::RelativeTolerance(row);
  const double out_bound = (tolerance + reference::WeightTolerance(product)) * row.max_abs_value;

  const TensorView out = problem.out;
  for (size_t c = 0; c < row.out.size(); ++c) {
    const double value = reference::At(out, b, h, i, static_cast<int64_t>(c));
    const double error = ErrorOf(value, row.out[c]);
    const double bound = reference::StoredBound(out.dtype, value, row.out[c], out_bound);
    if (error > accuracy->max_error || accuracy->bound == 0) accuracy->bound = bound;
    accuracy->max_error = std::max(accuracy->max_error, error);
    accuracy->worst_share = std::max(accuracy->worst_share, Share(error, bound));
  }

  if (problem.lse.present()) {
    const double lse_error = ErrorOf(reference::At(problem.lse, b, h, i), row.lse);
    const double rounding = std::isfinite(row.lse) ? std::ldexp(std::fabs(row.lse), -24) : 0;
    accuracy->max_lse_error = std::max(accuracy->max_lse_error, lse_error);
    accuracy->worst_share = std::max(accuracy->worst_share, Share(lse_error, tolerance + rounding));
  }

  if (problem.weights.present()) {
    const TensorView weights = problem.weights;
    for (size_t j = 0; j < row.weights.size(); ++j) {
      const double weight_error =
          ErrorOf(reference::At(weights, b, h, i, static_cast<int64_t>(j)), row.weights[j]);
      accuracy->max_weights_error = std::max(accuracy->max_weights_error, weight_error);
      accuracy->worst_share = std::max(accuracy->worst_share, Share(weight_error, tolerance));
    }
  }
}

Accuracy CompareAllRows(const Problem& problem, Product product) {
  const reference::Sizes sizes = reference::SizesOf(problem);
  Accuracy accuracy;
  for (int64_t b = 0; b < sizes.B; ++b) {
    for (int64_t h = 0; h < sizes.Hq; ++h) {
      for (int64_t i = 0; i < sizes.Tq; ++i) AddRow(problem, product, b, h, i, &accuracy);
    }
  }
  return accuracy;
}

Accuracy CompareSampledRows(const Problem& problem, Product product, int rows) {
  const reference::Sizes sizes = reference::SizesOf(problem);
  const int64_t total = sizes.B * sizes.Hq * sizes.Tq;
  Accuracy accuracy;
  for (int64_t n = 0; n < std::min<int64_t>(rows, total); ++n) {
    const int64_t index = SampledRow(n, rows, total);
    AddRow(problem, product, index / (sizes.Hq * sizes.Tq), index / sizes.Tq % sizes.Hq,
           index % sizes.Tq, &accuracy);
  }
  return accuracy;
}

}  // namespace fovea::measure
