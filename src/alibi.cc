#include "fovea/score.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "float_state.h"

namespace fovea {
namespace {

void FillSlopes(int64_t Hq, float* slopes, float max_bias) {
  int64_t n = 1;
  while (2 * n <= Hq) n *= 2;
  for (int64_t h = 0; h < Hq; ++h) {
    // Heads past n take the slopes of 2n heads that lie between those of n.
    const double step = h < n ? static_cast<double>(h + 1) / static_cast<double>(n)
                              : static_cast<double>(2 * (h - n) + 1) / static_cast<double>(2 * n);
    const double slope = std::exp2(-static_cast<double>(max_bias) * step);
    slopes[h] = static_cast<float>(std::min<double>(slope, FLT_MAX));
  }
}

}  // namespace

void AlibiSlopes(int64_t Hq, float* slopes, float max_bias) noexcept {
  InDefaultFloatState([&] { FillSlopes(Hq, slopes, max_bias); });
}

}  // namespace fovea
