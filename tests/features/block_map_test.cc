// Block maps: a coarse map of the score matrix is the mask that it spells out, bit for bit.
#include <gtest/gtest.h>

#include <string>

#include "fovea/attention.h"
#include "support/equivalent.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 45, s.Tk = 150, s.dk = 12, s.dv = 9;
  s.block_map = Axes::kBHQK, s.block_queries = 16, s.block_keys = 32, s.block_map_allows = 0.5;
  return s;
}

// p without its block map, but with a mask of all pairs that map and mask allow.
RandomProblem SpelledOut(const RandomProblem& p) {
  const ProblemSpec& s = p.spec;
  RandomProblem spelled = test::WithMaskOf(p, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    return RandomProblem::Broadcast(p.block_map, b, h, i / s.block_queries, j / s.block_keys) != 0;
  });
  spelled.block_map = OwnedTensor();
  spelled.Refresh();
  return spelled;
}

void ExpectTheMaskItSpellsOut(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem spelled = SpelledOut(p);
  test::ExpectTheSameBits(p, spelled, options);
}

TEST(BlockMapTest, IsTheMaskThatItSpellsOutForBlocksOfAnySize) {
  uint64_t seed = test::BaseSeed();
  for (int64_t queries : {1, 3, 16, 17, 45, 1000}) {
    for (int64_t keys : test::Thinned({1, 5, 16, 31, 64, 128, 149, 150, 1000}, 4)) {
      ProblemSpec s = Spec();
      s.block_queries = queries, s.block_keys = keys,
      s.block_map_type = keys % 2 == 0 ? DType::kBit : DType::kBool;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(BlockMapTest, EveryShapeThatBroadcasts) {
  for (Axes axes : test::kAllAxes) {
    if (axes == Axes::kAbsent) continue;
    for (DType type : {DType::kBool, DType::kBit}) {
      ProblemSpec s = Spec();
      s.block_map = axes, s.block_map_type = type, s.block_queries = 7, s.block_keys = 13;
      RandomProblem p(s, test::BaseSeed());
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(BlockMapTest, EveryLayoutAndPlace) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::kPlacements) {
      for (DType type : test::Thinned({DType::kBool, DType::kBit})) {
        ProblemSpec s = Spec();
        s.Tq = 20, s.Tk = 70, s.block_keys = 5, s.block_map_type = type,
        s.rest = {layout, placement};
        RandomProblem p(s, test::BaseSeed());
        ExpectTheMaskItSpellsOut(p);
      }
    }
  }
}

TEST(BlockMapTest, WithEverythingElseThatRemovesPairs) {
  ProblemSpec s = Spec();
  s.mask = Axes::kHQK, s.bias = Axes::kQK, s.bias_removes = 0.2, s.alibi = true, s.sinks = true;
  s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64, s.weights = true,
  s.scores = ScoreStage::kMasked;
  uint64_t seed = test::BaseSeed();
  for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    for (Window window : test::Thinned({Window{-1, -1}, Window{30, -1}, Window{10, 10}})) {
      s.causal = causal, s.window = window;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p);
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(BlockMapTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = Spec();
  s.B = 1, s.block_queries = 5, s.block_keys = 11;
  test::ForTinyTilesBlocksAndSplits(s, [](RandomProblem& p, const PlanOptions& options) {
    ExpectTheMaskItSpellsOut(p, options);
    test::ExpectMatchesReference(p, options);
  });
}

TEST(BlockMapTest, NothingOneBlockAndEverything) {
  for (int which = 0; which < 4; ++which) {
    RandomProblem p(Spec(), test::BaseSeed());
    int64_t n = 0;
    p.block_map.Fill([&] {
      return which == 3 || (which != 0 && n++ % 15 == (which == 1 ? 0 : 14)) ? 1.0 : 0.0;
    });
    ExpectTheMaskItSpellsOut(p);
    test::ExpectMatchesReference(p);
    if (which != 3) continue;
    RandomProblem without = p;
    without.block_map = OwnedTensor();
    without.Refresh();
    for (const Kernel& kernel : test::KernelsAndAuto())
      EXPECT_TRUE(Same(RunSerial(kernel, p), RunSerial(kernel, without))) << ToString(kernel);
  }
}

TEST(BlockMapTest, DecodeOverManySplitsOfWhichSomeAreRemoved) {
  for (int64_t Tq : {1, 4}) {
    ProblemSpec s = Spec();
    s.Hq = 8, s.Tq = Tq, s.Tk = 4000, s.block_queries = 1, s.block_keys = 128,
    s.block_map_allows = 0.2;
    RandomProblem p(s, test::BaseSeed());
    ExpectTheMaskItSpellsOut(p);
    test::ExpectMatchesReference(p);
  }
}

TEST(BlockMapTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectOnePlanServes(p, [&](int run) {
    test::Random random(test::BaseSeed() + static_cast<uint64_t>(run));
    p.block_map.Fill([&] { return random.Chance(0.5) ? 1.0 : 0.0; });
  });
}

}  // namespace
}  // namespace fovea
