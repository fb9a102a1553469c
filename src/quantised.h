// Checks of quantised k and v, and of the views of their scales and zeros.
#ifndef FOVEA_SRC_QUANTISED_H_
#define FOVEA_SRC_QUANTISED_H_

#include "errors.h"
#include "fovea/attention.h"
#include "views.h"

namespace fovea {

// Rows of quantised elements are whole units, side by side.
Status CheckUnits(const TensorFacts& t) noexcept;

// Scales and zeros of k and v, where and only where their types have them; on each axis one for
// all, one for each, or one for each of the groups. What the list of tensors says is checked
// before.
Status CheckQuantised(const Problem& problem) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_QUANTISED_H_
