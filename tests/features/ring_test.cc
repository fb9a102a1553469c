// Rings and caches that have dropped their oldest keys: the bits of the whole cache under a window
// that hides what was dropped, wherever the first key lies.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/refusal.h"
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

// One sequence of Tk keys whose queries see the last `window` of them.
ProblemSpec WholeSpec(int64_t Tk, int64_t Tq, int64_t window) {
  ProblemSpec s;
  s.Hq = 6, s.Hkv = 2, s.Tq = Tq, s.Tk = Tk, s.dk = 20, s.dv = 18;
  s.causal = Causal::kBottomRight, s.window.left = window - 1;
  return s;
}

// The columns of a bias or mask from `first` on.
TensorView From(TensorView view, int64_t first) {
  const int key = view.rank - 1;
  if (!view.present() || view.shape[key] == 1) return view;
  view.data = static_cast<const char*>(view.data) + first * view.stride[key];
  view.shape[key] -= first;
  return view;
}

// `whole` without its first keys, of which nothing is left to read.
RandomProblem Evicted(const RandomProblem& whole, int64_t first, OwnedTensor& offsets) {
  const ProblemSpec& s = whole.spec;
  RandomProblem evicted = whole;
  const int64_t keys = s.Tk - first;
  evicted.k = OwnedTensor(s.k_type, {1, s.Hkv, keys, s.dk},
                          {test::Layout::kDense, test::Placement::kAfterGuard});
  evicted.v = OwnedTensor(s.v_type, {1, s.Hkv, keys, s.dv},
                          {test::Layout::kDense, test::Placement::kAfterGuard});
  for (int64_t h = 0; h < s.Hkv; ++h) {
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t c = 0; c < s.dk; ++c)
        evicted.k.SetAt({0, h, j, c}, whole.k.At({0, h, first + j, c}));
      for (int64_t c = 0; c < s.dv; ++c)
        evicted.v.SetAt({0, h, j, c}, whole.v.At({0, h, first + j, c}));
    }
  }
  evicted.Refresh();
  offsets = OwnedTensor(DType::kI64, {1});
  offsets.Set(0, static_cast<double>(first));
  evicted.problem.score.key_offsets = offsets.view();
  evicted.problem.score.bias = From(whole.bias.view(), first);
  evicted.problem.score.mask = From(whole.mask.view(), first);
  for (MutableTensorView* matrix : {&evicted.problem.weights, &evicted.problem.scores}) {
    if (!matrix->present()) continue;
    matrix->data = static_cast<char*>(matrix->data) + first * matrix->stride[3];
    matrix->shape[3] -= first;
  }
  return evicted;
}

// The last `capacity` keys of `whole` in a ring; rows that hold none are NaN.
RandomProblem InRing(const RandomProblem& whole, int64_t capacity, OwnedTensor& length) {
  const ProblemSpec& s = whole.spec;
  RandomProblem ring = whole;
  ring.k = OwnedTensor(s.k_type, {1, s.Hkv, capacity, s.dk});
  ring.v = OwnedTensor(s.v_type, {1, s.Hkv, capacity, s.dv});
  const int64_t first = std::max<int64_t>(s.Tk - capacity, 0);
  for (int64_t h = 0; h < s.Hkv; ++h) {
    for (int64_t p = first; p < s.Tk; ++p) {
      for (int64_t c = 0; c < s.dk; ++c)
        ring.k.SetAt({0, h, p % capacity, c}, whole.k.At({0, h, p, c}));
      for (int64_t c = 0; c < s.dv; ++c)
        ring.v.SetAt({0, h, p % capacity, c}, whole.v.At({0, h, p, c}));
    }
  }
  ring.Refresh();
  length = OwnedTensor(DType::kI32, {1});
  length.Set(0, static_cast<double>(s.Tk));
  ring.problem.score.kv_lengths = length.view();
  ring.problem.ring = true;
  return ring;
}

std::vector<Kernel> AllKernels(const Problem& problem) {
  std::vector<Kernel> kernels = test::KernelsAndAuto();
  for (const Kernel& kernel : test::KernelsFor(problem)) kernels.push_back(kernel);
  return kernels;
}

// out and lse; matrices have other columns.
void ExpectTheBitsOfTheWhole(RandomProblem& whole, RandomProblem& part, const std::string& what,
                             const PlanOptions& options = {}) {
  for (const Kernel& kernel : AllKernels(whole.problem)) {
    PlanOptions with = options;
    with.product = kernel.product;
    EXPECT_TRUE(Same(RunSerial(kernel, part, with), RunSerial(kernel, whole, with)))
        << ToString(kernel) << ", " << what << "\n"
        << ToString(whole.spec);
  }
}

TEST(RingTest, EveryPhaseHasTheBitsOfTheWholeUnderAWindow) {
  uint64_t seed = test::BaseSeed();
  for (int64_t capacity : {1, 40, 64, 100, 130}) {
    for (int64_t Tq : test::Thinned({1, 3, 20})) {
      if (Tq > capacity) continue;
      for (DType type : test::Thinned({DType::kF32, DType::kBF16}, 2)) {
        for (int64_t Tk : test::Numbers(capacity, 3 * capacity + 5, capacity / 7 + 1)) {
          ProblemSpec s = test::WithTypes(WholeSpec(Tk, Tq, capacity - Tq + 1), type);
          s.alibi = Tk % 2 == 0, s.sinks = Tk % 3 == 0, s.function = Tk % 4 == 1;
          RandomProblem whole(s, ++seed);
          OwnedTensor length;
          RandomProblem ring = InRing(whole, capacity, length);
          ExpectTheBitsOfTheWhole(whole, ring, "a ring of " + std::to_string(capacity));
        }
      }
    }
  }
}

TEST(RingTest, EvictedCachesHaveTheBitsOfTheWholeUnderAWindow) {
  uint64_t seed = test::BaseSeed();
  for (int64_t first : {0, 1, 5, 31, 32, 63, 64, 65, 127, 128, 129, 200, 511, 512, 513, 1000}) {
    for (int64_t Tq : test::Thinned({1, 20, 40}, 2)) {
      for (DType type : test::Thinned({DType::kF32, DType::kBF16}, 2)) {
        const int64_t Tk = first + 150;
        ProblemSpec s = test::WithTypes(WholeSpec(Tk, Tq, Tk - first - Tq + 1), type);
        s.sinks = true;
        if (first % 2 == 0) s.bias = Axes::kHQK, s.mask = Axes::kQK;
        if (first % 3 == 0) s.bias = Axes::kK, s.bias_removes = 0.1;
        if (first % 5 == 0) s.key_ranges = DType::kI64;
        if (first % 7 == 0) s.mask = Axes::kHQK, s.mask_type = DType::kBool;
        RandomProblem whole(s, ++seed);
        OwnedTensor offsets;
        RandomProblem evicted = Evicted(whole, first, offsets);
        const std::string what = "evicted up to " + std::to_string(first);
        ExpectTheBitsOfTheWhole(whole, evicted, what);
        PlanOptions options;
        options.split_keys = 64;
        ExpectTheBitsOfTheWhole(whole, evicted, what + ", splits of 64", options);
        options.block_keys = 16, options.tile_rows = 3;
        ExpectTheBitsOfTheWhole(whole, evicted, what + ", blocks of 16", options);
      }
    }
  }
}

// Weights and scores of an evicted cache are columns of the whole one's.
TEST(RingTest, MatricesHaveTheColumnsOfResidentKeys) {
  uint64_t seed = test::BaseSeed();
  for (int64_t first : {3, 64, 70, 130}) {
    for (ScoreStage stage : {ScoreStage::kMasked, ScoreStage::kWeights}) {
      for (int64_t Tq : {1, 20}) {
        const int64_t Tk = first + 90;
        ProblemSpec s = WholeSpec(Tk, Tq, 90 - Tq + 1);
        s.weights = true, s.scores = stage, s.mask = Axes::kBHQK;
        RandomProblem whole(s, ++seed);
        OwnedTensor offsets;
        RandomProblem evicted = Evicted(whole, first, offsets);
        for (const Kernel& kernel : test::Kernels()) {
          RunSerial(kernel, whole);
          const std::vector<double> weights = whole.weights.Dense(), scores = whole.scores.Dense();
          RunSerial(kernel, evicted);
          for (int64_t n = 0; n < whole.weights.size(); ++n) {
            if (n % Tk < first) {
              ASSERT_TRUE(evicted.weights.ElementUntouched(n) && evicted.scores.ElementUntouched(n))
                  << ToString(kernel) << " a column of nobody";
              continue;
            }
            ASSERT_EQ(evicted.weights.Get(n), weights[static_cast<size_t>(n)])
                << ToString(kernel) << " column " << n % Tk - first;
            ASSERT_EQ(evicted.scores.Get(n), scores[static_cast<size_t>(n)])
                << ToString(kernel) << " column " << n % Tk - first;
          }
        }
      }
    }
  }
}

TEST(RingTest, RandomRingsAndOffsets) {
  uint64_t seed = test::BaseSeed();
  for (int which = 0; which < 24; ++which) {
    ProblemSpec s;
    s.B = 3, s.Hq = 4, s.Hkv = 2, s.Tq = which % 3 == 0 ? 1 : 17, s.Tk = 150, s.dk = 20, s.dv = 18,
    s.weights = true;
    const bool ring = which % 2 == 0;
    s.ring = ring;
    if (ring && which % 8 != 0) s.kv_lengths = DType::kI64;
    if (!ring) s.key_offsets = which % 4 == 1 ? DType::kI32 : DType::kI64;
    if (!ring && which % 3 == 0) s.kv_lengths = DType::kI32;
    if (which % 3 != 1) s.causal = Causal::kBottomRight;
    if (which % 5 == 0) s.window = {40, 3};
    if (which % 5 == 1) s.bias = Axes::kBHQK, s.bias_removes = 0.2;
    if (which % 5 == 2) s.mask = Axes::kHQK, s.scores = ScoreStage::kSoftcapped, s.softcap = 2;
    if (which % 5 == 3) s.block_map = Axes::kQK, s.block_queries = 5, s.block_keys = 30;
    if (which % 5 == 4) s.key_ranges = DType::kI32, s.scores = ScoreStage::kScaled;
    if (which % 7 == 0) s.parents = DType::kI32;
    if (which % 7 == 1) s.alibi = true, s.sinks = true, s.function = true;
    if (which % 7 == 2) s.mask = Axes::kB11K, s.mask_type = DType::kBit, s.query_offset = 100;
    if (which % 7 == 3) s = test::WithTypes(s, DType::kBF16);
    if (which % 7 == 4) s.bias = Axes::kB11K, s.bias_scales = true;
    test::ExpectMatchesReference(s, ++seed);
  }
}

TEST(RingTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 7, s.Tk = 60, s.dk = 8, s.dv = 9, s.weights = true;
  s.ring = true, s.kv_lengths = DType::kI32, s.causal = Causal::kBottomRight, s.mask = Axes::kBHQK;
  test::ForTinyTilesBlocksAndSplits(s);
  s.ring = false, s.key_offsets = DType::kI32, s.sinks = true;
  test::ForTinyTilesBlocksAndSplits(s);
}

// NaN in dropped rows that share a block with visible ones, and in V of keys that some rows see.
TEST(RingTest, WhatIsNotFiniteReachesThoseWhoSeeIt) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t Tk : {100, 130, 171}) {
    for (int64_t Tq : {2, 20}) {
      ProblemSpec s = WholeSpec(Tk, Tq, 50);
      RandomProblem whole(s, test::BaseSeed());
      OwnedTensor length;
      RandomProblem ring = InRing(whole, 90, length);
      // The oldest visible key, which the last query does not see.
      ring.v.SetAt({0, 1, (Tk - Tq - 49) % 90, 3}, kNan);
      ring.v.SetAt({0, 0, (Tk - 90) % 90, 3}, kNan);  // seen by nobody
      const reference::ForwardResult want = reference::Forward(ring.problem);
      for (const Kernel& kernel : test::Kernels()) {
        test::RunOn(kernel, ring);
        EXPECT_TRUE(test::Matches(ring.problem, want)) << ToString(kernel) << " Tk " << Tk;
      }
    }
  }
}

TEST(RingTest, PositionsMayBeFarOut) {
  const int64_t far = int64_t{1} << 61, length = 70;
  ProblemSpec s = WholeSpec(100, 3, 50);
  s.alibi = true;
  RandomProblem p(s, test::BaseSeed());
  RandomProblem moved = p;
  const int64_t lengths = far + length, offset = far;
  moved.problem.score.kv_lengths = View(&length, {1});
  moved.problem.score.key_offsets = View(&offset, {1});
  for (const Kernel& kernel : test::Kernels()) {
    // Splits are others than those of the first positions, so that bits are not the same.
    test::RunOn(kernel, moved);
    const reference::ForwardResult expected = reference::Forward(moved.problem);
    EXPECT_TRUE(test::Matches(moved.problem, expected)) << ToString(kernel);
  }
  RandomProblem ring(s, test::BaseSeed());
  ring.problem.ring = true;
  ring.problem.score.kv_lengths = View(&lengths, {1});
  const reference::ForwardResult expected = reference::Forward(ring.problem);
  for (const Kernel& kernel : test::Kernels()) {
    test::RunOn(kernel, ring);
    EXPECT_TRUE(test::Matches(ring.problem, expected)) << ToString(kernel);
  }
}

TEST(RingTest, PlansBindWhereKeysBegin) {
  ProblemSpec s;
  s.B = 2, s.Tq = 1, s.Tk = 30, s.dk = s.dv = 4, s.key_offsets = DType::kI32;
  RandomProblem p(s, test::BaseSeed());
  p.key_offsets.Set(0, 3), p.key_offsets.Set(1, 7);
  RandomProblem other = p;
  other.key_offsets = p.key_offsets.CopiedTo({});
  other.key_offsets.Set(1, 8);
  other.Refresh();
  EXPECT_TRUE(test::RefusesToRun(p, other, "key_offsets[1]"));
  RandomProblem ring = p;
  ring.key_offsets = OwnedTensor();
  ring.spec.ring = true;
  ring.Refresh();
  EXPECT_TRUE(test::RefusesToRun(p, ring, "ring"));
  Plan plan;
  ASSERT_TRUE(Plan::Create(ring.problem, {}, &plan).ok());
  EXPECT_NE(plan.ToString().find("ring"), std::string::npos) << plan.ToString();
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  EXPECT_NE(plan.ToString().find("from position 7"), std::string::npos) << plan.ToString();
}

TEST(RingTest, UpdateFollowsARing) {
  ProblemSpec s;
  s.B = 2, s.Hq = 2, s.Tq = 1, s.Tk = 50, s.dk = s.dv = 8, s.ring = true,
  s.kv_lengths = DType::kI64;
  s.causal = Causal::kBottomRight;
  RandomProblem p(s, test::BaseSeed());
  p.k.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.07; });
  p.v.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.03; });
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  for (int64_t n = 0; n < 170; n += 13) {
    p.kv_lengths.Set(0, static_cast<double>(n)), p.kv_lengths.Set(1, static_cast<double>(2 * n));
    p.Refresh();
    const Status status = plan.Update(p.problem);
    ASSERT_TRUE(status.ok()) << status.message();
    const test::Memory memory(plan.WorkspaceBytes(1), test::Placement::kAligned, 1);
    p.ResetOutputs();
    ASSERT_TRUE(fovea::Run(plan, p.problem, {memory.data(), memory.bytes()}).ok());
    EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem))) << n << " keys so far";
  }
}

TEST(RingTest, WrongOnesAreRefused) {
  ProblemSpec s;
  s.B = 2, s.Tq = 2, s.Tk = 30, s.dk = s.dv = 4;
  RandomProblem p(s, test::BaseSeed());
  const auto refuses = [&](std::initializer_list<const char*> words) {
    const testing::AssertionResult result = test::Refuses(p, words);
    p.Refresh();
    return result;
  };
  Problem& x = p.problem;
  const int64_t limit = int64_t{1} << 62;
  const int64_t beyond[] = {5, limit + 1}, negative[] = {-1, 4}, most[] = {limit, 5},
                offsets[] = {0, limit - 29};
  const int32_t starts[] = {0, 10, 30};
  x.score.key_offsets = View(negative, {2});
  EXPECT_TRUE(refuses({"key_offsets[0]", "-1", "0"}));
  x.score.key_offsets = View(beyond, {2});
  EXPECT_TRUE(refuses({"key_offsets[1]"}));
  x.score.key_offsets = View(offsets, {2});
  EXPECT_TRUE(refuses({"key_offsets[1]", "2^62"}));
  x.score.key_offsets = View(offsets, {1});
  EXPECT_TRUE(refuses({"key_offsets.shape[0]", "1", "2"}));
  x.score.key_offsets = View(most, {2}), x.score.key_offsets.data = nullptr;
  EXPECT_TRUE(refuses({"key_offsets.data", "null"}));
  x.score.key_offsets = View(most, {2}), x.score.key_offsets.dtype = DType::kF32;
  EXPECT_TRUE(refuses({"key_offsets.dtype", "f32"}));
  x.score.key_offsets = View(offsets, {2}), x.ring = true;
  EXPECT_TRUE(refuses({"ring", "key_offsets"}));
  x.cu_seqlens_k = View(starts, {3}), x.ring = true;
  x.k.shape[0] = x.v.shape[0] = 1;
  EXPECT_TRUE(refuses({"ring", "cu_seqlens_k"}));
  x.score.kv_lengths = View(beyond, {2}), x.ring = true;
  EXPECT_TRUE(refuses({"kv_lengths[1]", "2^62"}));
  x.score.kv_lengths = View(negative, {2}), x.ring = true;
  EXPECT_TRUE(refuses({"kv_lengths[0]", "-1"}));
  x.score.kv_lengths = View(most, {2});
  EXPECT_TRUE(refuses({"kv_lengths[0]", "30", "k.shape[2]"}));
  x.score.kv_lengths = View(most, {2}), x.ring = true;
  EXPECT_TRUE(Attention(x).ok());
}

}  // namespace
}  // namespace fovea
