// Runs of a fixed length, for loops whose bodies are compiled for it.
#ifndef FOVEA_EMBEDDED_RUNS_H_
#define FOVEA_EMBEDDED_RUNS_H_

#include <cstdint>

#include "fovea/embedded/isa.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

template <int n>
struct Count {
  static constexpr int value = n;
};

// f(Count<k>, from) for runs of k from a list, the longest first, that make up [0, n).
template <int kFirst, int... kRest, class F>
void InRuns(int64_t n, const F& f, int64_t from = 0) {
  for (; n >= kFirst; n -= kFirst, from += kFirst) f(Count<kFirst>(), from);
  if constexpr (sizeof...(kRest) > 0) {
    if (n > 0) InRuns<kRest...>(n, f, from);
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_RUNS_H_
