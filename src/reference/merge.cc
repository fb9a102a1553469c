// Merging partial states, as the contract has it.
#include <cmath>
#include <limits>
#include <vector>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::reference {

MergeResult Merge(const PartialState* parts, int64_t count) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const TensorView& shape = parts[0].out;
  MergeResult result;
  for (int64_t b = 0; b < shape.shape[0]; ++b) {
    for (int64_t h = 0; h < shape.shape[1]; ++h) {
      for (int64_t i = 0; i < shape.shape[2]; ++i) {
        // m = max lse_n
        double m = -kInfinity;
        for (int64_t n = 0; n < count; ++n) m = MaxKeepingNan(m, At(parts[n].lse, b, h, i));
        if (m == -kInfinity) m = 0;  // all parts empty: every weight is 0
        // w_n = exp(lse_n − m), out = Σ w_n·out_n / Σ w_n, lse = m + ln Σ w_n
        double sum = 0;
        std::vector<double> out(shape.shape[3], 0);
        for (int64_t n = 0; n < count; ++n) {
          const double lse = At(parts[n].lse, b, h, i);
          if (lse == -kInfinity) continue;  // the identity: its out is not read
          const double w = std::exp(lse - m);
          sum += w;
          for (int64_t c = 0; c < shape.shape[3]; ++c) out[c] += w * At(parts[n].out, b, h, i, c);
        }
        for (double& x : out) x /= sum == 0 ? 1 : sum;
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.lse.push_back(m + std::log(sum));
      }
    }
  }
  return result;
}

}  // namespace fovea::reference
