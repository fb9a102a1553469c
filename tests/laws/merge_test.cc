// Merge: the laws of partial attention states.
#include "fovea/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "laws/merge_state.h"
#include "support/owned_tensor.h"
#include "support/random.h"

namespace fovea {
namespace {

using test::kD;
using test::kRows;
using test::MakeState;
using test::OwnedTensor;
using test::RandomState;
using test::State;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kEps = 0x1p-24;  // half a unit in the last place of 1.0f

Status MergeStates(const std::vector<const State*>& states, State& result) {
  std::vector<PartialState> parts;
  for (const State* state : states) parts.push_back(state->view());
  return Merge(parts.data(), static_cast<int64_t>(parts.size()), result.out.mutable_view(),
               result.lse.mutable_view());
}

// The definition, in double.
void Expected(const std::vector<const State*>& states, int64_t row, std::vector<double>& out,
              double& lse) {
  double m = -kInf;
  bool nan = false;
  for (const State* s : states) {
    const double l = s->lse.Get(row);
    nan = nan || std::isnan(l) || l == kInf;
    m = std::max(m, l);
  }
  out.assign(kD, 0.0);
  lse = -kInf;
  if (nan) {
    out.assign(kD, kNaN);
    lse = kNaN;
    return;
  }
  if (m == -kInf) return;
  double sum = 0;
  for (const State* s : states) {
    const double l = s->lse.Get(row);
    if (l == -kInf) continue;
    const double w = std::exp(l - m);
    sum += w;
    for (int64_t c = 0; c < kD; ++c) out[static_cast<size_t>(c)] += w * s->out.Get(row * kD + c);
  }
  for (double& x : out) x /= sum;
  lse = m + std::log(sum);
}

// A weight exp(lse − m) carries the rounding of its argument (|lse − m| halves of a unit) and of
// exp (2 units); sums over n parts, one product, one division: (n + 8) roundings of values up to
// max|out|, twice for numerator and denominator.
void ExpectMerged(const std::vector<const State*>& states, const State& result, const char* what) {
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<double> out;
    double lse;
    Expected(states, row, out, lse);
    double largest = 0, spread = 0, top = -kInf;
    for (const State* s : states) top = std::max(top, s->lse.Get(row));
    for (const State* s : states) {
      const double l = s->lse.Get(row);
      if (l == -kInf) continue;
      spread = std::max(spread, std::min(top - l, 104.0));  // below exp(−104) a weight is 0 in f32
      for (int64_t c = 0; c < kD; ++c)
        largest = std::max(largest, std::fabs(s->out.Get(row * kD + c)));
    }
    const double t = 2 * (static_cast<double>(states.size()) + 8 + spread) * kEps;
    const double got_lse = result.lse.Get(row);
    if (std::isnan(lse)) {
      EXPECT_TRUE(std::isnan(got_lse)) << what << " row " << row;
    } else if (lse == -kInf) {
      EXPECT_EQ(got_lse, -kInf) << what << " row " << row;
    } else {
      EXPECT_NEAR(got_lse, lse, t + 2 * kEps * std::fabs(lse)) << what << " row " << row;
    }
    for (int64_t c = 0; c < kD; ++c) {
      const double got = result.out.Get(row * kD + c);
      const double expected = out[static_cast<size_t>(c)];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << what << " row " << row << " channel " << c;
      } else {
        ASSERT_NEAR(got, expected, t * largest) << what << " row " << row << " channel " << c;
      }
    }
  }
}

TEST(MergeTest, IsTheWeightedMeanOfItsParts) {
  test::Random random(test::BaseSeed());
  SCOPED_TRACE(test::BaseSeed());
  for (int parts : {1, 2, 3, 5, 16, 33}) {
    std::vector<State> states;
    for (int n = 0; n < parts; ++n) states.push_back(RandomState(random));
    std::vector<const State*> pointers;
    for (const State& state : states) pointers.push_back(&state);
    State result = MakeState();
    ASSERT_TRUE(MergeStates(pointers, result).ok());
    ExpectMerged(pointers, result, "parts");
  }
}

TEST(MergeTest, OnePartIsItselfBitForBit) {
  test::Random random(test::BaseSeed() + 1);
  const State part = RandomState(random);
  State result = MakeState();
  ASSERT_TRUE(MergeStates({&part}, result).ok());
  EXPECT_EQ(result.out.Bytes(), part.out.Bytes());
  EXPECT_EQ(result.lse.Bytes(), part.lse.Bytes());
}

TEST(MergeTest, IsCommutativeToRounding) {
  test::Random random(test::BaseSeed() + 2);
  const State a = RandomState(random), b = RandomState(random), c = RandomState(random);
  for (const auto& order : std::vector<std::vector<const State*>>{
           {&a, &b, &c}, {&c, &a, &b}, {&b, &a, &c}, {&c, &b, &a}}) {
    State result = MakeState();
    ASSERT_TRUE(MergeStates(order, result).ok());
    ExpectMerged({&a, &b, &c}, result, "order");
  }
}

TEST(MergeTest, IsAssociativeToRounding) {
  test::Random random(test::BaseSeed() + 3);
  const State a = RandomState(random), b = RandomState(random), c = RandomState(random);
  State ab = MakeState(), bc = MakeState(), left = MakeState(), right = MakeState();
  ASSERT_TRUE(MergeStates({&a, &b}, ab).ok());
  ASSERT_TRUE(MergeStates({&ab, &c}, left).ok());
  ASSERT_TRUE(MergeStates({&b, &c}, bc).ok());
  ASSERT_TRUE(MergeStates({&a, &bc}, right).ok());
  for (int64_t n = 0; n < kRows; ++n) {
    // Each side is within its own bound of the exact mean: twice two merges of two parts with a
    // spread of at most ~20.
    EXPECT_NEAR(left.lse.Get(n), right.lse.Get(n), 8 * (10 + 20) * kEps);
    for (int64_t c_ = 0; c_ < kD; ++c_)
      EXPECT_NEAR(left.out.Get(n * kD + c_), right.out.Get(n * kD + c_), 8 * (10 + 20) * kEps * 5);
  }
}

TEST(MergeTest, AnEmptyPartIsTheIdentityEvenWithNaNInIt) {
  test::Random random(test::BaseSeed() + 4);
  const State a = RandomState(random);
  for (double junk : {kNaN, kInf, -kInf, 1e30}) {
    State empty = MakeState();
    empty.out.Fill([&] { return junk; });
    empty.lse.Fill([&] { return -kInf; });
    for (const auto& order :
         std::vector<std::vector<const State*>>{{&a, &empty}, {&empty, &a}, {&empty, &a, &empty}}) {
      State result = MakeState();
      ASSERT_TRUE(MergeStates(order, result).ok());
      EXPECT_EQ(result.out.Bytes(), a.out.Bytes()) << junk;
      EXPECT_EQ(result.lse.Bytes(), a.lse.Bytes()) << junk;
    }
  }
}

TEST(MergeTest, OnlyEmptyPartsGiveAnEmptyRow) {
  State a = MakeState(), b = MakeState(), result = MakeState();
  for (State* s : {&a, &b}) {
    s->out.Fill([] { return kNaN; });
    s->lse.Fill([] { return -kInf; });
  }
  for (const auto& parts : std::vector<std::vector<const State*>>{{&a}, {&a, &b}}) {
    result.out.Reset();
    result.lse.Reset();
    ASSERT_TRUE(MergeStates(parts, result).ok());
    for (int64_t n = 0; n < kRows; ++n) EXPECT_EQ(result.lse.Get(n), -kInf);
    for (int64_t n = 0; n < kRows * kD; ++n) EXPECT_EQ(result.out.Get(n), 0.0);
  }
}

TEST(MergeTest, NaNOrInfiniteLseGivesANaNRowAndOnlyThatRow) {
  test::Random random(test::BaseSeed() + 5);
  for (double bad : {kNaN, kInf}) {
    for (int where = 0; where < 3; ++where) {
      State parts[3] = {RandomState(random), RandomState(random), RandomState(random)};
      parts[where].lse.Set(7, bad);
      State result = MakeState();
      ASSERT_TRUE(MergeStates({&parts[0], &parts[1], &parts[2]}, result).ok());
      ExpectMerged({&parts[0], &parts[1], &parts[2]}, result, "bad lse");
    }
    // Alone, and beside an empty part.
    State alone = RandomState(random), empty = RandomState(random), result = MakeState();
    alone.lse.Set(7, bad);
    empty.lse.Fill([] { return -kInf; });
    ASSERT_TRUE(MergeStates({&alone}, result).ok());
    EXPECT_TRUE(std::isnan(result.lse.Get(7))) << bad;
    EXPECT_TRUE(std::isnan(result.out.Get(7 * kD))) << bad;
    ASSERT_TRUE(MergeStates({&empty, &alone}, result).ok());
    ExpectMerged({&empty, &alone}, result, "bad beside empty");
  }
}

TEST(MergeTest, NaNInAVisibleOutStaysInItsChannel) {
  test::Random random(test::BaseSeed() + 6);
  State a = RandomState(random), b = RandomState(random), result = MakeState();
  a.out.Set(3 * kD + 2, kNaN);
  ASSERT_TRUE(MergeStates({&a, &b}, result).ok());
  for (int64_t n = 0; n < kRows * kD; ++n)
    EXPECT_EQ(std::isnan(result.out.Get(n)), n == 3 * kD + 2) << n;
}

TEST(MergeTest, HugeAndTinyLseDoNotOverflow) {
  test::Random random(test::BaseSeed() + 7);
  for (double level : {3e38, 1e6, -1e6, -3e38}) {
    State a = RandomState(random), b = RandomState(random), result = MakeState();
    a.lse.Fill([&] { return level; });
    b.lse.Fill([&] { return level; });
    ASSERT_TRUE(MergeStates({&a, &b}, result).ok());
    ExpectMerged({&a, &b}, result, "level");
    // A part far below weighs nothing.
    b.lse.Fill([&] { return std::max(level - 1e3 - std::fabs(level), -3.4e38); });
    ASSERT_TRUE(MergeStates({&a, &b}, result).ok());
    ExpectMerged({&a, &b}, result, "far below");
  }
}

TEST(MergeTest, AnyStridesAndPlacesGiveTheSameBits) {
  test::Random random(test::BaseSeed() + 8);
  const State a = RandomState(random), b = RandomState(random);
  State dense = MakeState();
  ASSERT_TRUE(MergeStates({&a, &b}, dense).ok());
  for (test::Layout layout : test::kLayouts) {
    for (test::Placement placement : test::kPlacements) {
      const test::Storage storage{layout, placement};
      const State strided{a.out.CopiedTo(storage), a.lse.CopiedTo(storage)};
      State result = MakeState(storage);
      ASSERT_TRUE(MergeStates({&strided, &b}, result).ok());
      EXPECT_EQ(result.out.Bytes(), dense.out.Bytes()) << ToString(storage);
      EXPECT_EQ(result.lse.Bytes(), dense.lse.Bytes()) << ToString(storage);
      EXPECT_TRUE(result.out.PaddingUntouched() && result.lse.PaddingUntouched())
          << ToString(storage);
    }
  }
}

TEST(MergeTest, OutAndLseMayBeAPartsOwn) {
  test::Random random(test::BaseSeed() + 9);
  for (size_t which = 0; which < 3; ++which) {
    State parts[3] = {RandomState(random), RandomState(random), RandomState(random)};
    // One part is empty in one row, one NaN in another: the rules hold in place too.
    parts[0].lse.Set(1, -kInf);
    parts[2].lse.Set(2, kNaN);
    State apart = MakeState();
    ASSERT_TRUE(MergeStates({&parts[0], &parts[1], &parts[2]}, apart).ok());
    ASSERT_TRUE(MergeStates({&parts[0], &parts[1], &parts[2]}, parts[which]).ok());
    for (int64_t n = 0; n < kRows * kD; ++n) {
      if (n / kD == 2) continue;  // NaN has many patterns
      ASSERT_EQ(parts[which].out.Get(n), apart.out.Get(n)) << which << " " << n;
    }
    for (int64_t n = 0; n < kRows; ++n) {
      if (n != 2) {
        EXPECT_EQ(parts[which].lse.Get(n), apart.lse.Get(n)) << which << " " << n;
      }
    }
  }
}

TEST(MergeTest, LseIsOptional) {
  test::Random random(test::BaseSeed() + 10);
  const State a = RandomState(random), b = RandomState(random);
  State with = MakeState(), without = MakeState();
  ASSERT_TRUE(MergeStates({&a, &b}, with).ok());
  const PartialState parts[] = {a.view(), b.view()};
  ASSERT_TRUE(Merge(parts, 2, without.out.mutable_view(), MutableTensorView()).ok());
  EXPECT_EQ(with.out.Bytes(), without.out.Bytes());
}

TEST(MergeTest, EmptyShapesAreLegal) {
  for (std::vector<int64_t> shape :
       {std::vector<int64_t>{0, 1, 1, 4}, {1, 0, 1, 4}, {1, 1, 0, 4}}) {
    State part{OwnedTensor(DType::kF32, shape),
               OwnedTensor(DType::kF32, {shape[0], shape[1], shape[2]})};
    PartialState view = part.view();
    view.out.data = nullptr;
    view.lse.data = nullptr;
    MutableTensorView out = part.out.mutable_view(), lse = part.lse.mutable_view();
    out.data = nullptr;
    lse.data = nullptr;
    const Status status = Merge(&view, 1, out, lse);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace fovea
