// Problems whose keys lie in pages or rings, or have lost their first ones. Revisions from before
// they could be said have none.
#ifndef FOVEA_TESTS_SAME_BITS_CACHES_H_
#define FOVEA_TESTS_SAME_BITS_CACHES_H_

#include <cstdint>

#include "problem.h"

namespace fovea::same_bits {

#if __has_include("fovea/cache.h")
constexpr int64_t kCacheCount = 300;
#else
constexpr int64_t kCacheCount = 0;
#endif
Case CacheCase(int64_t index);

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_CACHES_H_
