// Problems whose sizes go through lists.
#ifndef FOVEA_TESTS_SAME_BITS_GRIDS_H_
#define FOVEA_TESTS_SAME_BITS_GRIDS_H_

#include <cstdint>

#include "problem.h"

namespace fovea::same_bits {

// Sizes around lanes, tiles and blocks, plain otherwise; the last ones have many keys.
int64_t GridCount();
Case GridCase(int64_t index);

// A thousand to a million keys and few rows, scores and values by patterns.
constexpr int64_t kLongCount = 40;
Case LongCase(int64_t index);

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_GRIDS_H_
