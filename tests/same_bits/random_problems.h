// Problems drawn from a seed, of all options.
#ifndef FOVEA_TESTS_SAME_BITS_RANDOM_PROBLEMS_H_
#define FOVEA_TESTS_SAME_BITS_RANDOM_PROBLEMS_H_

#include <cstdint>

#include "problem.h"

namespace fovea::same_bits {

// Any options at any sizes that stay small.
constexpr int64_t kRandomCount = 2000;
Case RandomCase(int64_t index);

// Partial states of random shapes.
constexpr int64_t kMergeCount = 100;
Case MergeCase(int64_t index);

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_RANDOM_PROBLEMS_H_
