// Are gradients right? Rows of dq against the reference in double, a sample of them, and dk and dv
// by what their sums must be.
#ifndef FOVEA_MEASURE_GRADIENT_ACCURACY_H_
#define FOVEA_MEASURE_GRADIENT_ACCURACY_H_

#include "fovea/gradient.h"
#include "measure/accuracy.h"

namespace fovea::measure {

// Of a problem that is not packed, without sinks and dlse. dq, dk and dv must be there.
//
// Weights of a row sum to 1, so that Σ_j dv_j = Σ_i dout_i over the rows that see a key; and
// Σ_j k_j·dk_j = Σ_i q_i·dq_i, both being Σ ds·s without what is added to scores. Errors are in
// units of the contract's bounds.
Accuracy CompareGradients(const GradientProblem& problem, int rows = 8);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_GRADIENT_ACCURACY_H_
