// Is the result of a call right? Its rows against the reference in double, all of them or a sample
// that is cheap for the longest problem.
#ifndef FOVEA_MEASURE_ACCURACY_H_
#define FOVEA_MEASURE_ACCURACY_H_

#include <cstdint>

#include "fovea/attention.h"

namespace fovea::measure {

// Errors against the contract's bounds: (t + w)·max|v| for out, before it is rounded to a 16-bit
// type, t for lse and weights, t = max(1e-5, 8·2⁻²⁴·max|partial score|), w =
// reference::WeightTolerance(product).
struct Accuracy {
  // largest |error| of out; infinite where a NaN or an infinity is missing or one too many
  double max_error = 0;
  double max_lse_error = 0;      // of lse, 0 if it is absent
  double max_weights_error = 0;  // of weights, 0 if they are absent
  // largest error of any output in units of its own bound: above 1 is wrong
  double worst_share = 0;
  double bound = 0;  // of out, where its error is largest

  bool ok() const { return worst_share <= 1; }
};

// Judges row [b, h, i] of problem.out, and of problem.lse and problem.weights if present. `product`
// is what the plan chose.
void AddRow(const Problem& problem, Product product, int64_t b, int64_t h, int64_t i,
            Accuracy* accuracy);

Accuracy CompareAllRows(const Problem& problem, Product product);

// `rows` rows spread over sequences, heads and queries, the first and the last among them.
Accuracy CompareSampledRows(const Problem& problem, Product product, int rows = 16);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_ACCURACY_H_
