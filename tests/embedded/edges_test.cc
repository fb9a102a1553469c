// The header-only edition where values are not finite, rows are empty, queries are extreme or
// strides mean nothing; and what must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

namespace fovea::test {
namespace {

TEST_F(Embedded, NonFiniteValuesReachTheRowsThatSeeThem) {
  Random random(BaseSeed());
  for (int n = 0; n < 200; ++n) {
    ProblemSpec spec = RandomSpec(random);
    spec.kv_lengths = DType::kNone;
    // no weight is so small that f32 has it as 0, and its product with infinity as NaN
    spec.scale.reset();
    const uint64_t seed = random.Bits();
    if (n % GridStep() != 0) continue;
    RandomProblem p(spec, seed);
    // In K or in V: of rows that see scores of −inf alone the reference gives no bound beside
    // infinite values.
    Random places(seed);
    OwnedTensor& tensor = places.Chance(0.5) ? p.v : p.k;
    for (int x = 0; x < 3; ++x)
      tensor.Set(places.Below(tensor.size()), places.Pick(std::vector<double>{kNan, kInf, -kInf}));
    ExpectMatches(p);
    if (HasFailure()) return;
  }
}

// Every key but the last two holds NaN and is removed by causal, window or bias.
TEST_F(Embedded, RemovedKeysMayHoldNan) {
  for (int removal = 0; removal < 3; ++removal) {
    for (int64_t Tq : {1, 40}) {
      ProblemSpec spec;
      spec.Hq = 4, spec.Hkv = 2, spec.Tq = Tq, spec.Tk = 140, spec.dk = 24, spec.dv = 18;
      if (removal == 0)
        spec.window = {1, 0}, spec.query_offset = 139, spec.causal = Causal::kTopLeft;
      // sees the first keys only
      if (removal == 1) spec.query_offset = -1000, spec.window = {-1, 1000 - Tq + 1};
      if (removal == 2) spec.bias = Axes::kK;
      RandomProblem p(spec, BaseSeed());
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t j = 0; j < 140; ++j) {
          const bool alive = removal == 1 ? j < 2 : j >= 138;
          if (alive) continue;
          if (removal == 2) p.bias.Set(j, -kInf);
          for (int64_t c = 0; c < 24; ++c) p.k.SetAt({0, h, j, c}, c % 2 == 0 ? kNan : kInf);
          for (int64_t c = 0; c < 18; ++c) p.v.SetAt({0, h, j, c}, c % 2 == 0 ? kNan : -kInf);
        }
      }
      ExpectMatches(p);
      const std::vector<double> out = p.out.Dense();
      if (removal == 2) {
        EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](double x) { return std::isfinite(x); }));
      }
    }
  }
}

TEST_F(Embedded, EmptyRowsAreZero) {
  ProblemSpec spec;
  // 33 rows see nothing
  spec.B = 2, spec.Hq = 2, spec.Tq = 40, spec.Tk = 7, spec.dk = 9, spec.dv = 10,
  spec.causal = Causal::kBottomRight;
  RandomProblem p(spec, BaseSeed());
  ExpectMatches(p);
  EXPECT_EQ(p.out.At({1, 1, 32, 9}), 0);
  EXPECT_EQ(p.lse.At({1, 1, 32}), -kInf);
  EXPECT_NE(p.out.At({1, 1, 33, 9}), 0);
}

TEST_F(Embedded, ExtremeQueries) {
  const struct {
    double q, k, scale;
  } sizes[] = {{1e30, 1e-30, 1e10}, {1e-30, 1e30, 1e-20}, {3e38, 1e-38, 2.0}, {1e-36, 1e36, 0.1}};
  for (const auto& size : sizes) {
    for (int64_t Tq : {1, 35}) {
      ProblemSpec spec;
      spec.Tq = Tq, spec.Tk = 30, spec.dk = 8, spec.dv = 8,
      spec.scale = static_cast<float>(size.scale);
      RandomProblem p(spec, BaseSeed());
      Random random(BaseSeed());
      p.q.Fill([&] { return size.q * (random.Uniform() - 0.5); });
      p.k.Fill([&] { return size.k * (random.Uniform() - 0.5); });
      ExpectMatches(p);
    }
  }
}

TEST_F(Embedded, ASequenceHasTheSameBitsInAnyBatch) {
  for (int64_t Tq : {1, 3, 50}) {
    ProblemSpec spec;
    spec.B = 3, spec.Hq = 4, spec.Hkv = 2, spec.Tq = Tq, spec.Tk = 150, spec.dk = 40, spec.dv = 24,
    spec.causal = Causal::kBottomRight;
    spec.kv_lengths = DType::kI32, spec.q_lengths = DType::kI32;
    RandomProblem p(spec, BaseSeed());
    auto all = Convert(p.problem);
    ASSERT_EQ(Compute(all->problem), Error::kOk);
    const std::vector<unsigned char> want = p.out.Bytes();
    for (int64_t b = 0; b < 3; ++b) {
      auto one = Convert(p.problem);
      embedded::Problem& e = one->problem;
      const auto advance = [&](auto& tensor) {
        using Byte =
            std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>,
                               const char, char>;
        tensor.data = static_cast<Byte*>(tensor.data) + b * tensor.stride[0];
      };
      advance(e.q), advance(e.k), advance(e.v), advance(e.out), advance(e.lse);
      e.B = 1, e.q_lengths += b, e.kv_lengths += b;
      const size_t bytes = want.size() / 3;
      std::memset(e.out.data, 0xFF, bytes);
      ASSERT_EQ(Compute(e), Error::kOk);
      const std::vector<unsigned char> got = p.out.Bytes();
      EXPECT_TRUE(got == want) << "sequence " << b << " of " << Tq << " queries";
    }
  }
}

TEST_F(Embedded, QueriesBehindALengthChangeNoBits) {
  for (double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1.0}) {
    for (int64_t length : {1, 3, 20}) {
      std::vector<double> want;
      for (int64_t more : {0, 1, 12, 40}) {
        ProblemSpec spec;
        spec.Tq = length, spec.Tk = 48, spec.dk = 16, spec.dv = 16;
        RandomProblem p(spec, BaseSeed());
        p.v.SetAt({0, 0, 5, 3}, bad);
        // The same queries, and behind them others that are NaN.
        OwnedTensor q(DType::kF32, {1, 1, length + more, 16}),
            out(DType::kF32, {1, 1, length + more, 16});
        q.Fill([] { return std::numeric_limits<double>::quiet_NaN(); });
        for (int64_t n = 0; n < length * 16; ++n) q.Set(n, p.q.Get(n));
        p.problem.q = q.view(), p.problem.out = out.mutable_view(), p.problem.lse = {};
        auto converted = Convert(p.problem);
        const int32_t q_length = static_cast<int32_t>(length);
        converted->problem.q_lengths = &q_length;
        ASSERT_EQ(Compute(converted->problem), Error::kOk);
        std::vector<double> got = out.Dense();
        for (int64_t n = length * 16; n < out.size(); ++n)
          ASSERT_EQ(got[static_cast<size_t>(n)], 0);
        got.resize(static_cast<size_t>(length * 16));
        for (double& x : got) x = std::isnan(x) ? 12345.0 : x;
        if (more == 0) want = got;
        EXPECT_TRUE(got == want) << length << " queries and " << more << " behind them, " << bad
                                 << " in V";
      }
    }
  }
}

TEST_F(Embedded, StridesOfAxesOfOneElementAreNotLookedAt) {
  struct Sizes {
    int64_t Tq, Tk, d;
  };
  for (const Sizes sizes :
       {Sizes{1, 1, 1}, Sizes{1, 300, 1}, Sizes{40, 1, 20}, Sizes{40, 300, 1}}) {
    ProblemSpec spec;
    spec.Tq = sizes.Tq, spec.Tk = sizes.Tk, spec.dk = spec.dv = sizes.d;
    RandomProblem p(spec, BaseSeed());
    for (const int64_t stride : {INT64_MAX, -(int64_t{1} << 62)}) {
      for (TensorView* view : {&p.problem.q, &p.problem.k, &p.problem.v}) {
        for (int a = 0; a < view->rank; ++a) {
          if (view->shape[a] == 1) view->stride[a] = stride;
        }
      }
      ExpectMatches(p);
    }
  }
}

}  // namespace
}  // namespace fovea::test
