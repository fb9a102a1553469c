// The header-only edition over sizes around its tiles, blocks and vectors, and random problems.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

namespace fovea::test {
namespace {

int64_t Lanes() { return Instance().lanes; }

TEST_F(Embedded, QueriesAndKeysAroundTilesAndBlocks) {
  uint64_t seed = BaseSeed();
  int64_t n = 0;
  for (int64_t Tq : {int64_t{1}, int64_t{4}, int64_t{5}, Lanes() / 2 + 1, Lanes(), Lanes() + 1,
                     2 * Lanes(), 2 * Lanes() + 1, int64_t{64}, int64_t{65}, int64_t{131}}) {
    for (int64_t Tk : {1, 2, 11, 12, 13, 63, 64, 65, 129, 200}) {
      for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
        if (++n % GridStep() != 0) continue;
        ProblemSpec spec;
        spec.Hq = 2, spec.Tq = Tq, spec.Tk = Tk, spec.dk = 20, spec.dv = 13, spec.causal = causal;
        RandomProblem p(spec, ++seed);
        ExpectMatches(p);
      }
    }
  }
}

TEST_F(Embedded, HeadSizes) {
  uint64_t seed = BaseSeed();
  int64_t n = 0;
  for (int64_t dk : {1, 3, 7, 8, 15, 16, 17, 33, 64, 65, 127, 128, 129, 257}) {
    for (int64_t dv : {1, 5, 12, 13, 31, 64, 100, 130}) {
      for (int64_t Tq : {1, 37}) {
        if (++n % GridStep() != 0) continue;
        ProblemSpec spec;
        spec.Tq = Tq, spec.Tk = 70, spec.dk = dk, spec.dv = dv;
        RandomProblem p(spec, ++seed);
        ExpectMatches(p);
      }
    }
  }
}

TEST_F(Embedded, NothingToDo) {
  for (int64_t ProblemSpec::* size : {&ProblemSpec::B, &ProblemSpec::Tq, &ProblemSpec::Tk}) {
    ProblemSpec spec;
    spec.B = 2, spec.Hq = 2, spec.Tq = 9, spec.Tk = 10, spec.dk = 6, spec.dv = 7;
    spec.*size = 0;
    RandomProblem p(spec, BaseSeed());
    ExpectMatches(p);
  }
}

TEST_F(Embedded, RandomProblems) {
  Random random(BaseSeed());
  for (int n = 0; n < 600; ++n) {
    const ProblemSpec spec = RandomSpec(random);
    const uint64_t seed = random.Bits();
    if (n % GridStep() != 0) continue;
    SCOPED_TRACE("problem " + std::to_string(n) + " of seed " + std::to_string(BaseSeed()));
    RandomProblem p(spec, seed);
    ExpectMatches(p);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fovea::test
