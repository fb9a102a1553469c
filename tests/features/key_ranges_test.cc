// Intervals of keys for each query: they are the mask that they spell out, bit for bit, and causal,
// windows, documents and prefixes are among them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/equivalent.h"
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

constexpr double kInf = std::numeric_limits<double>::infinity();

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 24, s.Tk = 124, s.dk = 12, s.dv = 9, s.weights = true,
  s.scores = ScoreStage::kMasked;
  s.key_ranges = DType::kI32;
  return s;
}

struct Range {
  int64_t begin, end;
};
Range RangeOf(const RandomProblem& p, int64_t b, int64_t i) {
  const int64_t of = p.spec.one_key_ranges ? 0 : b;
  return {static_cast<int64_t>(p.key_ranges.At({of, i, 0})),
          static_cast<int64_t>(p.key_ranges.At({of, i, 1}))};
}
void SetRanges(RandomProblem& p, const std::function<Range(int64_t b, int64_t i)>& range) {
  const TensorView view = p.key_ranges.view();
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    for (int64_t i = 0; i < view.shape[1]; ++i) {
      p.key_ranges.SetAt({b, i, 0}, static_cast<double>(range(b, i).begin));
      p.key_ranges.SetAt({b, i, 1}, static_cast<double>(range(b, i).end));
    }
  }
}

// p without its ranges, but with a mask of all pairs that ranges and mask allow.
RandomProblem SpelledOut(const RandomProblem& p) {
  RandomProblem spelled = test::WithMaskOf(p, [&](int64_t b, int64_t, int64_t i, int64_t j) {
    const Range range = RangeOf(p, b, i);
    return range.begin <= j && j < range.end;
  });
  spelled.key_ranges = OwnedTensor();
  spelled.Refresh();
  return spelled;
}

void ExpectTheMaskItSpellsOut(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem spelled = SpelledOut(p);
  test::ExpectTheSameBits(p, spelled, options);
  test::ExpectMatchesReference(p, options);
}

TEST(KeyRangesTest, RandomIntervals) {
  uint64_t seed = test::BaseSeed();
  for (int64_t Tq : {1, 2, 7, 16, 33, 70}) {
    for (int64_t Tk : test::Thinned({1, 15, 64, 65, 200, 333})) {
      ProblemSpec s = Spec();
      s.Tq = Tq, s.Tk = Tk, s.key_ranges = Tk % 2 == 0 ? DType::kI32 : DType::kI64,
      s.one_key_ranges = Tk % 3 == 0;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(KeyRangesTest, AnyGroupAndType) {
  uint64_t seed = test::BaseSeed();
  for (int64_t group : {1, 2, 3, 8, 16}) {
    for (DType type : test::Thinned({DType::kF32, DType::kF16, DType::kBF16})) {
      ProblemSpec s = Spec();
      s.Hq = 2 * group, s.q_type = s.k_type = s.v_type = s.out_type = type;
      RandomProblem p(s, ++seed);
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(KeyRangesTest, AnyIntegers) {
  const int64_t most = std::numeric_limits<int64_t>::max(),
                least = std::numeric_limits<int64_t>::min();
  const int64_t narrow_most = std::numeric_limits<int32_t>::max(),
                narrow_least = std::numeric_limits<int32_t>::min();
  for (bool wide : {false, true}) {
    const int64_t top = wide ? most : narrow_most, bottom = wide ? least : narrow_least;
    const Range ranges[] = {{bottom, top}, {top, bottom}, {bottom, bottom}, {top, top}, {0, top},
                            {bottom, 1},   {bottom, 0},   {-1, 0},          {20, 20},   {20, 21},
                            {123, 124},    {124, 125},    {123, top},       {124, top}, {5, -5},
                            {7, 6},        {0, 124},      {1, 123},         {-1, 125},  {63, 65},
                            {64, 64},      {bottom, 64},  {64, top},        {-60, 60}};
    ProblemSpec s = Spec();
    s.key_ranges = wide ? DType::kI64 : DType::kI32;
    RandomProblem p(s, test::BaseSeed());
    // Doubles do not hold them: as they are.
    std::vector<int64_t> wide_values;
    std::vector<int32_t> narrow_values;
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t i = 0; i < s.Tq; ++i) {
        const Range& range = ranges[b == 0 ? i : s.Tq - 1 - i];
        wide_values.insert(wide_values.end(), {range.begin, range.end});
      }
    }
    narrow_values.assign(wide_values.begin(), wide_values.end());
    p.problem.score.key_ranges =
        wide ? View(static_cast<const int64_t*>(wide_values.data()), {s.B, s.Tq, 2})
             : View(static_cast<const int32_t*>(narrow_values.data()), {s.B, s.Tq, 2});
    const reference::ForwardResult want = reference::Forward(p.problem);
    for (const Kernel& kernel : test::Kernels()) {
      p.ResetOutputs();
      const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(test::Matches(p.problem, want)) << ToString(kernel);
      for (int64_t n = 0; n < p.weights.size(); ++n) {
        const int64_t b = n / (s.Hq * s.Tq * s.Tk), i = n / s.Tk % s.Tq, j = n % s.Tk;
        const Range& range = ranges[b == 0 ? i : s.Tq - 1 - i];
        ASSERT_EQ(p.scores.Get(n) > -kInf, range.begin <= j && j < range.end)
            << ToString(kernel) << " b " << b << " i " << i << " j " << j;
      }
    }
  }
}

TEST(KeyRangesTest, WithEverythingElseThatRemovesPairs) {
  uint64_t seed = test::BaseSeed();
  for (int more = 0; more < 6; ++more) {
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      ProblemSpec s = Spec();
      s.causal = causal, s.sinks = true;
      if (more == 0) s.window = {30, 5};
      if (more == 1) s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64;
      if (more == 2) s.mask = Axes::kBHQK, s.bias = Axes::kQK, s.bias_removes = 0.1;
      if (more == 3) s.block_map = Axes::kQK, s.block_queries = 5, s.block_keys = 20;
      if (more == 4) s.parents = DType::kI32, s.query_offset = 80;
      if (more == 5) s.query_offsets = DType::kI32, s.alibi = true, s.softcap = 3;
      RandomProblem p(s, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectTheMaskItSpellsOut(p);
    }
  }
}

TEST(KeyRangesTest, TinyTilesBlocksAndSplits) {
  test::ForTinyTilesBlocksAndSplits(Spec(), ExpectTheMaskItSpellsOut);
}

TEST(KeyRangesTest, ShortIntervalsFarApart) {
  for (int64_t Tq : {1, 5, 40}) {
    ProblemSpec s = Spec();
    s.Tq = Tq, s.Tk = 4000, s.weights = false, s.scores.reset();
    RandomProblem p(s, test::BaseSeed());
    SetRanges(p, [](int64_t b, int64_t i) {
      const int64_t begin = (1373 * (i + 1) + 577 * b) % 4000;
      return Range{begin, begin + i % 4};
    });
    ExpectTheMaskItSpellsOut(p);
  }
}

TEST(KeyRangesTest, CausalAndWindowsAreIntervals) {
  for (int64_t offset : {0, 100, -7}) {
    for (Window window : {Window{-1, -1}, Window{20, -1}, Window{5, 0}}) {
      ProblemSpec s = Spec();
      RandomProblem ranges(s, test::BaseSeed());
      SetRanges(ranges, [&](int64_t, int64_t i) {
        const int64_t position = i + offset;
        return Range{window.left < 0 ? 0 : position - window.left, position + 1};
      });
      RandomProblem named = ranges;
      named.key_ranges = OwnedTensor();
      named.spec.causal = Causal::kTopLeft, named.spec.window = window,
      named.spec.query_offset = offset;
      named.Refresh();
      for (const Kernel& kernel : test::KernelsAndAuto())
        EXPECT_TRUE(Same(RunSerial(kernel, ranges), RunSerial(kernel, named))) << ToString(kernel);
    }
  }
}

TEST(KeyRangesTest, DocumentsInOneSequenceAreSequencesOfTheirOwn) {
  // Three documents one behind the other, causal within each; or a packed batch of three sequences.
  const int64_t starts[] = {0, 13, 40, 77};
  ProblemSpec s = Spec();
  s.B = 1, s.Tq = s.Tk = 77, s.causal = Causal::kTopLeft, s.weights = false, s.scores.reset();
  RandomProblem documents(s, test::BaseSeed());
  SetRanges(documents, [&](int64_t, int64_t i) {
    const int64_t d = i < starts[1] ? 0 : i < starts[2] ? 1 : 2;
    return Range{starts[d], starts[d + 1]};
  });
  ExpectTheMaskItSpellsOut(documents);
  OwnedTensor cu_seqlens(DType::kI32, {4});
  for (int64_t n = 0; n < 4; ++n) cu_seqlens.Set(n, static_cast<double>(starts[n]));
  Problem packed = documents.problem;
  packed.score.key_ranges = TensorView();
  packed.cu_seqlens_q = packed.cu_seqlens_k = cu_seqlens.view();
  const reference::ForwardResult want = reference::Forward(packed);
  for (const Kernel& kernel : test::Kernels()) {
    RunSerial(kernel, documents);
    EXPECT_TRUE(test::Matches(packed, want)) << ToString(kernel);
  }
}

TEST(KeyRangesTest, PrefixesAndImages) {
  // A prefix of 30 keys that all see, then causal; in it an image at 60 … 79 whose queries see all
  // of it.
  ProblemSpec s = Spec();
  s.B = 1, s.Tq = s.Tk = 124, s.weights = false;
  RandomProblem p(s, test::BaseSeed());
  SetRanges(p, [](int64_t, int64_t i) {
    return Range{0, i >= 60 && i < 80 ? 80 : std::max<int64_t>(30, i + 1)};
  });
  ExpectTheMaskItSpellsOut(p);
}

TEST(KeyRangesTest, RowsWithoutKeysAreEmpty) {
  for (bool sinks : {false, true}) {
    ProblemSpec s = Spec();
    s.sinks = sinks;
    RandomProblem p(s, test::BaseSeed());
    SetRanges(p, [](int64_t, int64_t i) { return i % 3 == 0 ? Range{40, 40} : Range{i, 2 * i}; });
    ExpectTheMaskItSpellsOut(p);
    for (const Kernel& kernel : test::Kernels()) {
      RunSerial(kernel, p);
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; i += 3) {
          for (int64_t c = 0; c < s.dv; ++c)
            ASSERT_EQ(p.out.At({1, h, i, c}), 0) << ToString(kernel);
          if (!sinks) {
            ASSERT_EQ(p.lse.At({1, h, i}), -kInf) << ToString(kernel);
          }
        }
      }
    }
    SetRanges(p, [](int64_t, int64_t) { return Range{9, 3}; });  // nobody sees anything
    test::ExpectMatchesReference(p);
  }
}

TEST(KeyRangesTest, WhatAQuerySeesNotDoesNotReachIt) {
  // Keys 50 … 59 hold NaN and infinity; every other query sees them.
  for (DType type : {DType::kF32, DType::kBF16}) {
    ProblemSpec s = Spec();
    s.q_type = s.k_type = s.v_type = type;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t j = 50; j < 60; ++j) {
        for (int64_t c = 0; c < s.dk; ++c)
          p.k.SetAt({0, h, j, c}, std::numeric_limits<double>::quiet_NaN());
        for (int64_t c = 0; c < s.dv; ++c) p.v.SetAt({0, h, j, c}, j % 2 == 0 ? kInf : -kInf);
      }
    }
    SetRanges(p, [](int64_t, int64_t i) {
      return i % 2 == 0 ? Range{0, 55} : i % 4 == 1 ? Range{0, 50} : Range{60, 200};
    });
    test::ExpectMatchesReference(p);
    for (const Kernel& kernel : test::KernelsAndAuto()) {
      RunSerial(kernel, p);
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; ++i)
          ASSERT_EQ(std::isnan(p.lse.At({0, h, i})), i % 2 == 0) << ToString(kernel);
      }
    }
  }
}

TEST(KeyRangesTest, PackedBatchesCountFromTheirSequence) {
  uint64_t seed = test::BaseSeed();
  for (int which = 0; which < 3; ++which) {
    ProblemSpec s = Spec();
    s.B = 4, s.causal = Causal::kBottomRight;
    if (which != 1) s.cu_seqlens_q = DType::kI32;
    if (which != 0) s.cu_seqlens_k = DType::kI64;
    RandomProblem p(s, ++seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExpectTheMaskItSpellsOut(p);
  }
}

TEST(KeyRangesTest, OfAnyStrideAndPlace) {
  const RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::key_ranges);
  for (unsigned axes : {0b001u, 0b010u, 0b011u}) {  // of all sequences, of all queries
    RandomProblem repeated = test::Repeated(p, &RandomProblem::key_ranges, axes);
    ExpectTheMaskItSpellsOut(repeated);
  }
}

TEST(KeyRangesTest, MayChangeFromRunToRunOfOnePlan) {
  RandomProblem p(Spec(), test::BaseSeed());
  test::ExpectOnePlanServes(p, [&](int run) {
    SetRanges(p, [&](int64_t b, int64_t i) {
      return Range{(7 * i + 31 * run) % 100, (7 * i + 31 * run) % 100 + 10 * b + 5};
    });
  });
}

TEST(KeyRangesTest, WrongOnesAreRefused) {
  const RandomProblem right(Spec(), test::BaseSeed());
  RandomProblem p = right;
  const auto refuses = [&](std::initializer_list<const char*> words) {
    const testing::AssertionResult result = test::Refuses(p, words);
    p.Refresh();
    return result;
  };
  TensorView& ranges = p.problem.score.key_ranges;
  ranges.rank = 2;
  EXPECT_TRUE(refuses({"key_ranges.rank", "2", "3"}));
  ranges.shape[0] = 3;
  EXPECT_TRUE(refuses({"key_ranges.shape[0]", "3", "2"}));
  ranges.shape[0] = 0;
  EXPECT_TRUE(refuses({"key_ranges.shape[0]", "0", "2"}));
  ranges.shape[1] = 1;
  EXPECT_TRUE(refuses({"key_ranges.shape[1]", "1", "24"}));
  ranges.shape[2] = 3;
  EXPECT_TRUE(refuses({"key_ranges.shape[2]", "3", "2"}));
  for (DType type : {DType::kF32, DType::kF16, DType::kBool, DType::kBit}) {
    ranges.dtype = type;
    EXPECT_TRUE(refuses({"key_ranges.dtype", Name(type)}));
  }
  ranges.data = nullptr;
  EXPECT_TRUE(refuses({"key_ranges.data", "null"}));
  ranges.stride[1] = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(refuses({"key_ranges.stride"}));
  ranges.stride[0] = std::numeric_limits<int64_t>::min();  // 2^63 bytes below the first element
  EXPECT_TRUE(refuses({"key_ranges.stride[0]", "overflows"}));

  test::ExpectPlanned(right, &RandomProblem::key_ranges, "key_ranges");
}

TEST(KeyRangesTest, NoQueriesKeysOrSequences) { test::ExpectNothingOfNothing(Spec()); }

}  // namespace
}  // namespace fovea
