// Numbers that people give as doubles and that the library takes as floats. Knows no API.
#ifndef FOVEA_SRC_NARROW_H_
#define FOVEA_SRC_NARROW_H_

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace fovea {

// What floats can be, for messages.
constexpr char kFloatRange[] = "0 or a float (1.4e-45 to 3.4e38 in size)";

// The float nearest to x; infinities and NaN stay. False where that would be something else: 0 for
// a number that is not, as "no softcap" for one of 1e-50, or infinity for a finite one.
inline bool Narrow(double x, float* narrow) {
  constexpr double kLeast = 0x1p-150, kBeyond = 0x1.ffffffp127;  // halfway to 0, to infinity
  const double size = std::fabs(x);
  if (std::isfinite(x) && ((size > 0 && size <= kLeast) || size >= kBeyond)) return false;
  // Converting finite numbers beyond FLT_MAX is undefined.
  *narrow = static_cast<float>(std::isfinite(x) ? std::clamp<double>(x, -FLT_MAX, FLT_MAX) : x);
  return true;
}

}  // namespace fovea

#endif  // FOVEA_SRC_NARROW_H_
