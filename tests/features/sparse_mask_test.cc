// Masks that remove whole areas, which kernels skip: the results are those of the reference, and
// the bits of computing every pair and removing by a score function. So are biases of 0 and −inf.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "reference/element.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

constexpr int64_t kTq = 75, kTk = 300;

struct Pattern {
  const char* name;
  bool (*visible)(int64_t h, int64_t i, int64_t j);
};

// A number in [0, 1) that looks random, of a block.
double Noise(int64_t a, int64_t b) {
  uint64_t seed = static_cast<uint64_t>(a * 1000 + b);
  return test::Random(seed).Uniform();
}

constexpr Pattern kPatterns[] = {
    {"everything", [](int64_t, int64_t, int64_t) { return true; }},
    {"nothing", [](int64_t, int64_t, int64_t) { return false; }},
    {"causal from the top left", [](int64_t, int64_t i, int64_t j) { return j <= i; }},
    {"causal to the bottom right",
     [](int64_t, int64_t i, int64_t j) { return j <= i + kTk - kTq; }},
    {"anticausal", [](int64_t, int64_t i, int64_t j) { return j >= i + 100; }},
    {"window", [](int64_t, int64_t i, int64_t j) { return std::abs(j - i - 120) <= 10; }},
    {"diagonal", [](int64_t, int64_t i, int64_t j) { return j == i + 90; }},
    {"stripes of keys", [](int64_t, int64_t, int64_t j) { return j / 32 % 2 == 1; }},
    {"stripes of single keys", [](int64_t, int64_t, int64_t j) { return j % 3 == 1; }},
    {"stripes of queries", [](int64_t, int64_t i, int64_t) { return i / 16 % 2 == 1; }},
    {"every third query sees nothing", [](int64_t, int64_t i, int64_t) { return i % 3 != 0; }},
    {"chequers", [](int64_t, int64_t i, int64_t j) { return (i / 16 + j / 64) % 2 == 0; }},
    {"chequers off the grid",
     [](int64_t, int64_t i, int64_t j) { return ((i + 5) / 16 + (j + 37) / 64) % 2 == 0; }},
    {"documents", [](int64_t, int64_t i, int64_t j) { return i / 20 == j / 80; }},
    {"one pair", [](int64_t, int64_t i, int64_t j) { return i == 37 && j == 201; }},
    {"one pair in each area",
     [](int64_t, int64_t i, int64_t j) { return i % 16 == 7 && j % 64 == 41; }},
    {"all but one pair", [](int64_t, int64_t i, int64_t j) { return i != 37 || j != 201; }},
    {"first key", [](int64_t, int64_t, int64_t j) { return j == 0; }},
    {"last key", [](int64_t, int64_t, int64_t j) { return j == kTk - 1; }},
    {"first and last key", [](int64_t, int64_t, int64_t j) { return j == 0 || j == kTk - 1; }},
    {"the middle of every block",
     [](int64_t, int64_t, int64_t j) { return j % 64 >= 20 && j % 64 < 40; }},
    {"first query", [](int64_t, int64_t i, int64_t) { return i == 0; }},
    {"last query", [](int64_t, int64_t i, int64_t) { return i == kTq - 1; }},
    {"the last, smaller blocks", [](int64_t, int64_t i, int64_t j) { return i >= 64 && j >= 256; }},
    {"sinks and a window",
     [](int64_t, int64_t i, int64_t j) { return j < 4 || (j <= i + 225 && j > i + 200); }},
    {"areas at random", [](int64_t, int64_t i, int64_t j) { return Noise(i / 16, j / 64) < 0.4; }},
    {"areas at random, some of them with holes",
     [](int64_t, int64_t i, int64_t j) {
       return Noise(i / 16, j / 64) < 0.4 && (Noise(i / 16, j / 64) < 0.2 || Noise(i, j) < 0.5);
     }},
    {"one pair in a hundred", [](int64_t, int64_t i, int64_t j) { return Noise(i, j) < 0.01; }},
    {"heads that differ",
     [](int64_t h, int64_t i, int64_t j) {
       return h == 0 ? j <= i : h == 1 ? j > 200 : h == 2 ? false : true;
     }},
};

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 1, s.Hq = 4, s.Hkv = 2, s.Tq = kTq, s.Tk = kTk, s.dk = 12, s.dv = 9, s.mask = Axes::kHQK;
  return s;
}

void SetMask(RandomProblem& p, const Pattern& pattern) {
  const ProblemSpec& s = p.spec;
  for (int64_t n = 0; n < p.mask.size(); ++n)
    p.mask.Set(n, pattern.visible(n / (s.Tq * s.Tk), n / s.Tk % s.Tq, n % s.Tk));
}

// A bias in place of p's mask: 0 where it is true, else −inf.
OwnedTensor AsBias(const RandomProblem& p, DType type) {
  const TensorView mask = p.mask.view();
  OwnedTensor bias(type, std::vector<int64_t>(mask.shape, mask.shape + mask.rank));
  for (int64_t n = 0; n < p.mask.size(); ++n)
    bias.Set(n, p.mask.Get(n) != 0 ? 0 : -std::numeric_limits<double>::infinity());
  return bias;
}

// A score function: −inf where the mask that is its context is false.
void RemoveByMask(void* context, const ScoreBlock* block) noexcept {
  const TensorView& mask = *static_cast<const TensorView*>(context);
  for (int64_t r = 0; r < block->rows; ++r) {
    const int64_t i = block->query_positions[r] - block->offset;
    for (int64_t c = 0; c < block->keys; ++c) {
      const int64_t j = block->first_key_position + c;
      if (reference::BroadcastAt(mask, block->sequence, block->heads[r], i, j) != 0) continue;
      block->scores[r * block->row_stride + c * block->key_stride] =
          -std::numeric_limits<float>::infinity();
    }
  }
}

// The mask of p as bytes, bits and an additive bias, read by runs and by the plan, against a score
// function that removes the same pairs, of which nothing can be skipped.
void ExpectTheBitsOfAFunction(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem computed = p, bits = p;
  const OwnedTensor& mask = p.mask;
  const TensorView view = mask.view();
  computed.mask = OwnedTensor();
  computed.Refresh();
  computed.problem.score.function = {RemoveByMask, const_cast<TensorView*>(&view)};
  bits.mask = OwnedTensor(DType::kBit, std::vector<int64_t>(view.shape, view.shape + view.rank));
  for (int64_t n = 0; n < mask.size(); ++n) bits.mask.Set(n, mask.Get(n));
  bits.Refresh();
  std::vector<RandomProblem> biased;
  for (DType type : test::kFloatTypes) {
    biased.push_back(p);
    biased.back().bias = AsBias(p, type);
    biased.back().mask = OwnedTensor();
    biased.back().Refresh();
  }
  PlanOptions fixed = options;
  fixed.fixed_mask = fixed.fixed_bias = true;
  struct Way {
    RandomProblem* problem;
    const PlanOptions* options;
    const char* name;
  };
  for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
    const test::Outcome expected = RunSerial(kernel, computed, options);
    for (const Way& way : test::Thinned({Way{&p, &options, ""},
                                         {&bits, &options, " bits"},
                                         {&p, &fixed, " fixed"},
                                         {&bits, &fixed, " fixed bits"},
                                         {&biased[0], &options, " bias of f32"},
                                         {&biased[1], &options, " bias of f16"},
                                         {&biased[2], &options, " bias of bf16"},
                                         {&biased[0], &fixed, " fixed bias"}})) {
      EXPECT_TRUE(Same(RunSerial(kernel, *way.problem, *way.options), expected))
          << ToString(kernel) << way.name;
    }
  }
}

TEST(SparseMaskTest, EveryPatternMatchesTheReferenceAndTheBitsOfAFunction) {
  for (const Pattern& pattern : test::Thinned(kPatterns, 3)) {
    SCOPED_TRACE(pattern.name);
    RandomProblem p(Spec(), test::BaseSeed());
    SetMask(p, pattern);
    test::ExpectMatchesReference(p);
    ExpectTheBitsOfAFunction(p);
  }
}

TEST(SparseMaskTest, WithSinksWeightsAndScores) {
  for (const Pattern& pattern : test::Thinned(kPatterns)) {
    SCOPED_TRACE(pattern.name);
    ProblemSpec s = Spec();
    s.Hq = 2, s.Hkv = 1, s.sinks = true, s.weights = true, s.scores = ScoreStage::kMasked;
    RandomProblem p(s, test::BaseSeed());
    SetMask(p, pattern);
    test::ExpectMatchesReference(p);
    ExpectTheBitsOfAFunction(p);
  }
}

// A bias of numbers that also removes what a mask does. In some blocks it begins with a zero.
TEST(SparseMaskTest, ABiasOfNumbersMayRemoveAreasToo) {
  for (const Pattern& pattern : test::Thinned(kPatterns, 2)) {
    SCOPED_TRACE(pattern.name);
    for (DType type : test::kFloatTypes) {
      ProblemSpec s = Spec();
      s.bias = Axes::kHQK, s.bias_type = type;
      RandomProblem masked(s, test::BaseSeed());
      SetMask(masked, pattern);
      for (int64_t n = 0; n < masked.bias.size(); ++n) {
        const int64_t i = n / kTk % kTq, j = n % kTk;
        if (i % 16 == 0 && j % 64 == 0 && Noise(i, j) < 0.5) masked.bias.Set(n, n % 2 ? 0.0 : -0.0);
      }
      RandomProblem biased = masked;
      for (int64_t n = 0; n < biased.bias.size(); ++n) {
        if (masked.mask.Get(n) == 0) biased.bias.Set(n, -std::numeric_limits<double>::infinity());
      }
      biased.mask = OwnedTensor();
      biased.Refresh();
      test::ExpectMatchesReference(biased);
      PlanOptions fixed;
      fixed.fixed_bias = true;
      for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
        const test::Outcome expected = RunSerial(kernel, masked);
        EXPECT_TRUE(Same(RunSerial(kernel, biased), expected)) << ToString(kernel);
        EXPECT_TRUE(Same(RunSerial(kernel, biased, fixed), expected)) << ToString(kernel);
      }
    }
  }
}

// 0 · inf is NaN, whatever the zeros of a bias could spare.
TEST(SparseMaskTest, AnInfiniteScaleOfAZeroBias) {
  ProblemSpec s = Spec();
  s.mask = Axes::kAbsent, s.bias = Axes::kHQK, s.bias_scales = true;
  RandomProblem p(s, test::BaseSeed());
  p.bias.Fill([] { return 0.0; });
  p.bias_scales.Set(1, std::numeric_limits<double>::infinity());
  test::ExpectMatchesReference(p);
}

TEST(SparseMaskTest, TilesBlocksAndSplitsOfOtherSizes) {
  for (const Pattern& pattern : test::Thinned(kPatterns)) {
    SCOPED_TRACE(pattern.name);
    for (int which = 0; which < 4; ++which) {
      PlanOptions options;
      options.tile_rows = which == 0 ? 1 : which == 1 ? 5 : 0;
      options.block_keys = which == 0 ? 7 : which == 1 ? 64 : which == 2 ? 100 : 0;
      options.split_keys = which == 3 ? 50 : 0;
      ProblemSpec s = Spec();
      s.Hq = 2, s.Hkv = 1;
      RandomProblem p(s, test::BaseSeed());
      SetMask(p, pattern);
      ExpectTheBitsOfAFunction(p, options);
    }
  }
}

TEST(SparseMaskTest, WithCausalWindowAndLengths) {
  for (const Pattern& pattern : test::Thinned(kPatterns)) {
    SCOPED_TRACE(pattern.name);
    ProblemSpec s = Spec();
    s.B = 3, s.Hq = 2, s.Hkv = 1, s.causal = Causal::kBottomRight, s.window = {150, -1},
    s.kv_lengths = DType::kI32, s.q_lengths = DType::kI32, s.alibi = true;
    RandomProblem p(s, test::BaseSeed());
    SetMask(p, pattern);
    test::ExpectMatchesReference(p);
    ExpectTheBitsOfAFunction(p);
  }
}

TEST(SparseMaskTest, DecodeWithWholeSplitsRemoved) {
  const std::function<bool(int64_t j)> visible[] = {
      [](int64_t j) { return j < 3; },
      [](int64_t j) { return j >= 3000; },
      [](int64_t j) { return j / 256 % 3 == 1; },
      [](int64_t j) { return j == 1700; },
      [](int64_t) { return false; },
      [](int64_t j) { return Noise(1, j / 64) < 0.2; },
  };
  for (const auto& f : visible) {
    for (int64_t Tq : test::Thinned({1, 4})) {
      ProblemSpec s = Spec();
      s.Hq = 8, s.Tq = Tq, s.Tk = 3007, s.mask = Axes::kK;
      for (int64_t split : test::Thinned({0, 100})) {
        PlanOptions options;
        options.split_keys = split;
        RandomProblem p(s, test::BaseSeed());
        for (int64_t j = 0; j < s.Tk; ++j) p.mask.Set(j, f(j));
        test::ExpectMatchesReference(p, options);
        ExpectTheBitsOfAFunction(p, options);
      }
    }
  }
}

TEST(SparseMaskTest, AMaskThatLooksCausalIsCausal) {
  for (bool bottom_right : {false, true}) {
    ProblemSpec s = Spec();
    RandomProblem masked(s, test::BaseSeed());
    SetMask(masked, kPatterns[bottom_right ? 3 : 2]);
    RandomProblem causal = masked;
    causal.mask = OwnedTensor();
    causal.spec.causal = bottom_right ? Causal::kBottomRight : Causal::kTopLeft;
    causal.Refresh();
    for (const Kernel& kernel : test::KernelsAndAuto())
      EXPECT_TRUE(Same(RunSerial(kernel, masked), RunSerial(kernel, causal))) << ToString(kernel);
  }
}

TEST(SparseMaskTest, AMaskThatLooksLikeAWindowIsAWindow) {
  RandomProblem masked(Spec(), test::BaseSeed());
  SetMask(masked, kPatterns[5]);
  RandomProblem windowed = masked;
  windowed.mask = OwnedTensor();
  windowed.spec.window = {10, 10}, windowed.spec.query_offset = 120;
  windowed.Refresh();
  for (const Kernel& kernel : test::KernelsAndAuto())
    EXPECT_TRUE(Same(RunSerial(kernel, masked), RunSerial(kernel, windowed))) << ToString(kernel);
}

TEST(SparseMaskTest, AMaskOfNothingButTrueChangesNoBit) {
  for (Axes axes : {Axes::kK, Axes::kQK, Axes::kBHQK, Axes::k1}) {
    ProblemSpec s = Spec();
    s.mask = axes, s.mask_allows = 1;
    RandomProblem masked(s, test::BaseSeed());
    RandomProblem plain = masked;
    plain.mask = OwnedTensor();
    plain.Refresh();
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4))
      EXPECT_TRUE(Same(RunSerial(kernel, masked), RunSerial(kernel, plain))) << ToString(kernel);
  }
}

TEST(SparseMaskTest, NaNInWhatAllQueriesSkipDoesNotShow) {
  // Keys 64 … 191 are removed for everybody and hold NaN and Inf.
  RandomProblem p(Spec(), test::BaseSeed());
  SetMask(p, {"", [](int64_t, int64_t, int64_t j) { return j < 64 || j >= 192; }});
  RandomProblem spoilt = p;
  spoilt.k = p.k.CopiedTo({});
  spoilt.v = p.v.CopiedTo({});
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t j = 64; j < 192; ++j) {
      for (int64_t c = 0; c < 12; ++c)
        spoilt.k.SetAt({0, h, j, c},
                       j % 2 == 0 ? std::nan("") : std::numeric_limits<double>::infinity());
      for (int64_t c = 0; c < 9; ++c)
        spoilt.v.SetAt({0, h, j, c},
                       j % 3 == 0 ? std::nan("") : -std::numeric_limits<double>::infinity());
    }
  }
  spoilt.Refresh();
  for (const Kernel& kernel : test::KernelsAndAuto())
    EXPECT_TRUE(Same(RunSerial(kernel, spoilt), RunSerial(kernel, p))) << ToString(kernel);
}

}  // namespace
}  // namespace fovea
