// Gradients against those of the double-precision reference, and the laws that they obey.
#include "fovea/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fovea/target.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_gradients.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::ProblemSpec;
using test::RandomGradients;

ProblemSpec Spec(int64_t Tq, int64_t Tk, int64_t dk, int64_t dv) {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = Tk, s.dk = dk, s.dv = dv;
  return s;
}

TEST(GradientTest, AwkwardSizes) {
  const int64_t sizes[][4] = {{1, 1, 1, 1},    {1, 70, 8, 8},    {70, 1, 8, 8},     {5, 64, 16, 3},
                              {33, 65, 7, 17}, {17, 200, 40, 9}, {130, 131, 64, 72}};
  uint64_t seed = test::BaseSeed();
  for (const auto& n : sizes) {
    RandomGradients g(Spec(n[0], n[1], n[2], n[3]), ++seed);
    SCOPED_TRACE(ToString(g.p.spec));
    ExpectGradientsMatchReference(g);
  }
}

TEST(GradientTest, VariedProblems) {
  uint64_t seed = test::BaseSeed();
  for (ProblemSpec s : test::VariedSpecs()) {
    s.function = false, s.weights = false, s.scores.reset(), s.lse = true;
    RandomGradients g(s, ++seed);
    SCOPED_TRACE(ToString(s));
    ExpectGradientsMatchReference(g);
  }
}

TEST(GradientTest, ManyChunks) {
  for (bool causal : {false, true}) {
    ProblemSpec s = Spec(600, 800, 8, 5);
    s.B = 1, s.Hq = 2, s.Hkv = 1, s.sinks = true, s.head_scales = true;
    if (causal) s.causal = Causal::kBottomRight;
    RandomGradients g(s, test::BaseSeed());
    ExpectGradientsMatchReference(g);
  }
}

}  // namespace
}  // namespace fovea
