// The kernels against the double reference through the public call: every usable target, both
// engines, over sizes, layouts and every part of the score. What the score's mathematics demands
// beyond the formula is in property_test.cc, NaN, Inf and empty rows in nonfinite_test.cc.
#include "fovea/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/pairwise.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;

// ---- every pair of values of all that a problem can have ----

constexpr int64_t kHeadSizes[][2] = {
    {1, 1},     {2, 3},     {3, 2},     {5, 8},     {8, 5},    {16, 16}, {31, 33}, {32, 32},
    {33, 31},   {40, 40},   {64, 64},   {64, 80},   {72, 72},  {80, 64}, {96, 96}, {127, 129},
    {128, 128}, {129, 127}, {192, 128}, {256, 256}, {65, 192}, {1, 17}};
constexpr int64_t kQueries[] = {1, 2, 3, 4, 7, 8, 9, 15, 17, 31, 33, 64, 75};
constexpr int64_t kKeys[] = {1, 2, 5, 8, 13, 31, 32, 33, 63, 65, 113, 128, 131};
constexpr int64_t kGroups[] = {1, 2, 3, 4, 5, 8, 16};
constexpr int64_t kBatches[][2] = {{1, 1}, {1, 2}, {2, 1}, {3, 2}};  // B, Hkv
constexpr Causal kCausal[] = {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight};
constexpr int kOffsets = 5;
constexpr Window kWindows[] = {{-1, -1}, {0, 0}, {3, -1}, {-1, 2}, {5, 7}, {100, 100}};
constexpr DType kLengths[][2] = {{DType::kNone, DType::kNone},
                                 {DType::kNone, DType::kI32},
                                 {DType::kI64, DType::kNone},
                                 {DType::kI32, DType::kI64}};
constexpr double kAllows[] = {0.03, 0.5, 0.95};
constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr double kRemoves[] = {0, 0.3};
constexpr float kSoftcaps[] = {0, 2, 30};
constexpr float kScales[] = {0, 0.3f, -1, 0};  // the first is the default scale
constexpr DType kMaskTypes[] = {DType::kBool, DType::kBit};
// Often absent: few pairs are left of many things that remove them.
constexpr Axes kBlockMaps[] = {Axes::kAbsent, Axes::kAbsent, Axes::kAbsent, Axes::kQK,
                               Axes::kHQK,    Axes::kK,      Axes::kAbsent, Axes::kAbsent,
                               Axes::kH1K,    Axes::kB1Q1,   Axes::kBHQK,   Axes::k1};
constexpr int64_t kBlockSizes[][2] = {{1, 1}, {2, 3}, {16, 5}, {7, 64}, {64, 64}, {100, 33}};
constexpr DType kTrees[] = {DType::kNone, DType::kNone, DType::kI32, DType::kI64};
constexpr DType kPackings[][2] = {{DType::kNone, DType::kNone},
                                  {DType::kI32, DType::kI64},
                                  {DType::kI64, DType::kNone},
                                  {DType::kNone, DType::kI32}};
constexpr int kScores = 5;  // absent, and each stage
constexpr int32_t kTileRows[] = {0, 1, 4};
constexpr int32_t kBlockKeys[] = {0, 1, 16};
constexpr int64_t kSplitKeys[] = {0, 16, 40};

template <class T, size_t N>
constexpr int Count(const T (&)[N]) {
  return static_cast<int>(N);
}

struct Case {
  ProblemSpec spec;
  PlanOptions options;
};

std::vector<Case> AllPairs() {
  const std::vector<int> levels = {Count(kHeadSizes),
                                   Count(kQueries),
                                   Count(kKeys),
                                   Count(kGroups),
                                   Count(kBatches),
                                   Count(kCausal),
                                   kOffsets,
                                   Count(kWindows),
                                   Count(kLengths),
                                   Count(test::kAllAxes),
                                   Count(kAllows),
                                   Count(test::kAllAxes),
                                   Count(kFloatTypes),
                                   Count(kRemoves),
                                   Count(kSoftcaps),
                                   2,  // ALiBi
                                   2,  // sinks
                                   2,  // lse
                                   2,  // weights
                                   Count(kScales),
                                   Count(test::kLayouts),
                                   Count(test::kLayouts),
                                   Count(test::kLayouts),
                                   Count(test::kLayouts),
                                   Count(test::kLayouts),
                                   Count(test::kPlacements),
                                   Count(test::kPlacements),
                                   Count(test::kPlacements),
                                   Count(test::kPlacements),
                                   Count(test::kPlacements),
                                   Count(kMaskTypes),
                                   2,  // fixed mask
                                   Count(kBlockMaps),
                                   Count(kBlockSizes),
                                   Count(kMaskTypes),  // of the block map
                                   Count(kTrees),
                                   Count(kPackings),
                                   kScores,
                                   Count(kTileRows),
                                   Count(kBlockKeys),
                                   Count(kSplitKeys),
                                   Count(kFloatTypes),
                                   Count(kFloatTypes),
                                   Count(kFloatTypes),
                                   Count(kFloatTypes)};
  std::vector<Case> cases;
  for (const std::vector<int>& row : test::CoverPairs(levels, test::BaseSeed())) {
    size_t f = 0;
    const auto next = [&] { return row[f++]; };
    Case c;
    ProblemSpec& s = c.spec;
    const auto& d = kHeadSizes[next()];
    s.dk = d[0], s.dv = d[1];
    s.Tq = kQueries[next()];
    s.Tk = kKeys[next()];
    const int64_t group = kGroups[next()];
    const auto& batch = kBatches[next()];
    s.B = batch[0], s.Hkv = batch[1];
    s.causal = kCausal[next()];
    const int offset = next();
    if (offset == 1) s.query_offset = s.Tk / 3;
    if (offset == 2) s.query_offset = -s.Tq / 3;
    if (offset == 3) s.query_offsets = DType::kI32;
    if (offset == 4) s.query_offsets = DType::kI64;
    s.window = kWindows[next()];
    const auto& lengths = kLengths[next()];
    s.q_lengths = lengths[0], s.kv_lengths = lengths[1];
    s.mask = test::kAllAxes[next()];
    s.mask_allows = kAllows[next()];
    s.bias = test::kAllAxes[next()];
    s.bias_type = kFloatTypes[next()];
    s.bias_removes = kRemoves[next()];
    s.softcap = kSoftcaps[next()];
    s.alibi = next() == 1;
    s.sinks = next() == 1;
    s.lse = next() == 1;
    s.weights = next() == 1;
    const int scale = next();
    if (scale != 0) s.scale = kScales[scale];
    for (test::Storage* storage : {&s.q, &s.k, &s.v, &s.out, &s.rest})
      storage->layout = test::kLayouts[next()];
    for (test::Storage* storage : {&s.q, &s.k, &s.v, &s.out, &s.rest})
      storage->placement = test::kPlacements[next()];
    s.mask_type = kMaskTypes[next()];
    s.fixed_mask = next() == 1;
    s.block_map = kBlockMaps[next()];
    const auto& block = kBlockSizes[next()];
    s.block_queries = block[0], s.block_keys = block[1];
    s.block_map_type = kMaskTypes[next()];
    s.parents = kTrees[next()];
    const auto& packing = kPackings[next()];
    s.cu_seqlens_q = packing[0], s.cu_seqlens_k = packing[1];
    const int scores = next();
    if (scores != 0) s.scores = static_cast<ScoreStage>(scores - 1);
    c.options.tile_rows = kTileRows[next()];
    c.options.block_keys = kBlockKeys[next()];
    c.options.split_keys = kSplitKeys[next()];
    for (DType* type : {&s.q_type, &s.k_type, &s.v_type, &s.out_type}) *type = kFloatTypes[next()];
    // The reference takes nanoseconds a product: the largest problems lose sequences, then KV
    // heads, then half of their queries.
    const auto work = [&] { return s.B * s.Hkv * group * s.Tq * s.Tk * (s.dk + s.dv); };
    if (work() > 8'000'000) s.B = 1;
    if (work() > 8'000'000) s.Hkv = 1;
    while (work() > 8'000'000) s.Tq = (s.Tq + 1) / 2;
    s.Hq = s.Hkv * group;
    for (test::Storage* storage : {&s.q, &s.out, &s.rest}) {  // 4 KiB a row
      if (storage->layout == Layout::kPage && s.B * s.Hq * s.Tq > 1000)
        storage->layout = Layout::kPadded;
    }
    cases.push_back(c);
  }
  return cases;
}

class AllPairsTest : public testing::TestWithParam<int> {
 public:
  static constexpr int kShards = 16;
};

TEST_P(AllPairsTest, MatchesTheReference) {
  static const std::vector<Case> cases = AllPairs();
  const int64_t step = AllPairsTest::kShards * test::GridStep();
  for (size_t n = static_cast<size_t>(GetParam()); n < cases.size();
       n += static_cast<size_t>(step)) {
    const uint64_t seed = test::BaseSeed() + n;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", case " + std::to_string(n));
    RandomProblem p(cases[n].spec, seed);
    test::ExpectMatchesReference(p, cases[n].options);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, AllPairsTest, testing::Range(0, AllPairsTest::kShards));

// ---- one thing at a time, in sizes of its own ----

void Check(const ProblemSpec& spec, uint64_t number, const PlanOptions& options = {}) {
  const uint64_t seed = test::BaseSeed() + 1000 + number;
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomProblem p(spec, seed);
  test::ExpectMatchesReference(p, options);
}

ProblemSpec Small() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 19, s.Tk = 45, s.dk = 24, s.dv = 20;
  return s;
}

TEST(AttentionTest, PlainProblem) { Check(Small(), 0); }

TEST(AttentionTest, EveryHeadSizeFromOneToForty) {
  for (int64_t d : test::Thinned(test::Numbers(1, 40), 5)) {
    ProblemSpec s;
    s.Tq = 5, s.Tk = 11, s.dk = d, s.dv = 41 - d;
    Check(s, static_cast<uint64_t>(d));
  }
}

TEST(AttentionTest, EveryNumberOfQueriesAroundTiles) {
  for (int64_t Tq : test::Thinned(test::Numbers(1, 70), 7)) {
    ProblemSpec s;
    s.Tq = Tq, s.Tk = 37, s.dk = 8, s.dv = 12, s.causal = Causal::kBottomRight;
    Check(s, static_cast<uint64_t>(Tq));
  }
}

TEST(AttentionTest, EveryNumberOfKeysAroundBlocks) {
  for (int64_t Tk : test::Thinned(test::Numbers(1, 140), 13)) {
    ProblemSpec s;
    s.Tq = 5, s.Tk = Tk, s.dk = 8, s.dv = 12, s.causal = Causal::kTopLeft, s.query_offset = Tk / 2;
    Check(s, static_cast<uint64_t>(Tk));
  }
}

TEST(AttentionTest, ManyBlocksAndTiles) {
  ProblemSpec s;
  s.Tq = test::GridStep() > 1 ? 100 : 300, s.Tk = 515, s.dk = 64, s.dv = 64;
  for (Causal causal : test::Thinned(kCausal)) {
    s.causal = causal;
    Check(s, 1);
  }
  s.window = {70, 3};
  Check(s, 2);
}

TEST(AttentionTest, LongKeysWithFewQueriesSplitAndMerge) {
  for (int64_t Tq : test::Thinned({1, 3})) {
    ProblemSpec s;
    s.Hq = 8, s.Hkv = 2, s.Tq = Tq, s.Tk = 5003, s.dk = test::GridStep() > 1 ? 16 : 64, s.dv = 48,
    s.causal = Causal::kBottomRight, s.kv_lengths = DType::kI64, s.B = 2;
    Check(s, static_cast<uint64_t>(Tq));
    s.sinks = true, s.softcap = 5, s.alibi = true, s.mask = Axes::kK;
    Check(s, static_cast<uint64_t>(Tq) + 10);
  }
}

TEST(AttentionTest, SplitsWhoseKeysAreAllRemovedLeaveNoTrace) {
  ProblemSpec s;
  s.Hq = 4, s.Hkv = 2, s.Tq = 2, s.Tk = 257, s.dk = 16, s.dv = 16, s.window = {20, 0},
  s.query_offset = 130;
  PlanOptions options;
  options.split_keys = 32;
  for (bool sinks : {false, true}) {
    s.sinks = sinks;
    Check(s, 1, options);
  }
}

TEST(AttentionTest, LatentAttentionSizes) {
  for (auto [dk, dv] : {std::pair<int64_t, int64_t>{576, 512}, {320, 256}, {192, 128}}) {
    ProblemSpec s;
    s.Hq = 4, s.Hkv = 1, s.Tq = 3, s.Tk = 70, s.dk = dk, s.dv = dv, s.causal = Causal::kBottomRight;
    Check(s, static_cast<uint64_t>(dk));
  }
}

TEST(AttentionTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = Small();
  s.causal = Causal::kBottomRight, s.bias = Axes::kQK, s.bias_removes = 0.2;
  for (int32_t rows = 0; rows <= 4; ++rows) {
    for (int32_t keys : test::Thinned({0, 1, 2, 3, 4}, 3)) {
      PlanOptions options;
      options.tile_rows = rows, options.block_keys = keys, options.split_keys = rows == 2 ? 7 : 0;
      Check(s, static_cast<uint64_t>(rows * 5 + keys), options);
    }
  }
}

// ---- layouts ----

TEST(AttentionLayoutTest, EveryLayoutAndPlaceOfEachTensor) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::kPlacements) {
      for (test::Storage ProblemSpec::* which :
           test::Thinned({&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::out,
                          &ProblemSpec::rest})) {
        ProblemSpec s;
        s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 6, s.Tk = 17, s.dk = 9, s.dv = 10;
        s.weights = true, s.bias = Axes::kBHQK, s.mask = Axes::kHQK;
        s.*which = {layout, placement};
        Check(s, 1);
      }
    }
  }
}

TEST(AttentionLayoutTest, BroadcastInputsOverEverySetOfAxes) {
  for (unsigned axes = 1; axes < 16; ++axes) {
    for (test::Storage ProblemSpec::* which :
         test::Thinned({&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::rest})) {
      ProblemSpec s;
      s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 5, s.Tk = 9, s.dk = 7, s.dv = 6;
      s.mask = Axes::kBHQK, s.bias = Axes::kBHQK;
      s.lse = which != &ProblemSpec::rest;  // outputs are never broadcast
      (s.*which).broadcast = axes;
      Check(s, axes);
    }
  }
}

TEST(AttentionLayoutTest, PackedQkvOfOneBuffer) {
  // [B, T, 3, H, d], as a projection of all three writes it.
  const int64_t B = 2, T = 21, H = 3, d = 20;
  OwnedTensor packed(DType::kF32, {B * T, 3 * H * d});
  test::Random random(test::BaseSeed());
  packed.Fill([&] { return random.Normal(); });
  ProblemSpec spec;
  spec.B = B, spec.Hq = spec.Hkv = H, spec.Tq = spec.Tk = T, spec.dk = spec.dv = d,
  spec.causal = Causal::kTopLeft;
  RandomProblem p(spec, 1);
  const float* data = static_cast<const float*>(packed.view().data);
  const auto part = [&](int64_t n) {
    return View(data + n * H * d, {B, H, T, d}, {T * 3 * H * d, d, 3 * H * d, 1});
  };
  p.problem.q = part(0);
  p.problem.k = part(1);
  p.problem.v = part(2);
  test::ExpectMatchesReference(p);
}

TEST(AttentionLayoutTest, ValuesMayBeAViewIntoKeys) {
  ProblemSpec s;
  s.Hq = 4, s.Tq = 4, s.Tk = 33, s.dk = 40, s.dv = 24;
  RandomProblem p(s, test::BaseSeed());
  p.problem.v = p.problem.k;
  p.problem.v.shape[3] = s.dv;
  test::ExpectMatchesReference(p);
}

TEST(AttentionLayoutTest, RowStridesOfWholePagesWithManyHeads) {
  // BTHD with H·d·4 = 4 KiB: the rows of one head fall into the same cache sets.
  ProblemSpec s;
  s.Hq = s.Hkv = 16, s.Tq = 20, s.Tk = 70, s.dk = s.dv = 64, s.causal = Causal::kBottomRight;
  s.q.layout = s.k.layout = s.v.layout = s.out.layout = Layout::kSwapped;
  Check(s, 1);
}

TEST(AttentionLayoutTest, MemoryBehindKvLengthsIsNeverTouched) {
  // K and V end with their last valid key, an inaccessible page behind it, while their shape
  // promises more.
  for (const int64_t length : {0, 1, 13, 64, 100}) {
    for (const int64_t Tq : {1, 40}) {
      ProblemSpec s;
      s.Hq = 3, s.Hkv = 1, s.Tq = Tq, s.Tk = length, s.dk = 20, s.dv = 33, s.weights = true;
      s.k.placement = s.v.placement = Placement::kBeforeGuard;
      RandomProblem p(s, test::BaseSeed());
      const int64_t Tk = 200, kv_lengths[] = {length};
      OwnedTensor weights(DType::kF32, {1, s.Hq, Tq, Tk});
      Problem larger = p.problem;
      larger.k.shape[2] = larger.v.shape[2] = Tk;
      larger.weights = weights.mutable_view();
      larger.score.kv_lengths = View(kv_lengths, {1});
      const auto expected = reference::Forward(larger);
      for (const test::Kernel& kernel : test::Kernels()) {
        const Status status = Attention(larger, test::Options(kernel), SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(test::Matches(larger, expected)) << ToString(kernel) << " length " << length;
      }
    }
  }
}

TEST(AttentionLayoutTest, ElementsAtAnyByteAddress) {
  // Any stride is legal: rows of 4·d + 1 bytes put elements at every address.
  const int64_t Tq = 9, Tk = 37, d = 18;
  ProblemSpec s;
  s.Tq = Tq, s.Tk = Tk, s.dk = s.dv = d;
  RandomProblem p(s, test::BaseSeed());
  const auto expected = reference::Forward(p.problem);
  std::vector<std::vector<unsigned char>> memory;
  const auto shifted = [&](auto view) {
    memory.emplace_back(static_cast<size_t>(view.shape[2] * (4 * d + 1) + 1));
    for (int64_t t = 0; t < view.shape[2]; ++t) {
      std::memcpy(memory.back().data() + 1 + t * (4 * d + 1),
                  static_cast<const char*>(view.data) + t * view.stride[2], 4 * d);
    }
    view.data = memory.back().data() + 1;
    view.stride[2] = 4 * d + 1;
    return view;
  };
  p.problem.q = shifted(p.problem.q);
  p.problem.k = shifted(p.problem.k);
  p.problem.v = shifted(p.problem.v);
  p.problem.out = shifted(p.problem.out);
  for (const test::Kernel& kernel : test::Kernels()) {
    const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernel);
  }
}

// Any number is legal there, and a step of it leaves the address space, which
// UndefinedBehaviorSanitizer reports.
TEST(AttentionLayoutTest, StridesOfAxesOfOneElementAreNotLookedAt) {
  struct Sizes {
    int64_t Tq, Tk, d;
  };
  for (const Sizes sizes : {Sizes{1, 1, 1}, Sizes{1, 1, 40}, Sizes{3, 300, 1}, Sizes{40, 1, 1},
                            Sizes{1, 300, 20}, Sizes{2, 0, 1}}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      ProblemSpec s;
      s.Tq = sizes.Tq, s.Tk = sizes.Tk, s.dk = s.dv = sizes.d, s.weights = true,
      s.bias = Axes::kBHQK, s.mask = Axes::kBHQK;
      s.q_type = s.k_type = s.v_type = type;
      RandomProblem p(s, test::BaseSeed());
      for (const int64_t stride : {INT64_MAX, -(int64_t{1} << 62)}) {
        const auto widen = [&](auto& view) {
          const bool empty = view.size() == 0;
          for (int a = 0; a < view.rank; ++a) {
            if (empty || view.shape[a] == 1) view.stride[a] = stride;
          }
        };
        Problem problem = p.problem;
        for (TensorView* view :
             {&problem.q, &problem.k, &problem.v, &problem.score.bias, &problem.score.mask})
          widen(*view);
        for (MutableTensorView* view : {&problem.out, &problem.weights}) widen(*view);
        const auto expected = reference::Forward(problem);
        for (const test::Kernel& kernel : test::KernelsFor(problem)) {
          p.ResetOutputs();
          const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(test::Matches(problem, expected, reference::WeightTolerance(kernel.product)))
              << ToString(kernel) << "\n"
              << ToString(s);
        }
      }
    }
  }
}

TEST(AttentionTest, EveryByteButZeroIsTrueInAMask) {
  ProblemSpec s;
  s.Hq = 2, s.Tq = 20, s.Tk = 70, s.dk = 8, s.dv = 8, s.mask = Axes::kQK, s.weights = true;
  RandomProblem p(s, test::BaseSeed());
  std::vector<unsigned char> bytes(static_cast<size_t>(s.Tq * s.Tk));
  test::Random random(test::BaseSeed());
  for (unsigned char& byte : bytes)
    byte = random.Pick(std::array<unsigned char, 6>{0, 0, 1, 2, 128, 255});
  p.problem.score.mask = View(static_cast<const void*>(bytes.data()), DType::kBool, {s.Tq, s.Tk});
  test::ExpectMatchesReference(p);
}

// ---- sizes of zero ----

TEST(AttentionTest, EmptyBatchesAndQueriesReturnAtOnce) {
  for (const test::Kernel& kernel : test::Kernels()) {
    for (int which = 0; which < 2; ++which) {
      ProblemSpec s = Small();
      s.weights = true;
      (which == 0 ? s.B : s.Tq) = 0;
      RandomProblem p(s, 1);
      const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
      EXPECT_TRUE(status.ok()) << status.message();
      for (auto* view : {&p.problem.q, &p.problem.k, &p.problem.v})
        view->data = view->size() == 0 ? nullptr : view->data;
      p.problem.out.data = p.problem.lse.data = p.problem.weights.data = nullptr;
      const Status null = Attention(p.problem, test::Options(kernel), SerialExecutor());
      EXPECT_TRUE(null.ok()) << null.message();
    }
  }
}

TEST(AttentionTest, WithoutKeysEveryRowIsEmpty) {
  for (bool sinks : {false, true}) {
    ProblemSpec s = Small();
    s.Tk = 0, s.sinks = sinks, s.weights = true;
    Check(s, 1);
    RandomProblem p(s, 1);
    p.problem.k.data = p.problem.v.data = nullptr;
    p.problem.weights.data = nullptr;
    test::ExpectMatchesReference(p);
  }
}

// ---- optional outputs ----

TEST(AttentionTest, OptionalOutputsDoNotChangeTheOthers) {
  for (const test::Kernel& kernel : test::Kernels()) {
    std::vector<unsigned char> out;
    for (int which = 0; which < 4; ++which) {
      ProblemSpec s = Small();
      s.causal = Causal::kBottomRight, s.lse = which & 1, s.weights = which & 2;
      RandomProblem p(s, test::BaseSeed());
      ASSERT_TRUE(Attention(p.problem, test::Options(kernel), SerialExecutor()).ok());
      if (which == 0) out = p.out.Bytes();
      EXPECT_EQ(out, p.out.Bytes())
          << ToString(kernel) << (s.lse ? " lse" : "") << (s.weights ? " weights" : "");
    }
  }
}

TEST(AttentionTest, TheShortCallIsTheDefaultPlan) {
  RandomProblem p(Small(), test::BaseSeed());
  const auto expected = reference::Forward(p.problem);
  ASSERT_TRUE(Attention(p.problem).ok());
  EXPECT_TRUE(test::Matches(p.problem, expected));
  const auto out = p.out.Bytes();
  p.ResetOutputs();
  ASSERT_TRUE(Attention(p.problem, PlanOptions(), SerialExecutor()).ok());
  EXPECT_EQ(out, p.out.Bytes());
}

}  // namespace
}  // namespace fovea
