// Two ways to say one problem, which must give the same bits.
#ifndef FOVEA_TESTS_SUPPORT_EQUIVALENT_H_
#define FOVEA_TESTS_SUPPORT_EQUIVALENT_H_

#include <gtest/gtest.h>

#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea::test {

// `p` with a mask [B, Hq, Tq, Tk] of the pairs that its own mask allows and for which
// allows(b, h, i, j).
template <class Allows>
RandomProblem WithMaskOf(const RandomProblem& p, const Allows& allows) {
  const ProblemSpec& s = p.spec;
  RandomProblem spelled = p;
  spelled.mask = OwnedTensor(DType::kBool, {s.B, s.Hq, s.Tq, s.Tk});
  for (int64_t n = 0; n < spelled.mask.size(); ++n) {
    const int64_t b = n / (s.Hq * s.Tq * s.Tk), h = n / (s.Tq * s.Tk) % s.Hq, i = n / s.Tk % s.Tq,
                  j = n % s.Tk;
    const bool pair = !p.mask.present() || RandomProblem::Broadcast(p.mask, b, h, i, j) != 0;
    spelled.mask.Set(n, pair && allows(b, h, i, j));
  }
  spelled.Refresh();
  return spelled;
}

// On every kernel, or where tests are thinned on some.
inline void ExpectTheSameBits(RandomProblem& p, RandomProblem& other,
                              const PlanOptions& options = {}) {
  for (const Kernel& kernel : Thinned(KernelsAndAuto(), 4)) {
    EXPECT_TRUE(Same(RunSerial(kernel, p, options), RunSerial(kernel, other, options)))
        << ToString(kernel) << "\n"
        << ToString(p.spec);
  }
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_EQUIVALENT_H_
