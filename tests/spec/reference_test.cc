// The specification as code, checked by hand-computed numbers, by the laws that follow from the
// mathematics and by finite differences.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "reference/element.h"
#include "support/score_function.h"

namespace fovea::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRounding = 1e-13;  // double arithmetic over a few dozen terms of order one

// Multiples of 1/64 in [−2, 2): sums and small steps of them are exact in float.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed) {}
  std::vector<float> Take(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) {
      state_ = 1664525u * state_ + 1013904223u;
      x = (static_cast<float>(state_ >> 24) - 128) / 64;
    }
    return values;
  }

 private:
  uint32_t state_;
};

// Views for reading of memory that the test may write: a float* does not deduce View's const T*.
template <size_t N>
TensorView Input(const float* data, const int64_t (&shape)[N]) {
  return View(data, shape);
}
template <size_t N>
TensorView Input(const float* data, const int64_t (&shape)[N],
                 const int64_t (&element_strides)[N]) {
  return View(data, shape, element_strides);
}

// A dense problem of its own tensors, to be modified by the tests.
struct Example {
  Sizes n;
  std::vector<float> q, k, v;
  Problem problem;

  explicit Example(const Sizes& sizes, uint32_t seed = 1) : n(sizes) {
    Numbers numbers(seed);
    q = numbers.Take(n.B * n.Hq * n.Tq * n.dk);
    k = numbers.Take(n.B * n.Hkv * n.Tk * n.dk);
    v = numbers.Take(n.B * n.Hkv * n.Tk * n.dv);
    problem.q = Input(q.data(), {n.B, n.Hq, n.Tq, n.dk});
    problem.k = Input(k.data(), {n.B, n.Hkv, n.Tk, n.dk});
    problem.v = Input(v.data(), {n.B, n.Hkv, n.Tk, n.dv});
  }
  Example(const Example&) = delete;
  Example& operator=(const Example&) = delete;
};

Sizes MakeSizes(int64_t B, int64_t Hq, int64_t Hkv, int64_t Tq, int64_t Tk, int64_t dk,
                int64_t dv) {
  Sizes n;
  n.B = B, n.Hq = Hq, n.Hkv = Hkv, n.Tq = Tq, n.Tk = Tk, n.dk = dk, n.dv = dv;
  return n;
}

// One query whose score against key j is scores[j]: dk = 1, q = 1, scale = 1. v_j = j + 1.
struct OneRow {
  std::vector<float> q = {1}, k, v;
  Problem problem;

  explicit OneRow(std::vector<float> scores) : k(std::move(scores)), v(k.size()) {
    std::iota(v.begin(), v.end(), 1.0f);
    const int64_t Tk = static_cast<int64_t>(k.size());
    problem.q = Input(q.data(), {1, 1, 1, 1});
    problem.k = Input(k.data(), {1, 1, Tk, 1});
    problem.v = Input(v.data(), {1, 1, Tk, 1});
    problem.score.scale = 1.0f;
  }
};

void ExpectAllNear(const std::vector<double>& got, const std::vector<double>& want,
                   double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t n = 0; n < got.size(); ++n)
    EXPECT_NEAR(got[n], want[n], tolerance) << "element " << n;
}

// ---- elements

TEST(Element, HalfPrecisionIsExact) {
  EXPECT_EQ(FromF16(0x0000), 0);
  EXPECT_TRUE(std::signbit(FromF16(0x8000)));
  EXPECT_EQ(FromF16(0x0001), std::ldexp(1, -24));
  EXPECT_EQ(FromF16(0x03ff), std::ldexp(1023, -24));
  EXPECT_EQ(FromF16(0x0400), std::ldexp(1, -14));
  EXPECT_EQ(FromF16(0x3c00), 1);
  EXPECT_EQ(FromF16(0xc500), -5);
  EXPECT_EQ(FromF16(0x7bff), 65504);
  EXPECT_EQ(FromF16(0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(FromF16(0x7c01)));
  for (uint16_t bits = 0; bits < 0x7c00; ++bits)
    ASSERT_LT(FromF16(bits), FromF16(static_cast<uint16_t>(bits + 1))) << bits;
}

TEST(Element, Bfloat16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(FromBF16(0x3f80), 1);
  EXPECT_EQ(FromBF16(0xc0a0), -5);
  EXPECT_EQ(FromBF16(0x0001), std::ldexp(1, -133));
  EXPECT_EQ(FromBF16(0x7f80), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(FromBF16(0x7fc0)));
}

TEST(Element, RoundedIsNearestEven) {
  for (const auto& [dtype, from] :
       {std::pair(DType::kF16, &FromF16), std::pair(DType::kBF16, &FromBF16)}) {
    const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
    EXPECT_EQ(Rounded(dtype, 0), 0);
    EXPECT_TRUE(std::isnan(Rounded(dtype, std::nan(""))));
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const double x = from(bits), next = bits + 1 == infinity
                                              ? 2 * x - from(static_cast<uint16_t>(bits - 1))
                                              : from(static_cast<uint16_t>(bits + 1));
      const double middle = (x + next) / 2,
                   above = bits + 1 == infinity ? std::numeric_limits<double>::infinity() : next;
      ASSERT_EQ(Rounded(dtype, x), x);
      ASSERT_EQ(Rounded(dtype, -x), -x);
      ASSERT_EQ(Rounded(dtype, std::nextafter(middle, 0)), x) << bits;
      ASSERT_EQ(Rounded(dtype, std::nextafter(middle, next)), above) << bits;
      ASSERT_EQ(Rounded(dtype, middle), bits % 2 == 0 ? x : above) << bits;
      ASSERT_EQ(Rounded(dtype, -middle), -(bits % 2 == 0 ? x : above)) << bits;
    }
  }
  EXPECT_EQ(Rounded(DType::kF32, 1 + 0x1p-24), 1);
}

TEST(Element, StoredResultsLieBetweenTheRoundedEndsOfTheirBound) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(StoredBound(DType::kF32, 1, 2, 0.5), 0.5);
  EXPECT_EQ(StoredBound(DType::kF16, 3, 1.0, 0x1p-12), 0);          // 1 + 2^−12 rounds to 1
  EXPECT_EQ(StoredBound(DType::kF16, 3, 1.0, 0x1p-10), 0x1p-10);    // a unit above 1
  EXPECT_EQ(StoredBound(DType::kF16, 0, 1.0, 0x1.8p-12), 0x1p-11);  // half a unit below 1
  EXPECT_EQ(StoredBound(DType::kBF16, 3, 1.001, 0x1p-20), 0);       // nothing above is right: 1 is
  EXPECT_EQ(StoredBound(DType::kF16, inf, 65519, 2), inf);
  EXPECT_EQ(StoredBound(DType::kF16, 0, 65519, 2), 65519 - 65504);
  EXPECT_EQ(StoredBound(DType::kF16, 0, inf, 2), 2);
}

TEST(Element, EveryTypeAndStrideIsRead) {
  const int32_t i32[] = {-3, 7};
  const int64_t i64[] = {-(int64_t{1} << 40), 9};
  const bool flags[] = {true, false};
  const float f32[] = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(At(View(i32, {2}), 0), -3);
  EXPECT_EQ(IntegerAt(View(i64, {2}), 0), -(int64_t{1} << 40));
  EXPECT_EQ(IntegerAt(View(i32, {2}), 1), 7);
  EXPECT_EQ(ReadAll(View(flags, {2})), (std::vector<double>{1, 0}));
  // transposed
  EXPECT_EQ(ReadAll(View(f32, {3, 2}, {1, 3})), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  // backwards
  EXPECT_EQ(ReadAll(View(f32 + 5, {3}, {-2})), (std::vector<double>{6, 4, 2}));
  // repeated
  EXPECT_EQ(ReadAll(View(f32 + 1, {2, 2}, {0, 1})), (std::vector<double>{2, 3, 2, 3}));
  EXPECT_EQ(ReadAll(View(f32, {2, 0, 3})), (std::vector<double>{}));
}

TEST(Element, BroadcastAlignsAtTheRight) {
  const float row[] = {1, 2, 3};
  const float heads[] = {10, 20};
  EXPECT_EQ(BroadcastAt(View(row, {3}), 5, 6, 7, 2), 3);
  EXPECT_EQ(BroadcastAt(View(heads, {2, 1, 1}), 5, 1, 7, 2), 20);
  EXPECT_EQ(BroadcastAt(View(row, {3, 1}), 5, 6, 1, 9), 2);
  EXPECT_EQ(BroadcastAt(View(row, {1, 1, 1, 3}), 4, 4, 4, 0), 1);
}

TEST(Element, BitsAreReadFromTheLowestUpwards) {
  // two rows of ten, the last six bits of each row's second byte unused
  const uint8_t bytes[] = {0b00000101, 0b10, 0b11110000, 0b01};
  const TensorView rows = BitView(bytes, {2, 10});
  EXPECT_EQ(ReadAll(rows),
            (std::vector<double>{1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(At(rows, 1, 8), 1);
  EXPECT_EQ(BroadcastAt(BitView(bytes, {2, 1, 10}), 3, 1, 5, 4), 1);
  EXPECT_EQ(BroadcastAt(BitView(bytes, {1}), 3, 1, 5, 4), 1);
  TensorView turned = rows;  // the rows backwards
  turned.data = bytes + 2;
  turned.stride[0] = -2;
  EXPECT_EQ(At(turned, 0, 0), 0);
  EXPECT_EQ(At(turned, 1, 9), 1);
}

// ---- forward, by hand

TEST(Forward, WorkedExample) {
  const float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {1, 2, 3, 4};
  Problem problem;
  problem.q = View(q, {1, 1, 1, 2});
  problem.k = View(k, {1, 1, 2, 2});
  problem.v = View(v, {1, 1, 2, 2});
  const ForwardResult r = Forward(problem);
  // scores 1/√2 and 0; e^0.70710678 = 2.02811498
  ExpectAllNear(r.weights, {0.66976155, 0.33023845}, 1e-7);
  ExpectAllNear(r.out, {1.66047690, 2.66047690}, 1e-6);
  ExpectAllNear(r.lse, {1.10794037}, 1e-6);
  ExpectAllNear(r.scores, {0.70710678, 0}, 1e-8);
}

TEST(Forward, ModifiersApplyInTheOrderOfTheContract) {
  OneRow row({3, -1, 2});
  const float slope[] = {0.5f}, bias[] = {0, 1, -0.25f};
  row.problem.score.scale = 2.0f;
  row.problem.score.softcap = 4;
  row.problem.score.alibi_slopes = View(slope, {1});
  row.problem.score.bias = View(bias, {3});
  row.problem.score.query_offset = 2;
  const ForwardResult r = Forward(row.problem);
  ExpectAllNear(r.scores,
                {4 * std::tanh(1.5) - 1, 4 * std::tanh(-0.5) - 0.5 + 1, 4 * std::tanh(1.0) - 0.25},
                kRounding);
}

TEST(Forward, ScaleIsInsideTheProduct) {
  // q·k = 4e38 overflows float; the scaled score is 4
  const float q[] = {2e19f}, k[] = {2e19f, 1e19f}, v[] = {1, 2};
  Problem problem;
  problem.q = View(q, {1, 1, 1, 1});
  problem.k = View(k, {1, 1, 2, 1});
  problem.v = View(v, {1, 1, 2, 1});
  problem.score.scale = 1e-38f;
  ExpectAllNear(Forward(problem).scores, {4, 2}, 1e-5);
}

TEST(Forward, HeadScalesMultiplyTheScaleInsideTheProduct) {
  // scale · head_scale = 1e60 and q·k = 1e-60, neither of which is a float
  const float q[] = {2, 2e-30f}, k[] = {3, 4e-30f}, v[] = {1, 2}, scales[] = {-0.5f, 1e30f};
  Problem problem;
  problem.q = View(q, {1, 2, 1, 1});
  problem.k = View(k, {1, 2, 1, 1});
  problem.v = View(v, {1, 2, 1, 1});
  problem.score.scale = 1e30f;
  problem.score.head_scales = View(scales, {2});
  const ForwardResult r = Forward(problem);
  EXPECT_NEAR(r.scores[0], -3e30, 1e24);
  EXPECT_NEAR(r.scores[1], 8, 1e-5);
  problem.score.scale = 0.25f;
  const StageResult scaled = ScoresAt(problem, ScoreStage::kScaled);
  EXPECT_EQ(scaled.scores[0], -0.75);
  EXPECT_EQ(scaled.tolerance[0], 1e-5);
}

TEST(Forward, BiasScalesMultiplyTheBiasAlone) {
  OneRow row({3, -1, 2});
  const float bias[] = {4, -0.5f, 0}, scale[] = {-2}, slope[] = {0.5f};
  row.problem.score.bias = View(bias, {3});
  row.problem.score.bias_scales = View(scale, {1});
  row.problem.score.softcap = 4;
  row.problem.score.alibi_slopes = View(slope, {1});
  ExpectAllNear(Forward(row.problem).scores,
                {4 * std::tanh(0.75) - 8, 4 * std::tanh(-0.25) - 0.5 + 1, 4 * std::tanh(0.5) - 1},
                kRounding);
  row.problem.score.bias = TensorView();  // nothing to multiply
  ExpectAllNear(Forward(row.problem).scores,
                {4 * std::tanh(0.75), 4 * std::tanh(-0.25) - 0.5, 4 * std::tanh(0.5) - 1},
                kRounding);
}

TEST(Forward, ScaledBiasesSaturateAndOnlyAStoredMinusInfinityRemoves) {
  const float most = std::numeric_limits<float>::max();
  const float bias[] = {-kInf, -most, most, 0, kInf, kNan};
  const double sums[][6] = {// of a score of 1, by the scale; −inf: removed
                            {-kInf, 1 - 2.0 * 0x1p127, 1 + 2.0 * 0x1p127, 1, kInf, kNan},
                            {-kInf, 1, 1, 1, kNan, kNan},
                            {-kInf, 1 + 2.0 * 0x1p127, 1 - 2.0 * 0x1p127, 1, -kInf, kNan}};
  const float scales[] = {2, 0, -3e38f};
  for (int n = 0; n < 3; ++n) {
    for (int64_t j = 0; j < 6; ++j) {
      OneRow row({1});
      row.problem.score.bias = View(bias + j, {1});
      row.problem.score.bias_scales = View(scales + n, {1});
      const ForwardResult r = Forward(row.problem);
      EXPECT_EQ(r.visible[0], j != 0);
      if (std::isnan(sums[n][j])) {
        EXPECT_TRUE(std::isnan(r.scores[0])) << n << " " << j;
      } else if (std::isinf(sums[n][j])) {
        EXPECT_EQ(r.scores[0], sums[n][j]) << n << " " << j;
      } else {
        EXPECT_NEAR(r.scores[0], sums[n][j], std::abs(sums[n][j]) * 0x1p-23) << n << " " << j;
      }
    }
  }
}

TEST(Forward, AScoreFunctionComesBehindTheBiasAndGetsPositions) {
  Example e(MakeSizes(2, 2, 1, 3, 4, 2, 2));
  const float bias[] = {0.5f, 1, -1, 2};
  const int64_t offsets[] = {5, -2};
  e.problem.score.softcap = 1;
  e.problem.score.bias = View(bias, {4});
  e.problem.score.query_offsets = View(offsets, {2});
  const ForwardResult without = Forward(e.problem);
  const auto f = [](float s, int64_t b, int64_t h, int64_t position, int64_t j) {
    return 2 * s + static_cast<float>(1000 * b + 100 * h + 10 * position + j);
  };
  e.problem.score.function = test::EachScore(f);
  const ForwardResult with = Forward(e.problem);
  for (size_t n = 0; n < with.scores.size(); ++n) {
    const int64_t j = static_cast<int64_t>(n) % 4, i = static_cast<int64_t>(n) / 4 % 3,
                  h = static_cast<int64_t>(n) / 12 % 2, b = static_cast<int64_t>(n) / 24;
    const double want =
        2 * without.scores[n] + static_cast<double>(1000 * b + 100 * h + 10 * (i + offsets[b]) + j);
    EXPECT_NEAR(with.scores[n], want, std::abs(want) * 0x1p-22 + 0x1p-22) << n;
  }
  EXPECT_NE(with.weights, without.weights);
}

TEST(Forward, AScoreFunctionRemovesPairsByMinusInfinityAndBringsNoneBack) {
  OneRow row({1, 2, 3, 4});
  row.v = {1, kNan, 3, kNan};
  const bool mask[] = {true, true, true, false};
  const auto f = [](float, int64_t, int64_t, int64_t, int64_t j) { return j == 1 ? -kInf : 0; };
  row.problem.score.mask = View(mask, {4});
  row.problem.score.function = test::EachScore(f);
  row.problem.score.query_offset = 1;
  const ForwardResult r = Forward(row.problem);
  EXPECT_EQ(r.visible, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(r.out, (std::vector<double>{2}));
  EXPECT_EQ(r.scores, (std::vector<double>{0, -kInf, 0, -kInf}));
  EXPECT_EQ(r.lse[0], std::log(2.0));
}

TEST(Forward, SinkAddsToTheDenominatorOnly) {
  OneRow row({std::log(1.0f), std::log(2.0f)});
  const float sink[] = {std::log(5.0f)};
  row.problem.score.sinks = View(sink, {1});
  const ForwardResult r = Forward(row.problem);
  ExpectAllNear(r.weights, {1.0 / 8, 2.0 / 8}, 1e-6);
  ExpectAllNear(r.out, {(1 * 1 + 2 * 2) / 8.0}, 1e-6);
  ExpectAllNear(r.lse, {std::log(8.0)}, 1e-6);
}

TEST(Forward, QueryHeadsShareKeyValueHeadsInGroups) {
  Example e(MakeSizes(1, 6, 2, 1, 3, 2, 2));
  const ForwardResult r = Forward(e.problem);
  for (int64_t h = 0; h < 6; ++h) {
    Problem one = e.problem;
    one.q = Input(e.q.data() + h * 2, {1, 1, 1, 2});
    one.k = Input(e.k.data() + h / 3 * 6, {1, 1, 3, 2});
    one.v = Input(e.v.data() + h / 3 * 6, {1, 1, 3, 2});
    ExpectAllNear(Forward(one).out, {r.out[h * 2], r.out[h * 2 + 1]}, kRounding);
  }
}

// ---- which pairs exist

// The visible pairs of a Tq × Tk problem as rows of 0 and 1.
using Lines = std::vector<std::string>;
Lines Picture(const Problem& problem, int64_t b = 0, int64_t h = 0) {
  const Sizes n = SizesOf(problem);
  Lines rows;
  for (int64_t i = 0; i < n.Tq; ++i) {
    std::string row;
    for (int64_t j = 0; j < n.Tk; ++j) row += Visible(problem, b, h, i, j) ? '1' : '0';
    rows.push_back(row);
  }
  return rows;
}

TEST(Visible, CausalBothWays) {
  Example wide(MakeSizes(1, 1, 1, 2, 4, 1, 1)), tall(MakeSizes(1, 1, 1, 4, 2, 1, 1));
  wide.problem.score.causal = tall.problem.score.causal = Causal::kTopLeft;
  EXPECT_EQ(Picture(wide.problem), (Lines{"1000", "1100"}));
  EXPECT_EQ(Picture(tall.problem), (Lines{"10", "11", "11", "11"}));
  wide.problem.score.causal = tall.problem.score.causal = Causal::kBottomRight;
  EXPECT_EQ(Picture(wide.problem), (Lines{"1110", "1111"}));
  EXPECT_EQ(Picture(tall.problem), (Lines{"00", "00", "10", "11"}));
}

TEST(Visible, OffsetMovesCausalAndWindow) {
  Example e(MakeSizes(1, 1, 1, 2, 5, 1, 1));
  e.problem.score.query_offset = 2;
  e.problem.score.causal = Causal::kBottomRight;  // the explicit offset wins
  EXPECT_EQ(Picture(e.problem), (Lines{"11100", "11110"}));
  e.problem.score.causal = Causal::kNone;
  e.problem.score.window = {1, -1};
  EXPECT_EQ(Picture(e.problem), (Lines{"01111", "00111"}));
  e.problem.score.window = {-1, 1};
  EXPECT_EQ(Picture(e.problem), (Lines{"11110", "11111"}));
  e.problem.score.window = {0, 0};
  EXPECT_EQ(Picture(e.problem), (Lines{"00100", "00010"}));
  e.problem.score.query_offset = -1;
  EXPECT_EQ(Picture(e.problem), (Lines{"00000", "10000"}));
}

TEST(Visible, LengthsAndOffsetsOfEachSequence) {
  Example e(MakeSizes(2, 1, 1, 3, 4, 1, 1));
  const int32_t q_lengths[] = {2, 3};
  const int64_t kv_lengths[] = {4, 3};
  e.problem.score.q_lengths = View(q_lengths, {2});
  e.problem.score.kv_lengths = View(kv_lengths, {2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1111", "1111", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1110", "1110", "1110"}));
  e.problem.score.causal = Causal::kBottomRight;  // the last query of a sequence sees its last key
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1110", "1111", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1000", "1100", "1110"}));
  const int32_t offsets[] = {0, -2};
  e.problem.score.query_offsets = View(offsets, {2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1000", "1100", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"0000", "0000", "1000"}));
}

TEST(Visible, MaskAndMinusInfinityRemovePairsAndLowestDoesNot) {
  Example e(MakeSizes(1, 1, 1, 2, 3, 1, 1));
  const bool mask[] = {true, false, true};
  const float bias[] = {-kInf, std::numeric_limits<float>::lowest()};
  e.problem.score.mask = View(mask, {3});
  EXPECT_EQ(Picture(e.problem), (Lines{"101", "101"}));
  e.problem.score.bias = View(bias, {2, 1});
  EXPECT_EQ(Picture(e.problem), (Lines{"000", "101"}));
}

TEST(Visible, KeyRangesOfEachQuery) {
  Example e(MakeSizes(2, 1, 1, 3, 5, 1, 1));
  const int64_t most = std::numeric_limits<int64_t>::max(),
                least = std::numeric_limits<int64_t>::min();
  const int64_t ranges[] = {1, 3, least, most, 4, 2, /* sequence 1 */ -7, 2, 4, 99, 3, 3};
  e.problem.score.key_ranges = View(ranges, {2, 3, 2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"01100", "11111", "00000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"11000", "00001", "00000"}));
  const int32_t narrow[] = {0, 1, 1, 4, 2, 5};
  e.problem.score.key_ranges = View(narrow, {1, 3, 2});  // of both sequences
  e.problem.score.causal = Causal::kTopLeft;             // all that is given must allow a pair
  for (int64_t b : {0, 1}) EXPECT_EQ(Picture(e.problem, b), (Lines{"10000", "01000", "00100"}));
  e.problem.score.query_offset = 2;  // ranges are of keys: they stay where they are
  EXPECT_EQ(Picture(e.problem), (Lines{"10000", "01110", "00111"}));
}

TEST(Visible, MaskOfBits) {
  Example e(MakeSizes(1, 2, 1, 2, 10, 1, 1));
  const uint8_t mask[] = {0b00000101, 0b10, 0b11110000, 0b01};
  e.problem.score.mask = BitView(mask, {2, 10});
  EXPECT_EQ(Picture(e.problem), (Lines{"1010000001", "0000111110"}));
  e.problem.score.mask = BitView(mask, {2, 1, 10});  // a row for each head
  EXPECT_EQ(Picture(e.problem, 0, 1), (Lines{"0000111110", "0000111110"}));
}

TEST(Visible, BlockMapRemovesWholeBlocks) {
  Example e(MakeSizes(1, 2, 1, 5, 7, 1, 1));
  const bool map[] = {true, false, true, false, true, false, /* head 1 */ false,
                      true, false, true, true,  true};
  // blocks of 3 × 3, the last ones cut off
  e.problem.score.block_map = {View(map, {2, 2, 3}), 3, 3};
  EXPECT_EQ(Picture(e.problem, 0, 0),
            (Lines{"1110001", "1110001", "1110001", "0001110", "0001110"}));
  EXPECT_EQ(Picture(e.problem, 0, 1),
            (Lines{"0001110", "0001110", "0001110", "1111111", "1111111"}));
  const uint8_t bits[] = {0b011};
  e.problem.score.block_map = {BitView(bits, {1, 3}), 5, 3};  // of keys alone
  EXPECT_EQ(Picture(e.problem), (Lines(5, "1111110")));
  e.problem.score.block_map = {BitView(bits, {2}), 100, 4};
  EXPECT_EQ(Picture(e.problem), (Lines(5, "1111111")));
  e.problem.score.causal = Causal::kTopLeft;  // all that is given must allow a pair
  e.problem.score.block_map = {View(map, {2, 2, 3}), 3, 3};
  EXPECT_EQ(Picture(e.problem, 0, 0),
            (Lines{"1000000", "1100000", "1110000", "0001000", "0001100"}));
}

TEST(Visible, TreeShowsAncestorsAndThePast) {
  // 0 has the children 1 and 2, 2 has the child 3; 4 is a root of its own.
  const int32_t parents[] = {-1, 0, 0, 2, -1};
  Example e(MakeSizes(1, 1, 1, 5, 8, 1, 1));
  e.problem.score.parents = View(parents, {1, 5});
  // Nodes' keys from offset 0: those behind the nodes are nobody's.
  EXPECT_EQ(Picture(e.problem),
            (Lines{"10000000", "11000000", "10100000", "10110000", "00001000"}));
  e.problem.score.query_offset = 3;  // three keys of the past
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11110000", "11111000", "11110100", "11110110", "11100001"}));
  e.problem.score.query_offset.reset();
  e.problem.score.causal = Causal::kBottomRight;  // the same offset, and a tree only looks back
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11110000", "11111000", "11110100", "11110110", "11100001"}));
  e.problem.score.window = {2, -1};
  EXPECT_EQ(Picture(e.problem),
            (Lines{"01110000", "00111000", "00010100", "00000110", "00000001"}));
  e.problem.score.window = {-1, -1};
  e.problem.score.causal = Causal::kNone;
  e.problem.score.query_offset = -1;  // node 0 has no key
  EXPECT_EQ(Picture(e.problem),
            (Lines{"00000000", "10000000", "01000000", "01100000", "00010000"}));
  const int64_t wide[] = {-1, 0, 1, 2, 3};  // a chain is causal
  e.problem.score.parents = View(wide, {1, 5});
  e.problem.score.query_offset = 2;
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11100000", "11110000", "11111000", "11111100", "11111110"}));
}

TEST(Visible, TreeOfEachSequenceWithLengths) {
  const int32_t parents[] = {-1, -1, 0, -1, 0, 1}, q_lengths[] = {3, 2}, kv_lengths[] = {4, 3};
  Example e(MakeSizes(2, 1, 1, 3, 4, 1, 1));
  e.problem.score.parents = View(parents, {2, 3});
  e.problem.score.q_lengths = View(q_lengths, {2});
  e.problem.score.kv_lengths = View(kv_lengths, {2});
  e.problem.score.causal = Causal::kBottomRight;  // offsets 1 and 1
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1100", "1010", "1101"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1100", "1110", "0000"}));
}

TEST(Visible, PackedSequencesHaveLengthsAndOffsetsOfTheirOwn) {
  // q rows: one spare, 2, 0 and 3 of sequences; k rows: 3, 1 and 2, one spare
  Example e(MakeSizes(1, 1, 1, 6, 7, 1, 1));
  const int32_t cu_q[] = {1, 3, 3, 6};
  const int64_t cu_k[] = {0, 3, 4, 6};
  e.problem.cu_seqlens_q = View(cu_q, {4});
  e.problem.cu_seqlens_k = View(cu_k, {4});
  const Sizes n = SizesOf(e.problem);
  EXPECT_EQ(n.B, 3);
  EXPECT_EQ(n.Tq, 3);
  EXPECT_EQ(n.Tk, 3);
  e.problem.score.causal = Causal::kBottomRight;
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"110", "111", "000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"000", "000", "000"}));
  EXPECT_EQ(Picture(e.problem, 2), (Lines{"000", "100", "110"}));
  EXPECT_EQ(SequenceOf(e.problem, 0).offset, 1);
  EXPECT_EQ(SequenceOf(e.problem, 1).offset, 1);
  EXPECT_EQ(SequenceOf(e.problem, 2).offset, -1);
  const int32_t q_lengths[] = {1, 0, 3}, kv_lengths[] = {3, 0, 1};
  e.problem.score.q_lengths = View(q_lengths, {3});
  e.problem.score.kv_lengths = View(kv_lengths, {3});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"111", "000", "000"}));
  EXPECT_EQ(Picture(e.problem, 2), (Lines{"000", "000", "100"}));
}

// ---- scores at their stages

TEST(ScoresAt, EveryStageByHand) {
  // q·k = 1, −2, 4, 8 for one query at position 2; the third pair is removed by the mask, the
  // fourth key does not exist.
  OneRow row({1, -2, 4, 8});
  const float slope[] = {0.25f}, bias[] = {0, 1, 0, 0};
  const bool mask[] = {true, true, false, true};
  const int32_t kv_length[] = {3};
  Score& score = row.problem.score;
  score.scale = 0.5f;
  score.softcap = 2;
  score.alibi_slopes = View(slope, {1});
  score.bias = View(bias, {4});
  score.mask = View(mask, {4});
  score.kv_lengths = View(kv_length, {1});
  score.query_offset = 2;
  const double capped[] = {2 * std::tanh(0.25), 2 * std::tanh(-0.5), 2 * std::tanh(1.0)};
  const double masked[] = {capped[0] - 0.5, capped[1] - 0.25 + 1};
  const double sum = std::exp(masked[0]) + std::exp(masked[1]);
  const auto scores_at = [&](ScoreStage stage) { return ScoresAt(row.problem, stage).scores; };
  const auto expect = [&](ScoreStage stage, const std::vector<double>& want) {
    const std::vector<double> got = scores_at(stage);
    ASSERT_EQ(got.size(), 4u);
    for (size_t j = 0; j < 4; ++j) {
      if (std::isinf(want[j])) {
        EXPECT_EQ(got[j], want[j]) << j;
      } else {
        EXPECT_NEAR(got[j], want[j], kRounding) << j;
      }
    }
  };
  const double kNothing = -std::numeric_limits<double>::infinity();
  expect(ScoreStage::kScaled, {0.5, -1, 2, kNothing});
  expect(ScoreStage::kSoftcapped, {capped[0], capped[1], capped[2], kNothing});
  expect(ScoreStage::kMasked, {masked[0], masked[1], kNothing, kNothing});
  expect(ScoreStage::kWeights, {std::exp(masked[0]) / sum, std::exp(masked[1]) / sum, 0, 0});
  score.softcap = 0;
  expect(ScoreStage::kSoftcapped, {0.5, -1, 2, kNothing});
  // Forward gives the stage that the problem asks for.
  EXPECT_TRUE(Forward(row.problem).stage.scores.empty());
  float scores[4];
  row.problem.scores = View(scores, {1, 1, 1, 4});
  row.problem.score_stage = ScoreStage::kScaled;
  EXPECT_EQ(Forward(row.problem).stage.scores, scores_at(ScoreStage::kScaled));
  row.problem.score_stage = ScoreStage::kMasked;
  EXPECT_EQ(Forward(row.problem).stage.scores, Forward(row.problem).scores);
}

TEST(ScoresAt, QueriesBehindTheirLengthHaveNoScore) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 1, 1));
  const int32_t q_length[] = {1};
  e.problem.score.q_lengths = View(q_length, {1});
  for (ScoreStage stage : {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kMasked}) {
    const StageResult r = ScoresAt(e.problem, stage);
    EXPECT_TRUE(std::isfinite(r.scores[0]) && std::isfinite(r.scores[1]));
    EXPECT_TRUE(r.scores[2] == -kInf && r.scores[3] == -kInf);
  }
  EXPECT_EQ(ScoresAt(e.problem, ScoreStage::kWeights).scores[2], 0);
}

TEST(ScoresAt, ToleranceIsOfThePair) {
  OneRow row({1, 3000, -6000});
  const StageResult scaled = ScoresAt(row.problem, ScoreStage::kScaled);
  EXPECT_EQ(scaled.tolerance,
            (std::vector<double>{1e-5, 8 * std::ldexp(3000.0, -24), 8 * std::ldexp(6000.0, -24)}));
  row.problem.score.softcap = 1;  // the error of the product passes through tanh at most whole
  EXPECT_EQ(ScoresAt(row.problem, ScoreStage::kSoftcapped).tolerance, scaled.tolerance);
  OneRow overflowing({3e38f, 1});
  overflowing.problem.score.scale = 2.0f;
  const StageResult r = ScoresAt(overflowing.problem, ScoreStage::kMasked);
  EXPECT_TRUE(std::isinf(r.tolerance[0]));
  EXPECT_EQ(r.tolerance[1], 1e-5);
}

// ---- packed batches

// The problem of sequence b alone: its rows, and of what has Tq or Tk its part.
Problem Alone(const Problem& packed, const Sequence& sequence, int64_t b) {
  Problem alone = packed;
  const auto cut = [](TensorView view, int axis, int64_t first, int64_t count) {
    if (!view.present() || view.shape[axis] == 1) return view;
    view.data = static_cast<const char*>(view.data) + first * view.stride[axis];
    view.shape[axis] = count;
    return view;
  };
  alone.cu_seqlens_q = alone.cu_seqlens_k = TensorView();
  alone.q = cut(cut(packed.q, 0, sequence.queries.batch, 1), 2, sequence.queries.first,
                sequence.queries.count);
  for (TensorView Problem::* kv : {&Problem::k, &Problem::v}) {
    alone.*kv = cut(cut(packed.*kv, 0, sequence.keys.batch, 1), 2, sequence.keys.first,
                    sequence.keys.count);
  }
  Score& score = alone.score;
  score.bias =
      cut(cut(cut(score.bias, 0, b, 1), 2, 0, sequence.queries.count), 3, 0, sequence.keys.count);
  for (TensorView* lengths : {&score.q_lengths, &score.kv_lengths, &score.query_offsets})
    *lengths = cut(*lengths, 0, b, 1);
  score.parents = cut(cut(score.parents, 0, b, 1), 1, 0, sequence.queries.count);
  return alone;
}

// B = 3: packed queries of lengths 2, 0 and 3, packed or dense keys.
struct Packed {
  Example e;
  std::vector<float> bias;
  int32_t cu_q[4] = {1, 3, 3, 6};
  int64_t cu_k[4] = {0, 4, 5, 6};
  int32_t q_lengths[3] = {2, 0, 2};
  int32_t parents[9] = {-1, 0, 0, -1, -1, -1, -1, -1, 0};

  explicit Packed(bool packed_keys)
      : e(packed_keys ? MakeSizes(1, 2, 1, 7, 7, 2, 3) : MakeSizes(1, 2, 1, 7, 12, 2, 3)) {
    if (packed_keys) {
      e.problem.cu_seqlens_k = View(const_cast<const int64_t*>(cu_k), {4});
    } else {
      e.problem.k = Input(e.k.data(), {3, 1, 4, 2});
      e.problem.v = Input(e.v.data(), {3, 1, 4, 3});
    }
    bias = Numbers(3).Take(3 * 2 * 3 * 4);
    e.problem.cu_seqlens_q = View(const_cast<const int32_t*>(cu_q), {4});
    e.problem.score.causal = Causal::kBottomRight;
    e.problem.score.bias = Input(bias.data(), {3, 2, 3, 4});
    e.problem.score.q_lengths = View(const_cast<const int32_t*>(q_lengths), {3});
    e.problem.score.parents = View(const_cast<const int32_t*>(parents), {3, 3});
  }
};

TEST(Packed, EachSequenceIsTheSequenceAlone) {
  for (bool packed_keys : {true, false}) {
    Packed p(packed_keys);
    const Sizes n = SizesOf(p.e.problem);
    ASSERT_EQ(n.B, 3);
    ASSERT_EQ(n.Tq, 3);
    ASSERT_EQ(n.Tk, 4);
    const ForwardResult r = Forward(p.e.problem);
    ASSERT_EQ(r.out.size(), 2u * 7 * 3);
    ASSERT_EQ(r.lse.size(), 2u * 7);
    ASSERT_EQ(r.weights.size(), 3u * 2 * 3 * 4);
    for (int64_t h = 0; h < 2; ++h) {
      for (const int64_t spare : {0, 6})
        EXPECT_TRUE(std::isnan(r.lse[h * 7 + spare]) && std::isnan(r.out[(h * 7 + spare) * 3]));
    }
    for (int64_t b = 0; b < 3; ++b) {
      const Sequence sequence = SequenceOf(p.e.problem, b);
      const Problem problem = Alone(p.e.problem, sequence, b);
      const ForwardResult alone = Forward(problem);
      const StageResult scaled = ScoresAt(p.e.problem, ScoreStage::kScaled),
                        scaled_alone = ScoresAt(problem, ScoreStage::kScaled);
      const int64_t Tq = sequence.queries.count, Tk = sequence.keys.count;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 3; ++i) {
          for (int64_t j = 0; j < 4; ++j) {
            const size_t pair = ((b * 2 + h) * 3 + i) * 4 + j, own = (h * Tq + i) * Tk + j;
            const bool exists = i < Tq && j < Tk;
            ASSERT_EQ(r.weights[pair], exists ? alone.weights[own] : 0) << b << h << i << j;
            ASSERT_EQ(r.scores[pair], exists ? alone.scores[own] : -kInf) << b << h << i << j;
            ASSERT_EQ(scaled.scores[pair], exists ? scaled_alone.scores[own] : -kInf)
                << b << h << i << j;
          }
          if (i >= Tq) continue;
          const int64_t row = h * 7 + p.cu_q[b] + i;
          ASSERT_EQ(r.lse[row], alone.lse[h * Tq + i]);
          for (int64_t c = 0; c < 3; ++c)
            ASSERT_EQ(r.out[row * 3 + c], alone.out[(h * Tq + i) * 3 + c]);
        }
      }
    }
    // the third query of the third sequence is behind its length: padding, which is written
    EXPECT_EQ(r.lse[5], -kInf);
    EXPECT_EQ(r.out[5 * 3], 0);
  }
}

TEST(Packed, NothingOutsideOfTheSequencesIsRead) {
  Packed clean(true), dirty(true);
  for (int64_t h = 0; h < 2; ++h) {
    for (const int64_t spare : {0, 6}) dirty.e.q[(h * 7 + spare) * 2] = kNan;
  }
  dirty.e.k[6 * 2] = dirty.e.v[6 * 3] = kNan;
  const ForwardResult a = Forward(clean.e.problem), b = Forward(dirty.e.problem);
  EXPECT_EQ(a.weights, b.weights);
  for (size_t n = 0; n < a.out.size(); ++n)
    EXPECT_TRUE(a.out[n] == b.out[n] || (std::isnan(a.out[n]) && std::isnan(b.out[n])));
}

// ---- edges

TEST(Forward, EmptyRowsAreZeroAndMinusInfinity) {
  Example e(MakeSizes(1, 1, 1, 3, 2, 2, 2));
  const bool mask[] = {false, true, false};
  e.problem.score.mask = View(mask, {3, 1});
  const ForwardResult r = Forward(e.problem);
  for (const int64_t i : {0, 2}) {
    EXPECT_EQ(r.lse[i], -kInf);
    EXPECT_EQ(r.out[i * 2], 0);
    EXPECT_EQ(r.weights[i * 2], 0);
  }
  EXPECT_NEAR(r.weights[2] + r.weights[3], 1, kRounding);
}

TEST(Forward, SinkOfAnEmptyRowIsItsLseButNotOfPadding) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 1, 1));
  const float sink[] = {1.5f};
  const int32_t q_length[] = {1};
  const bool mask[] = {false};
  e.problem.score.sinks = View(sink, {1});
  e.problem.score.q_lengths = View(q_length, {1});
  e.problem.score.mask = View(mask, {1});
  const ForwardResult r = Forward(e.problem);
  EXPECT_EQ(r.lse[0], 1.5);
  EXPECT_EQ(r.lse[1], -kInf);
  EXPECT_EQ(r.out, (std::vector<double>{0, 0}));
}

TEST(Forward, NoKeysMakesEveryRowEmpty) {
  Example e(MakeSizes(1, 2, 1, 2, 0, 3, 2));
  const ForwardResult r = Forward(e.problem);
  EXPECT_EQ(r.out, std::vector<double>(8, 0));
  EXPECT_EQ(r.lse, std::vector<double>(4, -kInf));
}

TEST(Forward, RemovedPairsMayHoldAnything) {
  OneRow clean({1, 2}), dirty({1, kNan, 2, kInf});
  dirty.v = {1, kInf, 2, kNan};
  const bool mask[] = {true, false, true, true};
  const int32_t kv_length[] = {3};
  dirty.problem.score.mask = View(mask, {4});
  dirty.problem.score.kv_lengths = View(kv_length, {1});
  EXPECT_EQ(Forward(dirty.problem).out, Forward(clean.problem).out);
  EXPECT_EQ(Forward(dirty.problem).lse, Forward(clean.problem).lse);
}

TEST(Forward, NanInAVisibleKeyReachesItsRowsOnly) {
  Example e(MakeSizes(1, 1, 1, 2, 2, 2, 2));
  e.problem.score.causal = Causal::kTopLeft;
  e.k[2] = kNan;  // key 1, which query 0 does not see
  const ForwardResult r = Forward(e.problem);
  EXPECT_TRUE(std::isfinite(r.lse[0]) && std::isfinite(r.out[0]) && std::isfinite(r.out[1]));
  EXPECT_TRUE(std::isnan(r.lse[1]) && std::isnan(r.out[2]) && std::isnan(r.out[3]));
}

TEST(Forward, NanInAVisibleValueReachesItsChannelOnly) {
  Example e(MakeSizes(1, 1, 1, 1, 2, 2, 2));
  e.v[1] = kNan;
  const ForwardResult r = Forward(e.problem);
  EXPECT_TRUE(std::isfinite(r.out[0]) && std::isfinite(r.lse[0]));
  EXPECT_TRUE(std::isnan(r.out[1]));
}

TEST(Forward, PlusInfinityGivesNanAsTheTextbookDoes) {
  OneRow row({1, kInf});
  EXPECT_TRUE(std::isnan(Forward(row.problem).out[0]));
  OneRow biased({1, 1});
  const float bias[] = {0, kInf};
  biased.problem.score.bias = View(bias, {2});
  EXPECT_TRUE(std::isnan(Forward(biased.problem).out[0]));
  EXPECT_TRUE(std::isnan(Forward(biased.problem).lse[0]));
}

// ---- laws

TEST(Forward, WeightsOfARowSumToOneLessTheSink) {
  Example e(MakeSizes(2, 4, 2, 5, 7, 3, 2));
  const float sinks[] = {0, 1, -kInf, 3};
  e.problem.score.causal = Causal::kBottomRight;
  e.problem.score.sinks = View(sinks, {4});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        const Row row = ForwardRow(e.problem, b, h, i);
        EXPECT_NEAR(std::accumulate(row.weights.begin(), row.weights.end(), row.sink_weight), 1,
                    kRounding);
        EXPECT_NEAR(row.sink_weight, std::exp(sinks[h] - row.lse), kRounding);
      }
    }
  }
}

TEST(Forward, LayoutDoesNotMatter) {
  const Sizes n = MakeSizes(2, 2, 2, 3, 4, 3, 2);
  Example dense(n), other(n);
  // q as [B, T, H, d], k with the channels outermost, v backwards along the keys
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        for (int64_t c = 0; c < n.dk; ++c) {
          other.q[((b * n.Tq + i) * n.Hq + h) * n.dk + c] =
              dense.q[((b * n.Hq + h) * n.Tq + i) * n.dk + c];
        }
      }
      for (int64_t j = 0; j < n.Tk; ++j) {
        for (int64_t c = 0; c < n.dk; ++c) {
          other.k[((c * n.B + b) * n.Hkv + h) * n.Tk + j] =
              dense.k[((b * n.Hkv + h) * n.Tk + j) * n.dk + c];
        }
        for (int64_t c = 0; c < n.dv; ++c) {
          other.v[((b * n.Hkv + h) * n.Tk + n.Tk - 1 - j) * n.dv + c] =
              dense.v[((b * n.Hkv + h) * n.Tk + j) * n.dv + c];
        }
      }
    }
  }
  other.problem.q = SwapAxes(Input(other.q.data(), {n.B, n.Tq, n.Hq, n.dk}), 1, 2);
  other.problem.k =
      Input(other.k.data(), {n.B, n.Hkv, n.Tk, n.dk}, {n.Hkv * n.Tk, n.Tk, 1, n.B * n.Hkv * n.Tk});
  other.problem.v = Input(other.v.data() + (n.Tk - 1) * n.dv, {n.B, n.Hkv, n.Tk, n.dv},
                          {n.Hkv * n.Tk * n.dv, n.Tk * n.dv, -n.dv, 1});
  EXPECT_EQ(Forward(other.problem).out, Forward(dense.problem).out);
  EXPECT_EQ(Forward(other.problem).lse, Forward(dense.problem).lse);
}

TEST(Merge, StatesOverDisjointKeysGiveTheWhole) {
  const Sizes n = MakeSizes(1, 2, 1, 3, 6, 2, 2);
  Example e(n);
  const ForwardResult whole = Forward(e.problem);
  // the first two keys, the other four, and a part that sees nothing and holds NaN
  std::vector<std::vector<float>> outs, lses;
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 6}}) {
    Problem part = e.problem;
    part.k = Input(e.k.data() + first * n.dk, {1, 1, last - first, n.dk});
    part.v = Input(e.v.data() + first * n.dv, {1, 1, last - first, n.dv});
    const ForwardResult r = Forward(part);
    outs.emplace_back(r.out.begin(), r.out.end());
    lses.emplace_back(r.lse.begin(), r.lse.end());
  }
  outs.emplace_back(outs[0].size(), kNan);
  lses.emplace_back(lses[0].size(), -kInf);
  std::vector<PartialState> parts;
  for (size_t p = 0; p < outs.size(); ++p) {
    parts.push_back({Input(outs[p].data(), {1, 2, 3, 2}), Input(lses[p].data(), {1, 2, 3})});
  }
  const MergeResult merged = Merge(parts.data(), 3);
  // the parts were stored as float; values and lse are below 4
  const double rounding = 4 * std::ldexp(1.0, -24) * 4;
  ExpectAllNear(merged.out, whole.out, rounding);
  ExpectAllNear(merged.lse, whole.lse, rounding);

  const MergeResult nothing = Merge(&parts[2], 1);
  EXPECT_EQ(nothing.out, std::vector<double>(12, 0));
  EXPECT_EQ(nothing.lse, std::vector<double>(6, -kInf));
  for (const float bad : {kNan, kInf}) {
    lses[1][0] = bad;
    EXPECT_TRUE(std::isnan(Merge(parts.data(), 3).lse[0]));
    EXPECT_TRUE(std::isnan(Merge(parts.data(), 3).out[0]));
  }
}

// ---- what float32 can know

TEST(RelativeTolerance, GrowsWithTheScoresThatMatter) {
  OneRow small({1, 2});
  EXPECT_EQ(RelativeTolerance(ForwardRow(small.problem, 0, 0, 0)), 1e-5);
  OneRow large({3000, 2000});
  EXPECT_EQ(RelativeTolerance(ForwardRow(large.problem, 0, 0, 0)), 8 * std::ldexp(3000.0, -24));
  OneRow far({3000, -1e30f});  // a weight of 0, however wrong its score
  EXPECT_EQ(RelativeTolerance(ForwardRow(far.problem, 0, 0, 0)), 8 * std::ldexp(3000.0, -24));

  const float q[] = {1, 1}, k[] = {5000, -5000}, v[] = {-7, 3};
  Problem cancelling;  // a score of 0 that passes through 5000
  cancelling.q = View(q, {1, 1, 1, 2});
  cancelling.k = View(k, {1, 1, 1, 2});
  cancelling.v = View(v, {1, 1, 1, 2});
  cancelling.score.scale = 1.0f;
  const Row row = ForwardRow(cancelling, 0, 0, 0);
  EXPECT_EQ(row.max_partial_score, 5000);
  EXPECT_EQ(row.max_abs_value, 7);
}

TEST(RelativeTolerance, IsInfiniteWhereScoresOverflowFloat) {
  OneRow row({3e38f, 1});
  EXPECT_FALSE(std::isinf(RelativeTolerance(ForwardRow(row.problem, 0, 0, 0))));
  row.problem.score.scale = 2.0f;
  EXPECT_TRUE(std::isinf(RelativeTolerance(ForwardRow(row.problem, 0, 0, 0))));
  const float lowest[] = {std::numeric_limits<float>::lowest()};
  OneRow biased({-5, 1});
  biased.problem.score.bias = View(lowest, {1});
  // rounds to lowest()
  EXPECT_FALSE(std::isinf(RelativeTolerance(ForwardRow(biased.problem, 0, 0, 0))));
}

// ---- gradients

// Σ out·dout
double Loss(const Problem& problem, const std::vector<float>& dout) {
  const std::vector<double> out = Forward(problem).out;
  double loss = 0;
  for (size_t n = 0; n < out.size(); ++n) {
    if (dout[n] != 0) loss += out[n] * dout[n];  // rows outside of every packed sequence are NaN
  }
  return loss;
}

// The derivative of Loss by every element of `x`, which the problem looks at: five-point central
// differences, exact up to h⁴·f⁽⁵⁾/30.
std::vector<double> Differences(const Problem& problem, const std::vector<float>& dout,
                                std::vector<float>* x) {
  constexpr float h = 1.0f / 256;
  std::vector<double> derivatives;
  for (float& element : *x) {
    const float saved = element;
    const auto loss_at = [&](float step) {
      element = saved + step;
      return Loss(problem, dout);
    };
    const double d = 8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h));
    derivatives.push_back(std::isinf(saved) ? 0 : d / (12 * static_cast<double>(h)));
    element = saved;
  }
  return derivatives;
}
// h⁴/30 = 8e-12 times fifth derivatives of softmax over scores that change by up to 4 per unit:
// below 4⁵ · 24 · Σ|dout·v|
constexpr double kDifferenceError = 1e-6;

void ExpectGradientsMatchDifferences(Example* e) {
  const std::vector<float> dout = Numbers(99).Take(e->n.B * e->n.Hq * e->n.Tq * e->n.dv);
  const GradientResult g =
      Gradients(e->problem, Input(dout.data(), {e->n.B, e->n.Hq, e->n.Tq, e->n.dv}));
  ExpectAllNear(g.dq, Differences(e->problem, dout, &e->q), kDifferenceError);
  ExpectAllNear(g.dk, Differences(e->problem, dout, &e->k), kDifferenceError);
  ExpectAllNear(g.dv, Differences(e->problem, dout, &e->v), kDifferenceError);
}

TEST(Gradients, PlainMatchesDifferences) {
  Example e(MakeSizes(1, 1, 1, 3, 4, 3, 2));
  ExpectGradientsMatchDifferences(&e);
}

TEST(Gradients, MaskedWindowedNegativeScaleMatchesDifferences) {
  Example e(MakeSizes(2, 3, 1, 4, 5, 2, 3), 7);
  const bool mask[] = {true, true, false, true, false};
  const int64_t offsets[] = {1, -2};
  e.problem.score.scale = -0.75f;
  e.problem.score.mask = View(mask, {5});
  e.problem.score.window = {1, 2};  // with these offsets some rows are empty
  e.problem.score.query_offsets = View(offsets, {2});
  ExpectGradientsMatchDifferences(&e);
}

TEST(Gradients, EverythingTogetherMatchesDifferences) {
  const Sizes n = MakeSizes(2, 4, 2, 3, 5, 3, 2);
  Example e(n, 11);
  Numbers numbers(5);
  std::vector<float> bias = numbers.Take(n.B * n.Hq * n.Tq * n.Tk), sinks = numbers.Take(n.Hq);
  bias[3] = bias[17] = bias[40] = -kInf;
  const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f};
  const int32_t q_lengths[] = {2, 3}, kv_lengths[] = {5, 4};
  Score& score = e.problem.score;
  std::vector<float> head_scales = {0.5f, -1.5f, 0, 2};
  const float bias_scales[] = {2, -0.5f, 1, 0};
  const int32_t ranges[] = {0, 4, 1, 9, -2, 3};
  score.head_scales = Input(head_scales.data(), {n.Hq});
  score.bias_scales = View(bias_scales, {n.Hq});
  score.key_ranges = View(ranges, {1, n.Tq, 2});
  score.softcap = 1.5f;
  score.causal = Causal::kBottomRight;
  score.bias = Input(bias.data(), {n.B, n.Hq, n.Tq, n.Tk});
  score.sinks = Input(sinks.data(), {n.Hq});
  score.alibi_slopes = View(slopes, {n.Hq});
  score.q_lengths = View(q_lengths, {2});
  score.kv_lengths = View(kv_lengths, {2});
  ExpectGradientsMatchDifferences(&e);

  const std::vector<float> dout = Numbers(99).Take(n.B * n.Hq * n.Tq * n.dv);
  const GradientResult g = Gradients(e.problem, Input(dout.data(), {n.B, n.Hq, n.Tq, n.dv}));
  ExpectAllNear(g.dsinks, Differences(e.problem, dout, &sinks), kDifferenceError);
  ExpectAllNear(g.dbias, Differences(e.problem, dout, &bias), kDifferenceError);
  ExpectAllNear(g.dhead_scales, Differences(e.problem, dout, &head_scales), kDifferenceError);
}

TEST(Gradients, PackedWithATreeAndABlockMapMatchesDifferences) {
  Packed p(true);
  const bool map[] = {true, true, false, true};
  p.e.problem.score.block_map = {View(map, {2, 2}), 2, 3};
  // Differences take every element of q, k and v in turn: those outside of the sequences have a
  // gradient of 0.
  std::vector<float> dout = Numbers(99).Take(2 * 7 * 3);
  const GradientResult g = Gradients(p.e.problem, Input(dout.data(), {1, 2, 7, 3}));
  for (int64_t h = 0; h < 2; ++h) {
    for (const int64_t spare : {0, 6}) {
      EXPECT_EQ(g.dq[(h * 7 + spare) * 2], 0);
      for (int64_t c = 0; c < 3; ++c) dout[(h * 7 + spare) * 3 + c] = 0;
    }
  }
  ExpectAllNear(g.dq, Differences(p.e.problem, dout, &p.e.q), kDifferenceError);
  ExpectAllNear(g.dk, Differences(p.e.problem, dout, &p.e.k), kDifferenceError);
  ExpectAllNear(g.dv, Differences(p.e.problem, dout, &p.e.v), kDifferenceError);
  ExpectAllNear(g.dbias, Differences(p.e.problem, dout, &p.bias), kDifferenceError);
}

TEST(Gradients, RemovedPairsAndPaddingHaveNoPart) {
  const Sizes n = MakeSizes(1, 1, 1, 2, 3, 2, 2);
  Example clean(n), dirty(n);
  const int32_t one[] = {1}, two[] = {2};
  clean.problem.score.q_lengths = dirty.problem.score.q_lengths = View(one, {1});
  clean.problem.score.kv_lengths = dirty.problem.score.kv_lengths = View(two, {1});
  dirty.q[2] = dirty.k[4] = dirty.v[4] = kNan;  // query 1, key 2
  std::vector<float> dout = {1, 2, 3, 4};
  const TensorView dout_view = Input(dout.data(), {1, 1, 2, 2});
  const GradientResult want = Gradients(clean.problem, dout_view);
  dout[2] = kNan;
  const GradientResult got = Gradients(dirty.problem, dout_view);
  EXPECT_EQ(got.dq, want.dq);
  EXPECT_EQ(got.dk, want.dk);
  EXPECT_EQ(got.dv, want.dv);
  EXPECT_EQ(got.dbias, want.dbias);
  EXPECT_EQ(got.dk[4], 0);
}

}  // namespace
}  // namespace fovea::reference
