// Trees of queries (speculative decoding): a tree is the mask that it spells out, bit for bit, and
// a chain is causal attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/equivalent.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"
#include "tree.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

// A draft of 24 tokens behind 100 keys of the past.
ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 24, s.Tk = 124, s.dk = 12, s.dv = 9, s.weights = true,
  s.scores = ScoreStage::kMasked;
  s.parents = DType::kI32, s.causal = Causal::kBottomRight;
  return s;
}

// For each sequence, query i and node n, in this order: whether n is i or above it, the slow way:
// the path from i to its root, written down.
std::vector<char> Paths(const RandomProblem& p) {
  const ProblemSpec& s = p.spec;
  std::vector<char> on_path(static_cast<size_t>(s.B * s.Tq * s.Tq), 0);
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t i = 0; i < s.Tq; ++i) {
      for (int64_t n = i; n != -1; n = static_cast<int64_t>(p.parents.At({b, n})))
        on_path[static_cast<size_t>((b * s.Tq + i) * s.Tq + n)] = 1;
    }
  }
  return on_path;
}

// p without its tree, but with a mask of all pairs that tree and mask allow.
RandomProblem SpelledOut(const RandomProblem& p) {
  const int64_t Tq = p.spec.Tq;
  const std::vector<char> on_path = Paths(p);
  RandomProblem spelled = test::WithMaskOf(p, [&](int64_t b, int64_t, int64_t i, int64_t j) {
    const int64_t node = j - p.Offset(b);
    return node < 0 || (node < Tq && on_path[static_cast<size_t>((b * Tq + i) * Tq + node)] != 0);
  });
  spelled.parents = OwnedTensor();
  spelled.Refresh();
  return spelled;
}

void ExpectTheMaskItSpellsOut(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem spelled = SpelledOut(p);
  test::ExpectTheSameBits(p, spelled, options);
  test::ExpectMatchesReference(p, options);
}

// Gives every node of every sequence of p the parent parent(i).
void SetTree(RandomProblem& p, const std::function<int64_t(int64_t i)>& parent) {
  for (int64_t n = 0; n < p.parents.size(); ++n)
    p.parents.Set(n, static_cast<double>(parent(n % p.spec.Tq)));
}

TEST(TreeTest, RandomTreesBehindAPast) {
  uint64_t seed = test::BaseSeed();
  for (int64_t Tq : {1, 2, 7, 16, 33, 70}) {
    for (Causal causal : test::Thinned({Causal::kNone, Causal::kBottomRight})) {
      ProblemSpec s = Spec();
      s.Tq = Tq, s.Tk = Tq + 61, s.causal = causal,
      s.parents = Tq % 2 == 0 ? DType::kI32 : DType::kI64;
      if (causal == Causal::kNone) s.query_offset = 61;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(TreeTest, AnOffsetOfBottomRightIsTheOffsetWithoutCausal) {
  // A tree only looks back at nodes, so being causal removes nothing more.
  ProblemSpec s = Spec();
  RandomProblem causal(s, test::BaseSeed());
  s.causal = Causal::kNone, s.query_offset = s.Tk - s.Tq;
  RandomProblem plain(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto())
    EXPECT_TRUE(Same(RunSerial(kernel, causal), RunSerial(kernel, plain))) << ToString(kernel);
}

TEST(TreeTest, AnyGroupOfQueryHeads) {
  for (int64_t group : test::Thinned({1, 2, 3, 8, 16}, 2)) {
    ProblemSpec s = Spec();
    s.Hq = 2 * group;
    RandomProblem p(s, test::BaseSeed() + static_cast<uint64_t>(group));
    ExpectTheMaskItSpellsOut(p);
  }
}

TEST(TreeTest, LengthsAndOffsetsOfEachSequence) {
  uint64_t seed = test::BaseSeed();
  // 5: what depends on the remainders of 2 and 3 goes on changing
  for (int64_t which : test::Thinned(test::Numbers(0, 11), 5)) {
    ProblemSpec s = Spec();
    s.B = 4, s.q_lengths = which % 2 == 0 ? DType::kI32 : DType::kNone,
    s.kv_lengths = which % 3 == 0 ? DType::kNone : DType::kI64;
    // negative ones too: the first nodes have no key then
    if (which >= 4) s.query_offsets = DType::kI32;
    if (which >= 8) s.causal = Causal::kNone;
    RandomProblem p(s, ++seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExpectTheMaskItSpellsOut(p);
  }
}

TEST(TreeTest, KeysBehindTheLastNodeAreNobodys) {
  ProblemSpec s = Spec();
  s.causal = Causal::kNone;
  for (int64_t offset : test::Thinned({-30, -24, -23, -1, 0, 1, 50, 100, 123, 124, 1000}, 4)) {
    s.query_offset = offset;
    RandomProblem p(s, test::BaseSeed());
    SCOPED_TRACE("offset " + std::to_string(offset));
    ExpectTheMaskItSpellsOut(p);
  }
}

TEST(TreeTest, WithEverythingElseThatRemovesPairs) {
  ProblemSpec s = Spec();
  s.mask = Axes::kBHQK, s.mask_type = DType::kBit, s.bias = Axes::kQK, s.bias_removes = 0.1,
  s.alibi = true, s.sinks = true, s.softcap = 3;
  for (Window window : {Window{-1, -1}, Window{60, -1}, Window{9, 3}}) {
    s.window = window;
    RandomProblem p(s, test::BaseSeed());
    ExpectTheMaskItSpellsOut(p);
  }
  s.block_map = Axes::kQK, s.block_queries = 5, s.block_keys = 20;
  RandomProblem p(s, test::BaseSeed());
  ExpectTheMaskItSpellsOut(p);
}

TEST(TreeTest, TinyTilesBlocksAndSplits) {
  test::ForTinyTilesBlocksAndSplits(Spec(), ExpectTheMaskItSpellsOut);
}

TEST(TreeTest, AChainIsCausal) {
  for (int64_t Tq : {1, 5, 24, 75, 200}) {
    for (int64_t past : test::Thinned({0, 1, 70, 200})) {
      ProblemSpec s = Spec();
      s.Tq = Tq, s.Tk = Tq + past, s.weights = Tq < 75, s.scores.reset();
      RandomProblem chain(s, test::BaseSeed());
      SetTree(chain, [](int64_t i) { return i - 1; });
      RandomProblem causal = chain;
      causal.parents = OwnedTensor();
      causal.Refresh();
      RandomProblem nameless = chain;  // not causal by name
      nameless.spec.causal = Causal::kNone, nameless.spec.query_offset = past;
      nameless.Refresh();
      for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
        const test::Outcome expected = RunSerial(kernel, causal);
        EXPECT_TRUE(Same(RunSerial(kernel, chain), expected))
            << ToString(kernel) << " Tq " << Tq << " past " << past;
        EXPECT_TRUE(Same(RunSerial(kernel, nameless), expected))
            << ToString(kernel) << " Tq " << Tq << " past " << past << " nameless";
      }
    }
  }
}

TEST(TreeTest, RootsSeeThePastAndThemselves) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  SetTree(p, [](int64_t) { return -1; });
  ExpectTheMaskItSpellsOut(p);
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, p);
    for (int64_t i = 0; i < s.Tq; ++i) {
      for (int64_t j = 0; j < s.Tk; ++j) {
        const bool sees = j < s.Tk - s.Tq || j - (s.Tk - s.Tq) == i;
        ASSERT_EQ(p.scores.At({1, 3, i, j}) > -std::numeric_limits<double>::infinity(), sees)
            << ToString(kernel) << " " << i << " " << j;
      }
    }
  }
}

TEST(TreeTest, StarsCombsAndTwins) {
  const std::function<int64_t(int64_t)> trees[] = {
      [](int64_t i) { return i == 0 ? -1 : 0; },               // everybody below the first
      [](int64_t i) { return i == 0 ? -1 : (i - 1) / 2; },     // binary
      [](int64_t i) { return i < 2 ? -1 : i - 2; },            // two chains in turns
      [](int64_t i) { return i % 8 == 0 ? -1 : i - 1; },       // three chains one behind the other
      [](int64_t i) { return i == 0 ? -1 : (i - 1) / 8 * 8; }  // a chain with bunches
  };
  for (const auto& tree : trees) {
    ProblemSpec s = Spec();
    s.B = 1, s.Tq = test::GridStep() > 1 ? 40 : 70, s.Tk = s.Tq + 100;
    RandomProblem p(s, test::BaseSeed());
    SetTree(p, tree);
    ExpectTheMaskItSpellsOut(p);
  }
}

// Trees of more nodes than a block or a tile has: of some blocks every query sees all keys, of
// others none or some. `random` is for those that are drawn.
struct Shape {
  const char* name;
  std::function<int64_t(int64_t i, test::Random& random)> parent;
};
const Shape kShapes[] = {
    {"chain", [](int64_t i, test::Random&) { return i - 1; }},
    {"roots", [](int64_t, test::Random&) { return int64_t{-1}; }},
    {"star", [](int64_t i, test::Random&) { return i == 0 ? -1 : int64_t{0}; }},
    {"chains one behind the other",
     [](int64_t i, test::Random&) { return i % 150 == 0 ? -1 : i - 1; }},
    {"chains in turns", [](int64_t i, test::Random&) { return i < 3 ? -1 : i - 3; }},
    {"binary", [](int64_t i, test::Random&) { return i == 0 ? -1 : (i - 1) / 2; }},
    {"branches of a trunk",
     [](int64_t i, test::Random&) { return i < 140   ? i - 1
                                           : i < 260 ? i - 140
                                                     : i - 120; }},
    {"near",
     [](int64_t i, test::Random& random) {
       return i - random.Between(1, std::min<int64_t>(i + 1, 9));
     }},
    {"anywhere", [](int64_t i, test::Random& random) { return random.Between(-1, i - 1); }}};

// A tree of the shape, nodes drawn anew for each sequence.
void SetShape(RandomProblem& p, const Shape& shape) {
  test::Random random(test::BaseSeed());
  for (int64_t n = 0; n < p.parents.size(); ++n)
    p.parents.Set(n, static_cast<double>(shape.parent(n % p.spec.Tq, random)));
}

TEST(TreeTest, IntervalsSayWhatPathsSay) {
  ProblemSpec s = Spec();
  s.Tq = 300, s.Tk = 1;
  for (const Shape& shape : kShapes) {
    RandomProblem p(s, test::BaseSeed());
    SetShape(p, shape);
    const std::vector<char> on_path = Paths(p);
    std::vector<int32_t> numbers(static_cast<size_t>(2 * s.B * s.Tq));
    for (int64_t b = 0; b < s.B; ++b) {
      int32_t* const enter = numbers.data() + 2 * b * s.Tq;
      NumberNodes(p.parents.view(), b, s.Tq, enter, enter + s.Tq);
    }
    const QueryTrees trees = {numbers.data(), s.Tq};
    for (int64_t n = 0; n < s.B * s.Tq * s.Tq; ++n) {
      const int64_t b = n / (s.Tq * s.Tq), i = n / s.Tq % s.Tq, node = n % s.Tq;
      ASSERT_EQ(trees.Sees(b, i, node), on_path[static_cast<size_t>(n)] != 0)
          << shape.name << " " << b << " " << i << " " << node;
    }
  }
}

TEST(TreeTest, TreesOfManyBlocks) {
  for (const Shape& shape : kShapes) {
    for (const int64_t past : test::Thinned({0, 61, 128}, 2)) {
      ProblemSpec s = Spec();
      s.B = 1, s.Hq = 3, s.Hkv = 1, s.Tq = 300, s.Tk = s.Tq + past;
      if (past == 61) s.causal = Causal::kNone, s.query_offset = past;
      if (past == 128) s.key_ranges = DType::kI32;
      RandomProblem p(s, test::BaseSeed());
      SetShape(p, shape);
      SCOPED_TRACE(std::string(shape.name) + " behind " + std::to_string(past));
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(TreeTest, NoNaNOfNodesThatAQueryDoesNotSee) {
  for (const Shape& shape : kShapes) {
    ProblemSpec s = Spec();
    s.B = 1, s.Hq = 2, s.Hkv = 1, s.Tq = 300, s.Tk = 361, s.weights = false, s.scores.reset();
    RandomProblem p(s, test::BaseSeed());
    SetShape(p, shape);
    for (const int64_t j : {3, 61, 70, 211, 280, 360}) {
      p.v.SetAt({0, 0, j, 2}, std::numeric_limits<double>::quiet_NaN());
      p.k.SetAt({0, 0, j + 1 < s.Tk ? j + 1 : 0, 1}, std::numeric_limits<double>::infinity());
    }
    SCOPED_TRACE(shape.name);
    test::ExpectMatchesReference(p);
  }
}

// Scores that are computed, by calls of a function of the caller's, which sees them all.
int64_t ScoresComputed(RandomProblem& p, const Kernel& kernel) {
  int64_t scores = 0;
  p.problem.score.function = {[](void* context, const ScoreBlock* block) noexcept {
                                *static_cast<int64_t*>(context) += block->rows * block->keys;
                              },
                              &scores};
  RunSerial(kernel, p);
  p.problem.score.function = {};
  return scores;
}

TEST(TreeTest, WhatNoQuerySeesIsNotComputed) {
  for (const Shape& shape : kShapes) {
    ProblemSpec s = Spec();
    s.B = 1, s.Hq = 2, s.Hkv = 1, s.Tq = 600, s.Tk = 600, s.weights = false, s.scores.reset(),
    s.causal = Causal::kNone, s.query_offset = 0;
    RandomProblem tree(s, test::BaseSeed());
    SetShape(tree, shape);
    RandomProblem mask = SpelledOut(tree), causal = tree;
    causal.spec.causal = Causal::kBottomRight, causal.parents = OwnedTensor();
    causal.Refresh();
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
      const int64_t computed = ScoresComputed(tree, kernel);
      EXPECT_LE(computed, ScoresComputed(mask, kernel)) << ToString(kernel) << " " << shape.name;
      EXPECT_LE(computed, ScoresComputed(causal, kernel)) << ToString(kernel) << " " << shape.name;
    }
  }
}

TEST(TreeTest, CostsTwoNumbersForEachQuery) {
  ProblemSpec s = Spec();
  for (const int64_t Tq : {24, 100, 1000}) {
    s.Tq = Tq, s.Tk = Tq + 50;
    RandomProblem tree(s, test::BaseSeed());
    RandomProblem none = tree;
    none.parents = OwnedTensor();
    none.Refresh();
    for (const Kernel& kernel : test::Kernels()) {
      Plan with, without;
      ASSERT_TRUE(Plan::Create(tree.problem, test::Options(kernel), &with).ok());
      ASSERT_TRUE(Plan::Create(none.problem, test::Options(kernel), &without).ok());
      EXPECT_EQ(with.WorkspaceBytes(3) - without.WorkspaceBytes(3),
                static_cast<size_t>(s.B * (Tq + 15) / 16 * 16 * 8))
          << ToString(kernel);
    }
  }
}

TEST(TreeTest, OfMoreQueriesThanAreNumberedIsUnsupported) {
  constexpr int64_t kMany = int64_t{1} << 31;
  const float x = 1;
  float y = 0;
  const int32_t root = -1;
  Problem p;
  p.q = View(&x, {1, 1, kMany, 1}, {0, 0, 0, 0});
  p.k = p.v = View(&x, {1, 1, 1, 1});
  p.out = View(&y, {1, 1, kMany, 1}, {0, 0, 0, 0});
  p.score.parents = View(&root, {1, kMany}, {0, 0});
  Plan plan;
  const Status status = Plan::Create(p, PlanOptions(), &plan);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(std::string(status.message()).find("parents.shape[1] = 2147483648"), std::string::npos)
      << status.message();
}

TEST(TreeTest, ParentsOfAnyStrideAndPlace) {
  const RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::parents);
  RandomProblem one = test::Repeated(p, &RandomProblem::parents, 0b01);  // for all sequences
  ExpectTheMaskItSpellsOut(one);
}

TEST(TreeTest, NoQueriesKeysOrSequences) { test::ExpectNothingOfNothing(Spec()); }

TEST(TreeTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectOnePlanServes(
      p, [&](int run) { SetTree(p, [&](int64_t i) { return i <= run ? -1 : i - run - 1; }); });
}

}  // namespace
}  // namespace fovea
