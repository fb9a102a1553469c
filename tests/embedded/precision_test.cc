// The sums of the header-only edition: their error does not grow with the number of keys, finite
// values give finite results, and rings sum as rows in order do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

namespace fovea::test {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();

// Attention with q = 1 and dk = 1, so that keys are scores, over dense tensors of one head.
struct Scores {
  int64_t Tq = 1, dv = 1;
  std::vector<float> q, k, v, out, lse;
  embedded::Problem p;

  Scores(int64_t queries, int64_t keys, int64_t channels)
      : Tq(queries),
        dv(channels),
        q(static_cast<size_t>(queries), 1.0f),
        k(static_cast<size_t>(keys)),
        v(static_cast<size_t>(keys * channels)),
        out(static_cast<size_t>(queries * channels)),
        lse(static_cast<size_t>(queries)) {
    p.Tq = queries, p.Tk = keys, p.dk = 1, p.dv = channels;
    p.q = embedded::Rows(static_cast<const float*>(q.data()), queries, 1);
    p.k = embedded::Rows(static_cast<const float*>(k.data()), keys, 1);
    p.v = embedded::Rows(static_cast<const float*>(v.data()), keys, channels);
    p.out = embedded::Rows(out.data(), queries, channels);
    p.lse = embedded::Rows(lse.data(), queries, 1);
    p.has_scale = true, p.scale = 1;
  }
  float& V(int64_t j, int64_t c) { return v[static_cast<size_t>(j * dv + c)]; }
  float Out(int64_t i, int64_t c) const { return out[static_cast<size_t>(i * dv + c)]; }
};

// A row's outputs and lse in double; the rows are all the same.
struct Exact {
  std::vector<double> out;
  double lse = 0, max_abs_value = 0;

  explicit Exact(const Scores& s) : out(static_cast<size_t>(s.dv)) {
    const double m = static_cast<double>(*std::max_element(s.k.begin(), s.k.end()));
    double l = 0;
    for (size_t j = 0; j < s.k.size(); ++j) {
      const double weight = std::exp(static_cast<double>(s.k[j]) - m);
      l += weight;
      for (size_t c = 0; c < out.size(); ++c) {
        const double value = static_cast<double>(s.v[j * out.size() + c]);
        out[c] += weight * value;
        max_abs_value = std::max(max_abs_value, std::fabs(value));
      }
    }
    for (double& x : out) x /= l;
    lse = m + std::log(l);
  }
};

struct Distribution {
  const char* name;
  double bound;  // of an error, in units of max|v|
  std::function<double(Random&, int64_t j)> score;
  std::function<double(Random&, int64_t j, int64_t c)> value;
};

// What rounds the same way again and again in a sum that runs over all keys. 1.5e-6 is 25 u,
// u = 2⁻²⁴; a dominant key whose company weighs 0.997 u each loses all 63 of its own block.
const Distribution kDistributions[] = {
    {"equal scores, two values", 1.5e-6, [](Random&, int64_t) { return 0.0; },
     [](Random&, int64_t j, int64_t c) { return (j + j / 7 * (c % 2)) % 2 == 0 ? 0.3 : 0.7; }},
    {"equal scores, constants", 1.5e-6, [](Random&, int64_t) { return 0.0; },
     [](Random&, int64_t, int64_t c) { return 0.1 + 0.13 * static_cast<double>(c); }},
    {"one sign", 1.5e-6, [](Random&, int64_t) { return 0.25; },
     [](Random& random, int64_t, int64_t) { return random.Uniform(); }},
    {"a dominant key", 1.5e-6,
     [](Random& random, int64_t j) { return j == 0 ? 0.0 : -17 + 0.5 * random.Normal(); },
     [](Random& random, int64_t, int64_t) { return 1 + 0.3 * random.Normal(); }},
    {"a dominant key, constants", 1.5e-6,
     [](Random& random, int64_t j) { return j == 0 ? 0.0 : -17 + 0.5 * random.Normal(); },
     [](Random&, int64_t j, int64_t c) { return j > 0 && c % 2 == 1 ? -1.0 : 1.0; }},
    {"a dominant key, all others just below an ulp", 64 * 0x1p-24,
     [](Random&, int64_t j) { return j == 0 ? 0.0 : -16.64; },
     [](Random&, int64_t, int64_t) { return 1.0; }},
    {"scores that rise", 1.5e-6, [](Random&, int64_t j) { return 1e-4 * static_cast<double>(j); },
     [](Random& random, int64_t, int64_t) { return random.Uniform(); }},
    {"normal", 1.5e-6, [](Random& random, int64_t) { return random.Normal(); },
     [](Random& random, int64_t, int64_t) { return random.Normal(); }},
};

TEST_F(Embedded, ErrorsDoNotGrowWithTheNumberOfKeys) {
  for (const Distribution& distribution : kDistributions) {
    for (int64_t keys : {1 << 8, 1 << 10, 1 << 13, 1 << 17, 1 << 20}) {
      if (keys > 1 << 13 && GridStep() > 1) continue;
      const int seeds = keys > 1 << 13 ? 1 : 5;
      for (int seed = 0; seed < seeds; ++seed) {
        Random random(BaseSeed() + static_cast<uint64_t>(seed));
        // in both engines the scores are f32: the double computation starts from the same ones
        for (int64_t queries : {int64_t{1}, int64_t{2} * Instance().lanes}) {
          Scores s(queries, keys, 3);
          for (int64_t j = 0; j < keys; ++j) {
            s.k[static_cast<size_t>(j)] = static_cast<float>(distribution.score(random, j));
            for (int64_t c = 0; c < 3; ++c)
              s.V(j, c) = static_cast<float>(distribution.value(random, j, c));
          }
          ASSERT_EQ(Compute(s.p), Error::kOk);
          const Exact exact(s);
          double worst = 0, worst_lse = 0;
          for (int64_t i = 0; i < queries; ++i) {
            for (int64_t c = 0; c < 3; ++c) {
              worst = std::max(worst, std::fabs(static_cast<double>(s.Out(i, c)) -
                                                exact.out[static_cast<size_t>(c)]));
            }
            const double lse = static_cast<double>(s.lse[static_cast<size_t>(i)]);
            worst_lse = std::max(worst_lse, std::fabs(lse - exact.lse));
          }
          const std::string what = std::string(distribution.name) + ", " + std::to_string(keys) +
                                   " keys, " + std::to_string(queries) + " queries";
          EXPECT_LE(worst, distribution.bound * exact.max_abs_value) << what;
          EXPECT_LE(worst_lse, std::max(1e-5, 1e-6 * std::fabs(exact.lse))) << what;
        }
      }
    }
  }
}

// Long heads, all of one sign: no chain of q·k is longer than 128, in either engine.
TEST_F(Embedded, ErrorsOfScoresDoNotGrowWithTheHeadSize) {
  for (int64_t dk : {128, 512, 1024, 4096}) {
    for (int64_t Tq : {1, 40}) {
      std::vector<float> q(static_cast<size_t>(Tq * dk), 0.78341991f),
          k(static_cast<size_t>(2 * dk)), out(static_cast<size_t>(Tq)),
          lse(static_cast<size_t>(Tq));
      for (int64_t c = 0; c < dk; ++c)
        k[static_cast<size_t>(c)] = 1.00182199f, k[static_cast<size_t>(dk + c)] = 1.00135446f;
      const float v[] = {1, -1};
      embedded::Problem p;
      p.Tq = Tq, p.Tk = 2, p.dk = dk, p.dv = 1;
      p.q = embedded::Rows(static_cast<const float*>(q.data()), Tq, dk);
      p.k = embedded::Rows(static_cast<const float*>(k.data()), 2, dk);
      p.v = embedded::Rows(v, 2, 1);
      p.out = embedded::Rows(out.data(), Tq, 1), p.lse = embedded::Rows(lse.data(), Tq, 1);
      p.has_scale = true, p.scale = 1;
      ASSERT_EQ(Compute(p), Error::kOk);
      const double x = static_cast<double>(q[0]) * static_cast<double>(dk);
      const double a = x * static_cast<double>(k[0]),
                   b = x * static_cast<double>(k[static_cast<size_t>(dk)]);
      // a score is off by the chain and the joins behind it; half of the difference of two reaches
      // the result
      const double chain = std::min(static_cast<double>(dk), 128.0) + static_cast<double>(dk) / 128;
      for (float y : out) {
        EXPECT_NEAR(static_cast<double>(y), std::tanh((a - b) / 2), 1e-5 + chain * 0x1p-24 * a)
            << dk << " channels, " << Tq << " queries";
      }
    }
  }
}

TEST_F(Embedded, FiniteValuesGiveFiniteResults) {
  for (int64_t Tq : {1, 40}) {
    for (int64_t Tk : {2, 70, 3000}) {
      for (float huge : {3e38f, -3e38f, kMost}) {
        const auto fill = [&](Scores& s, bool with_huge) {
          Random random(BaseSeed());
          for (int64_t j = 0; j < Tk; ++j) {
            s.k[static_cast<size_t>(j)] = j % 2 == 0 ? 0.0f : -1e-3f;
            for (int64_t c = 0; c < 21; ++c) s.V(j, c) = static_cast<float>(random.Normal());
            if (with_huge) s.V(j, 0) = huge, s.V(j, 18) = j == 0 ? huge : -huge;
          }
        };
        Scores s(Tq, Tk, 21), plain(Tq, Tk, 21);
        fill(s, true), fill(plain, false);
        ASSERT_EQ(Compute(s.p), Error::kOk);
        ASSERT_EQ(Compute(plain.p), Error::kOk);
        const Exact exact(s);
        for (int64_t i = 0; i < Tq; ++i) {
          for (int64_t c = 0; c < 21; ++c) {
            const double got = static_cast<double>(s.Out(i, c));
            const double want = exact.out[static_cast<size_t>(c)];
            if (c == 0 || c == 18) {
              EXPECT_LE(std::fabs(got - want), 1e-5 * static_cast<double>(kMost))
                  << got << ", expected " << want;
              EXPECT_TRUE(std::isfinite(got)) << "channel " << c << " of " << Tk << " keys";
            } else {
              EXPECT_EQ(got, static_cast<double>(plain.Out(i, c))) << "another channel's bits";
            }
          }
          EXPECT_EQ(s.lse[static_cast<size_t>(i)], plain.lse[static_cast<size_t>(i)]);
        }
      }
    }
  }
}

// Beside channels that overflow: infinite and NaN values stay what they are, rows that do not see
// them keep their bits, and an output of f16 is infinite where it rounds to that.
TEST_F(Embedded, RescueKeepsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int64_t Tq : {3, 40}) {
    Scores s(Tq, Tq, 5);
    for (int64_t j = 0; j < Tq; ++j) {
      s.k[static_cast<size_t>(j)] = 0;
      for (int64_t c = 0; c < 5; ++c) s.V(j, c) = 1;
      s.V(j, 0) = kMost, s.V(j, 3) = 1e6f;
    }
    s.V(1, 1) = infinity, s.V(2, 2) = std::numeric_limits<float>::quiet_NaN();
    s.p.causal = embedded::Causal::kTopLeft;
    ASSERT_EQ(Compute(s.p), Error::kOk);
    for (int64_t i = 0; i < Tq; ++i) {
      EXPECT_NEAR(s.Out(i, 0) / kMost, 1, 1e-5);
      EXPECT_EQ(s.Out(i, 1), i < 1 ? 1 : infinity) << "row " << i;
      EXPECT_EQ(std::isnan(s.Out(i, 2)), i >= 2) << "row " << i;
      EXPECT_EQ(s.Out(i, 4), 1);
    }
    std::vector<uint16_t> halves(static_cast<size_t>(Tq * 5));
    s.p.out = embedded::Rows(halves.data(), Tq, 5);
    ASSERT_EQ(Compute(s.p), Error::kOk);
    for (int64_t i = 0; i < Tq; ++i) {
      const uint16_t* row = halves.data() + i * 5;
      EXPECT_EQ(row[0], 0x7C00);
      EXPECT_EQ(row[3], 0x7C00);
      EXPECT_EQ(row[4], 0x3C00);
    }
  }
}

// A ring that wraps anywhere has the bits of the same keys in order.
TEST_F(Embedded, ARingHasTheBitsOfRowsInOrder) {
  for (int64_t capacity : {1, 37, 64, 100, 1100}) {
    for (int64_t head :
         {int64_t{0}, int64_t{1}, capacity / 3, capacity - 1}) {  // row of the oldest
      for (int64_t Tq : {1, 33}) {
        for (DType type : {DType::kF32, DType::kF16}) {
          ProblemSpec spec;
          spec.Hq = 2, spec.Tq = Tq, spec.Tk = capacity, spec.dk = 20, spec.dv = 18;
          spec.k_type = spec.v_type = type;
          spec.query_offset = 0;
          RandomProblem p(spec, BaseSeed());
          ASSERT_EQ(Compute(Convert(p.problem)->problem), Error::kOk);
          const std::vector<unsigned char> want = p.out.Bytes();
          OwnedTensor k(type, {1, 1, capacity, 20}), v(type, {1, 1, capacity, 18});
          for (int64_t j = 0; j < capacity; ++j) {
            const int64_t row = (head % capacity + j) % capacity;
            for (int64_t c = 0; c < 20; ++c) k.SetAt({0, 0, row, c}, p.k.At({0, 0, j, c}));
            for (int64_t c = 0; c < 18; ++c) v.SetAt({0, 0, row, c}, p.v.At({0, 0, j, c}));
          }
          const embedded::Ring ring = {capacity, capacity + head % capacity};
          const auto converted = Convert(p.problem);
          converted->problem.k = TensorOf<embedded::Tensor>(k.view());
          converted->problem.v = TensorOf<embedded::Tensor>(v.view());
          converted->problem.rings = &ring;
          p.ResetOutputs();
          ASSERT_EQ(Compute(converted->problem), Error::kOk);
          EXPECT_TRUE(p.out.Bytes() == want)
              << capacity << " rows from " << head << ", " << Tq << " queries";
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::test
