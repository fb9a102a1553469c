// How the sum of a score's channels, q·k, is put together, so that its error does not grow with the
// head.
//
// Products are summed in chains of at most kChain. In the tile engine chains are added to each
// other as they come, within runs of kRunChannels; in the row engine, where each lane has a chain,
// a run is one chain. Runs are added with compensation: what these additions lose adds up, and
// joins the score at the end. In units of 2⁻²⁴ · Σ |q·k| the tile engine loses 128 in a chain, 6 in
// additions of a run, 1 at the end and 1 in scale·q; the row engine at most 4 to fold lanes instead
// of the 6.
#ifndef FOVEA_EMBEDDED_CHAINS_H_
#define FOVEA_EMBEDDED_CHAINS_H_

#include "fovea/embedded/arithmetic.h"
#include "fovea/embedded/tile.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// s += run; what that loses is added to `lost`, and s gets it at the end.
inline void JoinRun(V run, bool is_last, V& s, V& lost) {
  V rest;
  s = TwoSum(s, run, rest);
  lost = Opaque(lost + rest);
  if (is_last) s += lost;
}

// Joins n scores at `run`, whole vectors of them, to those at s. `lost` is theirs.
FOVEA_EMBEDDED_KERNEL void JoinRuns(const float* run, int64_t n, bool is_second, bool is_last,
                                    float* lost, float* s) {
  for (int64_t x = 0; x < n; x += kLanes) {
    V sum = Load(s + x), rest = is_second ? V(0.0f) : Load(lost + x);
    JoinRun(Load(run + x), is_last, sum, rest);
    Store(sum, s + x);
    Store(rest, lost + x);
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_CHAINS_H_
