// Trees of queries (speculative decoding): a tree is the mask that it spells out, bit for bit, and
// a chain is causal attention.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/equivalent.h"
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
  uint64_t seed = test::BaseSeed();
  for (int32_t rows : {1, 3, 8}) {
    for (int32_t keys : test::Thinned({1, 4, 16, 33}, 2)) {
      PlanOptions options;
      options.tile_rows = rows, options.block_keys = keys, options.split_keys = rows == 3 ? 40 : 0;
      RandomProblem p(Spec(), ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p, options);
    }
  }
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

TEST(TreeTest, ParentsOfAnyStrideAndPlace) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::kPlacements) {
      RandomProblem p(Spec(), test::BaseSeed()), moved = p;
      moved.parents = p.parents.CopiedTo({layout, placement});
      moved.Refresh();
      for (const Kernel& kernel : test::Thinned(test::Kernels()))
        EXPECT_TRUE(Same(RunSerial(kernel, moved), RunSerial(kernel, p))) << ToString(kernel);
    }
  }
  // One tree for all sequences by a stride of 0.
  RandomProblem p(Spec(), test::BaseSeed());
  p.parents = p.parents.CopiedTo({Layout::kDense, Placement::kAligned, 0b01});
  p.Refresh();
  ExpectTheMaskItSpellsOut(p);
}

TEST(TreeTest, NoQueriesAndNoKeys) {
  ProblemSpec s = Spec();
  s.Tk = 0;
  RandomProblem keyless(s, test::BaseSeed());
  test::ExpectMatchesReference(keyless);
  s = Spec();
  s.Tq = 0;
  RandomProblem idle(s, test::BaseSeed());
  test::ExpectMatchesReference(idle);
}

TEST(TreeTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  const std::vector<Kernel> kernels = test::Kernels();
  std::vector<Plan> plans(kernels.size());
  for (size_t n = 0; n < kernels.size(); ++n)
    ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernels[n]), &plans[n]).ok());
  for (int64_t step : {1, 2, 3}) {
    SetTree(p, [&](int64_t i) { return i < step ? -1 : i - step; });
    const reference::ForwardResult expected = reference::Forward(p.problem);
    for (size_t n = 0; n < kernels.size(); ++n) {
      const test::Memory memory(plans[n].WorkspaceBytes(1), Placement::kAligned, 1);
      p.ResetOutputs();
      const Status status = fovea::Run(plans[n], p.problem, {memory.data(), memory.bytes()});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernels[n]) << " step " << step;
    }
  }
}

}  // namespace
}  // namespace fovea
