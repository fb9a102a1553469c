// Sums and products of sizes that are checked one by one, which must not wrap around.
#ifndef FOVEA_SRC_PLAN_ARITHMETIC_H_
#define FOVEA_SRC_PLAN_ARITHMETIC_H_

#include <algorithm>
#include <cstdint>

namespace fovea {

// What sums and products stay below: more than any workspace holds, so that a run of such a plan is
// refused.
constexpr int64_t kMostFloats = int64_t{1} << 58;

inline int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMostFloats : std::min(product, kMostFloats);
}
inline int64_t Plus(int64_t a, int64_t b) {
  return std::min(a, kMostFloats) + std::min(b, kMostFloats);
}

inline int64_t CeilDiv(int64_t n, int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }
// Down where up would be beyond 2^63.
inline int64_t RoundUp(int64_t n, int64_t multiple) {
  return std::min(CeilDiv(n, multiple), INT64_MAX / multiple) * multiple;
}

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_ARITHMETIC_H_
