// The kernels against the double reference through the public call: every pair of values of all
// that a problem can have.
#include "fovea/attention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/check.h"
#include "support/pairwise.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::ExpectMatchesReference;
using test::kFloatTypes;
using test::Layout;
using test::ProblemSpec;
using test::RandomProblem;

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
    ExpectMatchesReference(p, cases[n].options);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, AllPairsTest, testing::Range(0, AllPairsTest::kShards));

}  // namespace
}  // namespace fovea
