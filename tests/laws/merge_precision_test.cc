// Merge of many parts: however many there are, out and lse err no more than over a few.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fovea/merge.h"
#include "reference/reference.h"
#include "support/owned_tensor.h"
#include "support/random.h"
#include "support/structured_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::OwnedTensor;
using test::ScorePattern;
using test::ValuePattern;

// Parts whose lse and out follow a pattern, all rows alike.
struct Parts {
  std::vector<OwnedTensor> outs, lses;
  std::vector<PartialState> states;
  double largest = 0;

  Parts(ScorePattern scores, ValuePattern values, int64_t count, int64_t dv, uint64_t seed) {
    test::Random random(seed);
    std::vector<test::Channel> channels;
    for (int64_t c = 0; c < dv; ++c) channels.emplace_back(values, c == 0, random);
    outs.reserve(static_cast<size_t>(count)), lses.reserve(static_cast<size_t>(count));
    for (int64_t n = 0; n < count; ++n) {
      lses.emplace_back(DType::kF32, std::vector<int64_t>{1, 1, 2});
      outs.emplace_back(DType::kF32, std::vector<int64_t>{1, 1, 2, dv});
      const double lse = test::ScoreOf(scores, n, count, random);
      for (int64_t i = 0; i < 2; ++i) {
        lses.back().Set(i, lse);
        for (int64_t c = 0; c < dv; ++c) {
          const double value = channels[static_cast<size_t>(c)].Value(n, random);
          largest = std::max(largest, std::fabs(value));
          outs.back().SetAt({0, 0, i, c}, value);
        }
      }
      states.push_back({outs.back().view(), lses.back().view()});
    }
  }
};

void Hold(ScorePattern scores, ValuePattern values, int64_t count, uint64_t seed) {
  const int64_t dv = 5;
  const Parts parts(scores, values, count, dv, seed);
  const reference::MergeResult expected = reference::Merge(parts.states.data(), count);
  OwnedTensor out(DType::kF32, {1, 1, 2, dv}), lse(DType::kF32, {1, 1, 2});
  ASSERT_TRUE(Merge(parts.states.data(), count, out.mutable_view(), lse.mutable_view()).ok());
  const std::string what = std::to_string(count) + " parts, lse " + Name(scores) + ", out " +
                           Name(values) + ", seed " + std::to_string(seed);
  for (int64_t n = 0; n < out.size(); ++n) {
    EXPECT_NEAR(out.Get(n), expected.out[static_cast<size_t>(n)], 1.5e-6 * parts.largest)
        << what << ", element " << n;
  }
  for (int64_t i = 0; i < 2; ++i) {
    const double want = expected.lse[static_cast<size_t>(i)];
    EXPECT_NEAR(lse.Get(i), want, std::max(1e-5, 1e-6 * std::fabs(want))) << what;
  }
}

TEST(MergePrecisionTest, AnyNumberOfPartsInAnyPattern) {
  for (int64_t count : {2, 10, 100, 1000}) {
    uint64_t seed = test::BaseSeed();
    for (ScorePattern scores : test::kScorePatterns) {
      for (ValuePattern values : test::Thinned(test::kValuePatterns))
        Hold(scores, values, count, ++seed);
    }
  }
}

TEST(MergePrecisionTest, ThousandsOfParts) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Hold(ScorePattern::kEqual, ValuePattern::kTwoValued, 20000, seed);
    Hold(ScorePattern::kEqual, ValuePattern::kOneSign, 20000, seed);
    Hold(ScorePattern::kDominantFirst, ValuePattern::kConstant, 20000, seed);
  }
}

TEST(MergePrecisionTest, MergingOneByOneIsAsGoodAsItsSteps) {
  // A running state takes one part after the other: each step may add its own rounding, of out and
  // of the lse that weighs it, but nothing that grows faster.
  const int64_t count = 200;
  const Parts parts(ScorePattern::kEqual, ValuePattern::kTwoValued, count, 3, test::BaseSeed());
  OwnedTensor out = parts.outs[0].CopiedTo({}), lse = parts.lses[0].CopiedTo({});
  for (size_t n = 1; n < static_cast<size_t>(count); ++n) {
    const PartialState two[] = {{out.view(), lse.view()}, parts.states[n]};
    ASSERT_TRUE(Merge(two, 2, out.mutable_view(), lse.mutable_view()).ok());
  }
  const reference::MergeResult expected = reference::Merge(parts.states.data(), count);
  const double steps = static_cast<double>(count), largest_lse = expected.lse[0];
  const double t = steps * (4 + 2 * largest_lse) * 0x1p-24;
  for (int64_t n = 0; n < out.size(); ++n)
    EXPECT_NEAR(out.Get(n), expected.out[static_cast<size_t>(n)], t * parts.largest);
  for (int64_t i = 0; i < 2; ++i) EXPECT_NEAR(lse.Get(i), expected.lse[static_cast<size_t>(i)], t);
}

}  // namespace
}  // namespace fovea
