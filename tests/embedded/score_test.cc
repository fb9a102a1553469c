// What the header-only edition does with a score: head scales, bias scales, intervals of positions
// and the caller's function, alone and together, against the same in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

namespace fovea::test {
namespace {

constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());

// The caller's function of these tests: a number that differs from pair to pair is added, and some
// pairs are removed. Counts what it is called with.
struct Function {
  uint64_t seed = 0;
  double removes = 0;
  int64_t Hq = 0, rows = 0;  // of a KV head
  int64_t calls = 0;

  float operator()(float s, int64_t b, int64_t h, int64_t position, int64_t j) const {
    Random random(seed);
    for (const int64_t x : {b, h, position, j})
      random = Random(random.Bits() ^ static_cast<uint64_t>(x));
    if (random.Chance(removes)) return -std::numeric_limits<float>::infinity();
    const float added = static_cast<float>(2 * random.Uniform() - 1);
    // Gives a pair that is removed anyway a score, of which nothing must be seen.
    return s == -std::numeric_limits<float>::infinity() ? 1000.0f : s + added;
  }

  static void Apply(void* context, const fovea_score_block* block) noexcept {
    Function& f = *static_cast<Function*>(context);
    ++f.calls;
    EXPECT_EQ(block->size, sizeof(fovea_score_block));
    EXPECT_TRUE(block->row_stride == 1 || block->key_stride == 1);
    EXPECT_GE(block->rows, 1);
    EXPECT_LE(block->rows, f.rows);
    EXPECT_GE(block->keys, 1);
    for (int64_t r = 0; r < block->rows; ++r) {
      EXPECT_GE(block->heads[r], 0);
      EXPECT_LT(block->heads[r], f.Hq);
      for (int64_t c = 0; c < block->keys; ++c) {
        float& s = block->scores[r * block->row_stride + c * block->key_stride];
        s = f(s, block->sequence, block->heads[r], block->query_positions[r],
              block->first_key_position + c);
      }
    }
  }
};

// A problem and all of its memory; tensors are dense and f32.
struct Case {
  embedded::Problem p;
  std::vector<float> q, k, v, bias, out, lse, head_scales, bias_scales;
  std::vector<int64_t> ranges;
  std::vector<int32_t> narrow_ranges, q_lengths, kv_lengths;
  std::vector<embedded::Ring> rings;
  Function function;

  Case(int64_t B, int64_t Hq, int64_t Hkv, int64_t Tq, int64_t Tk, int64_t d, uint64_t seed) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& to, int64_t n) {
      to.resize(static_cast<size_t>(n));
      for (float& x : to) x = static_cast<float>(random.Normal());
      return static_cast<const float*>(to.data());
    };
    p.B = B, p.Hq = Hq, p.Hkv = Hkv, p.Tq = Tq, p.Tk = Tk, p.dk = p.dv = d;
    p.q = embedded::Rows(fill(q, B * Hq * Tq * d), Tq, d, Hq);
    p.k = embedded::Rows(fill(k, B * Hkv * Tk * d), Tk, d, Hkv);
    p.v = embedded::Rows(fill(v, B * Hkv * Tk * d), Tk, d, Hkv);
    fill(out, B * Hq * Tq * d), fill(lse, B * Hq * Tq);
    p.out = embedded::Rows(out.data(), Tq, d, Hq);
    p.lse = embedded::Rows(lse.data(), Tq, 1, Hq);
  }
  void AddBias(Random& random, double removes) {
    bias.resize(static_cast<size_t>(p.B * p.Hq * p.Tq * p.Tk));
    for (float& x : bias)
      x = random.Chance(removes) ? -std::numeric_limits<float>::infinity()
                                 : static_cast<float>(random.Normal());
    p.bias = embedded::Rows(static_cast<const float*>(bias.data()), p.Tq, p.Tk, p.Hq);
  }
  void AddHeadScales(std::vector<float> scales) {
    head_scales = std::move(scales);
    p.head_scales = head_scales.data();
  }
  void AddBiasScales(std::vector<float> scales) {
    bias_scales = std::move(scales);
    p.bias_scales = bias_scales.data();
  }
  void AddFunction(uint64_t seed, double removes) {
    function = {seed, removes, p.Hq, p.Tq * (p.Hq / p.Hkv), 0};
    p.score_function = Function::Apply;
    p.score_context = &function;
  }
};

double At(const embedded::Tensor& tensor, int64_t b, int64_t h, int64_t row, int64_t c) {
  float x;
  std::memcpy(&x,
              static_cast<const char*>(tensor.data) + b * tensor.stride[0] + h * tensor.stride[1] +
                  row * tensor.stride[2] + c * tensor.stride[3],
              sizeof(x));
  return static_cast<double>(x);
}

int64_t RangeAt(const embedded::KeyRanges& ranges, int64_t b, int64_t i, int64_t side) {
  const char* const at = static_cast<const char*>(ranges.data) + b * ranges.stride[0] +
                         i * ranges.stride[1] + side * ranges.stride[2];
  int64_t wide;
  int32_t narrow;
  std::memcpy(&narrow, at, sizeof(narrow));
  if (ranges.is_64_bit) std::memcpy(&wide, at, sizeof(wide));
  return ranges.is_64_bit ? wide : narrow;
}

// One row of the result, in the order of the contract's steps.
void ExpectRow(const Case& c, int64_t b, int64_t h, int64_t i) {
  const embedded::Problem& p = c.p;
  const int64_t group = p.Hq / p.Hkv, g = h / group;
  const int64_t q_length = p.q_lengths != nullptr ? p.q_lengths[b] : p.Tq;
  const int64_t keys = p.rings != nullptr        ? p.rings[b].count()
                       : p.kv_lengths != nullptr ? p.kv_lengths[b]
                                                 : p.Tk;
  const int64_t first = p.rings != nullptr ? p.rings[b].first() : 0;
  const int64_t offset = p.query_offset != embedded::kNoOffset ? p.query_offset
                         : p.causal == Causal::kBottomRight    ? first + keys - q_length
                                                               : 0;
  const auto row_of = [&](int64_t n) { return p.rings != nullptr ? (first + n) % p.Tk : n; };
  double scale =
      p.has_scale ? static_cast<double>(p.scale) : 1 / std::sqrt(static_cast<double>(p.dk));
  if (p.head_scales != nullptr) scale *= static_cast<double>(p.head_scales[h]);

  std::vector<double> scores;
  std::vector<int64_t> seen;
  double m = -kInf, largest = 0;
  for (int64_t n = 0; n < keys && i < q_length; ++n) {
    const int64_t position = i + offset, j = first + n;
    if (p.causal != Causal::kNone && j > position) continue;
    if (p.window_left >= 0 && j < position - p.window_left) continue;
    if (p.window_right >= 0 && j > position + p.window_right) continue;
    if (p.key_ranges.data != nullptr &&
        (j < RangeAt(p.key_ranges, b, i, 0) || j >= RangeAt(p.key_ranges, b, i, 1)))
      continue;
    double s = 0, partial = 0;
    for (int64_t x = 0; x < p.dk; ++x) {
      s += scale * At(p.q, b, h, i, x) * At(p.k, b, g, row_of(n), x);
      partial = std::max(partial, std::fabs(s));
    }
    if (p.bias.data != nullptr) {
      const double bias = At(p.bias, b, h, i, n);
      if (bias == -kInf) continue;
      const double by = p.bias_scales != nullptr ? static_cast<double>(p.bias_scales[h]) : 1;
      s += std::clamp(by * bias, -kMost, kMost);
      partial = std::max(partial, std::fabs(s));
    }
    if (p.score_function != nullptr) {
      s = static_cast<double>(c.function(static_cast<float>(s), b, h, position, j));
      if (s == -kInf) continue;
    }
    largest = std::max({largest, partial, std::fabs(s)});
    m = std::max(m, s);
    scores.push_back(s), seen.push_back(n);
  }

  const size_t row = static_cast<size_t>((b * p.Hq + h) * p.Tq + i);
  const double t = 1e-5 + 8 * 0x1p-24 * largest;
  double l = 0;
  for (const double s : scores) l += std::exp(s - m);
  const double lse = seen.empty() ? -kInf : m + std::log(l), got_lse = c.lse[row];
  EXPECT_TRUE(got_lse == lse || std::fabs(got_lse - lse) <= t + 1e-6 * std::fabs(lse))
      << "lse " << got_lse << ", expected " << lse;
  for (int64_t x = 0; x < p.dv; ++x) {
    double sum = 0, most = 0;
    for (size_t n = 0; n < seen.size(); ++n) {
      const double v = At(p.v, b, g, row_of(seen[n]), x);
      sum += std::exp(scores[n] - m) * v;
      most = std::max(most, std::fabs(v));
    }
    const double want = seen.empty() ? 0 : sum / l;
    const double got = c.out[row * static_cast<size_t>(p.dv) + static_cast<size_t>(x)];
    EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : std::fabs(got - want) <= t * most)
        << "out " << got << ", expected " << want << " ± " << t * most;
  }
}

void ExpectMatches(Case& c) {
  std::vector<float> out;
  for (const Scratch scratch : {Scratch::kFast, Scratch::kLeast}) {
    std::fill(c.out.begin(), c.out.end(), 77.0f), std::fill(c.lse.begin(), c.lse.end(), 77.0f);
    ASSERT_EQ(Compute(c.p, scratch), Error::kOk);
    if (scratch == Scratch::kFast) out = c.out;
  }
  EXPECT_EQ(std::memcmp(out.data(), c.out.data(), out.size() * sizeof(float)), 0)
      << "results depend on scratch";
  for (int64_t b = 0; b < c.p.B; ++b) {
    for (int64_t h = 0; h < c.p.Hq; ++h) {
      for (int64_t i = 0; i < c.p.Tq; ++i) {
        SCOPED_TRACE("b " + std::to_string(b) + " h " + std::to_string(h) + " i " +
                     std::to_string(i));
        ExpectRow(c, b, h, i);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_F(Embedded, StepsOfTheScoreInAnyCombination) {
  Random random(BaseSeed());
  for (int n = 0; n < 300; ++n) {
    SCOPED_TRACE("problem " + std::to_string(n) + " of seed " + std::to_string(BaseSeed()));
    const int64_t B = random.Between(1, 2), Hkv = random.Between(1, 2),
                  Hq = Hkv * random.Between(1, 3), Tk = random.Between(1, 150);
    const int64_t Tq = random.Chance(0.3) ? 1 : random.Between(1, 45);
    Case c(B, Hq, Hkv, Tq, Tk, random.Between(1, 24), random.Bits());
    embedded::Problem& p = c.p;
    const auto scales = [&] {
      std::vector<float> x(static_cast<size_t>(Hq));
      for (float& y : x) y = random.Chance(0.2) ? 0.0f : static_cast<float>(random.Normal());
      return x;
    };
    const auto lengths = [&](std::vector<int32_t>& to, int64_t most) {
      for (int64_t b = 0; b < B; ++b) to.push_back(static_cast<int32_t>(random.Between(0, most)));
      return to.data();
    };
    if (random.Chance(0.5)) c.AddBias(random, random.Chance(0.5) ? 0.3 : 0);
    if (random.Chance(0.5)) c.AddHeadScales(scales());
    if (random.Chance(0.5)) c.AddBiasScales(scales());
    if (random.Chance(0.5)) c.AddFunction(random.Bits(), random.Chance(0.5) ? 0.3 : 0);
    p.causal = static_cast<Causal>(random.Below(3));
    if (random.Chance(0.2)) p.window_left = random.Below(40);
    if (random.Chance(0.2)) p.query_offset = random.Between(-20, 100);
    if (random.Chance(0.3)) p.q_lengths = lengths(c.q_lengths, Tq);
    if (random.Chance(0.2)) {
      for (int64_t b = 0; b < B; ++b) c.rings.push_back({Tk, random.Between(0, 3 * Tk)});
      p.rings = c.rings.data();
    } else if (random.Chance(0.3)) {
      p.kv_lengths = lengths(c.kv_lengths, Tk);
    }
    if (random.Chance(0.6)) {
      const int64_t own = random.Chance(0.5) ? Tq : 0;
      for (int64_t x = 0; x < B * Tq; ++x) {
        c.ranges.push_back(random.Between(-20, Tk));
        c.ranges.push_back(c.ranges.back() + random.Between(-5, Tk));
      }
      for (const int64_t x : c.ranges) c.narrow_ranges.push_back(static_cast<int32_t>(x));
      p.key_ranges = random.Chance(0.5) ? embedded::Ranges(c.ranges.data(), own)
                                        : embedded::Ranges(c.narrow_ranges.data(), own);
    }
    // A value that is not finite reaches the rows that see it and no others.
    if (random.Chance(0.4)) {
      for (int x = 0; x < 3; ++x)
        c.v[static_cast<size_t>(random.Below(static_cast<int64_t>(c.v.size())))] =
            std::numeric_limits<float>::quiet_NaN();
    }
    ExpectMatches(c);
    if (HasFailure()) return;
  }
}

// The product of all factors decides, whatever each of them is.
TEST_F(Embedded, FactorsOfAScoreMayBeExtreme) {
  const struct {
    double q, k, scale, head_scale;
  } factors[] = {
      {1, 1, 1e30, 1e-30},         {1, 1, 1e38, 1e-38},        {1e38, 1e38, 1e-38, 1e-38},
      {1e38, 1e-38, 1e38, 1e-38},  {1e-30, 1e-30, 1e30, 1e30}, {1e30, 1e12, 1e-30, 1e-12},
      {1e30, 1e30, 1e-35, 1e-25},  {1e-20, 1e-10, 1e38, 1e-8}, {1e-38, 1e-30, 1e38, 1e30},
      {1e30, 1e30, -1e-30, 1e-30}, {1e38, 1e-38, 1e38, 0},
  };
  for (const auto& f : factors) {
    for (const int64_t Tq : {1, 35}) {
      SCOPED_TRACE(std::to_string(std::log10(f.q)) + " " +
                   std::to_string(std::log10(f.head_scale)));
      Case c(1, 2, 1, Tq, 40, 9, BaseSeed());
      Random random(BaseSeed());
      for (float& x : c.q) x = static_cast<float>(f.q * (random.Uniform() - 0.5));
      for (float& x : c.k) x = static_cast<float>(f.k * (random.Uniform() - 0.5));
      c.p.has_scale = true, c.p.scale = static_cast<float>(f.scale);
      const float head_scale = static_cast<float>(f.head_scale);
      c.AddHeadScales({head_scale, -head_scale});
      ExpectMatches(c);
    }
  }
  // Beyond everything that f32 holds, but for keys of 0.
  Case c(1, 1, 1, 20, 10, 4, BaseSeed());
  std::fill(c.q.begin(), c.q.end(), 3e38f), std::fill(c.k.begin(), c.k.end(), 0.0f);
  c.p.has_scale = true, c.p.scale = 3e38f;
  c.AddHeadScales({3e38f});
  ExpectMatches(c);
}

TEST_F(Embedded, OnlyAStoredBiasOfMinusInfinityRemoves) {
  for (const float scale : {0.0f, -1.0f, 1.0f, 2.0f, 1e30f}) {
    for (const double stored : {-kMost, -1e10, 0.0}) {
      for (const int64_t Tq : {1, 20}) {
        Case c(1, 1, 1, Tq, 30, 5, BaseSeed());
        Random random(BaseSeed());
        c.AddBias(random, 0);
        c.p.has_scale = true;  // of 0: the bias alone
        for (size_t n = 0; n < c.bias.size(); ++n)
          c.bias[n] =
              n % 3 == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(stored);
        c.v[5 * 3] = std::numeric_limits<float>::quiet_NaN();
        c.AddBiasScales({scale});
        ExpectMatches(c);
        EXPECT_TRUE(std::isfinite(c.lse[0]));
      }
    }
  }
}

TEST_F(Embedded, IntervalsMayBeAnyIntegers) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> ends = {kLeast, kLeast + 1,    -1,       0, 1, 63, 64, 65, 99, 100,
                                     101,    kGreatest - 1, kGreatest};
  for (const int64_t Tq : {int64_t{1}, static_cast<int64_t>(ends.size())}) {
    for (const int64_t begin : ends) {
      Case c(1, 2, 1, Tq, 100, 8, BaseSeed());
      for (int64_t i = 0; i < Tq; ++i) {
        c.ranges.push_back(begin);
        c.ranges.push_back(ends[static_cast<size_t>(i + 7) % ends.size()]);
      }
      c.p.key_ranges = embedded::Ranges(c.ranges.data());
      ExpectMatches(c);
      // The same numbers, from the last query to the first and at odd addresses.
      std::vector<char> memory(c.ranges.size() * 8 + 1);
      for (int64_t i = 0; i < Tq; ++i)
        std::memcpy(&memory[static_cast<size_t>(1 + 16 * (Tq - 1 - i))], &c.ranges[2 * i], 16);
      c.p.key_ranges = {memory.data() + 1 + 16 * (Tq - 1), true, {0, -16, 8}};
      const std::vector<float> want = c.out;
      ExpectMatches(c);
      EXPECT_EQ(c.out, want);
    }
  }
}

TEST_F(Embedded, AFunctionSeesEveryPairAndNoPadding) {
  for (const int64_t Tq : {1, 3, 40}) {
    Case c(2, 4, 2, Tq, 130, 8, BaseSeed());
    struct Seen {
      int64_t Tq;
      std::vector<int> pairs;
    } seen = {Tq, std::vector<int>(static_cast<size_t>(2 * 4 * Tq * 130))};
    c.p.query_offset = 5;
    c.p.score_context = &seen;
    c.p.score_function = [](void* context, const fovea_score_block* block) noexcept {
      Seen& all = *static_cast<Seen*>(context);
      EXPECT_EQ(block->offset, 5);
      for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t i = block->query_positions[r] - block->offset;
        ASSERT_TRUE(i >= 0 && i < all.Tq) << i;
        for (int64_t j = 0; j < block->keys; ++j)
          ++all.pairs[static_cast<size_t>(((block->sequence * 4 + block->heads[r]) * all.Tq + i) *
                                              130 +
                                          block->first_key_position + j)];
      }
    };
    ASSERT_EQ(Compute(c.p), Error::kOk);
    for (const int n : seen.pairs) EXPECT_EQ(n, 1);
  }
}

TEST_F(Embedded, IntervalsOfStridesThatOverflowAreAnError) {
  Case c(2, 1, 1, 3, 4, 5, BaseSeed());
  c.ranges = {0, 4};
  c.p.key_ranges = {c.ranges.data(), true, {0, 0, 8}};
  EXPECT_EQ(Compute(c.p), Error::kOk);
  for (const int axis : {0, 1, 2}) {
    embedded::Problem p = c.p;
    p.key_ranges.stride[axis] = std::numeric_limits<int64_t>::max();
    p.key_ranges.stride[(axis + 1) % 3] = 8;
    EXPECT_EQ(Compute(p), Error::kStride) << axis;
  }
}

}  // namespace
}  // namespace fovea::test
