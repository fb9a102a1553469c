#include "bench/sample_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::bench {
namespace {

// Sample n of `rows` out of `total` rows: the first, the last, and between them what multiplying with a large prime scatters.
int64_t SampledRow(int64_t n, int64_t rows, int64_t total) { return n > 0 && n == rows - 1 ? total - 1 : n * 2654435761 % total; }

}  // namespace

SampleError CheckSampledRows(const Problem& problem, int rows) {
  const reference::Sizes sizes = reference::SizesOf(problem);
  const int64_t total = sizes.B * sizes.Hq * sizes.Tq;
  const TensorView out = AsConst(problem.out);
  SampleError worst;
  double worst_ratio = -1;
  for (int64_t n = 0; n < std::min<int64_t>(rows, total); ++n) {
    const int64_t index = SampledRow(n, rows, total);
    const int64_t b = index / (sizes.Hq * sizes.Tq), h = index / sizes.Tq % sizes.Hq, i = index % sizes.Tq;
    const reference::Row row = reference::ForwardRow(problem, b, h, i);
    const double bound = reference::RelativeTolerance(row) * row.max_abs_value;
    double error = 0;
    for (int64_t c = 0; c < sizes.dv; ++c) {
      const double difference = std::fabs(reference::At(out, b, h, i, c) - row.out[static_cast<size_t>(c)]);
      if (!(difference <= error)) error = difference;  // NaN included
    }
    if (!(error <= bound)) worst.ok = false;
    const double ratio = error / std::max(bound, 1e-300);
    if (!(ratio <= worst_ratio)) {
      worst_ratio = ratio;
      worst.max_error = error;
      worst.bound = bound;
    }
  }
  return worst;
}

}  // namespace fovea::bench
