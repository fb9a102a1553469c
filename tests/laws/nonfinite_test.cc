// The rules of −inf, NaN and Inf on every kernel: what is removed is not seen, what is visible is
// not hidden. Those of empty rows are in empty_row_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::SmallSpec;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLowest = static_cast<double>(std::numeric_limits<float>::lowest());

// ---- removed pairs ----

TEST(RemovedPairTest, BadValuesInRemovedKeysNeverReachTheRow) {
  // The same keys removed in nine ways; K and V hold every bad value there.
  for (int how = 0; how < 9; ++how) {
    for (double bad : test::Thinned({kNaN, kInf, -kInf, 3e38})) {
      ProblemSpec s = SmallSpec();
      s.Tq = s.Tk = 70;
      if (how == 0) s.mask = Axes::kK;
      if (how == 1) s.bias = Axes::kK;
      // the last 30 keys see nobody
      if (how == 2) s.causal = Causal::kTopLeft, s.query_offset = -30;
      if (how == 3) s.window = {-1, 0}, s.query_offset = -30;
      if (how == 4) s.kv_lengths = DType::kI32;
      if (how == 5) s.mask = Axes::kBHQK;
      if (how == 6) s.mask = Axes::kK, s.mask_type = DType::kBit;
      if (how == 7) s.block_map = Axes::kK, s.block_queries = 3, s.block_keys = 20;
      // the last 30 keys are of nodes that do not exist
      if (how == 8) s.parents = DType::kI32, s.query_offset = -30;
      RandomProblem p(s, test::BaseSeed());
      if (how == 0) p.mask.Fill([n = 0]() mutable { return n++ < 40 ? 1.0 : 0.0; });
      if (how == 1) p.bias.Fill([n = 0]() mutable { return n++ < 40 ? 0.5 : -kInf; });
      if (how == 4) {
        p.kv_lengths.Fill([] { return 40; });
        test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
        for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
      }
      if (how == 5) p.mask.Fill([n = int64_t{0}]() mutable { return n++ % 70 < 40 ? 1.0 : 0.0; });
      if (how == 6) p.mask.Fill([n = 0]() mutable { return n++ < 40 ? 1.0 : 0.0; });
      if (how == 7) p.block_map.Fill([n = 0]() mutable { return n++ < 2 ? 1.0 : 0.0; });
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t h = 0; h < s.Hkv; ++h) {
          for (int64_t j = 40; j < s.Tk; ++j) {
            p.k.SetAt({b, h, j, j % s.dk}, bad);
            p.v.SetAt({b, h, j, j % s.dv}, bad);
          }
        }
      }
      SCOPED_TRACE("bad " + std::to_string(bad) + " removed by " + std::to_string(how));
      test::ExpectMatchesReference(p);
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 4)) {
        RunOn(kernel, p);
        for (double x : p.out.Dense()) ASSERT_TRUE(std::isfinite(x)) << ToString(kernel);
        for (double x : p.weights.Dense()) ASSERT_TRUE(std::isfinite(x)) << ToString(kernel);
      }
    }
  }
}

TEST(RemovedPairTest, SomeRowsSeeTheBadKeyAndOthersDoNot) {
  // A bad key beside the diagonal: in one tile, some rows see it and some do not.
  for (double bad : {kNaN, kInf, -kInf}) {
    for (bool in_k : {false, true}) {
      for (int64_t key : test::Thinned({0, 5, 18, 33, 69})) {
        ProblemSpec s = SmallSpec();
        s.Tq = s.Tk = 70, s.causal = Causal::kTopLeft;
        RandomProblem p(s, test::BaseSeed());
        for (int64_t h = 0; h < s.Hkv; ++h) {
          if (in_k) {
            p.k.SetAt({0, h, key, 2}, bad);
          } else {
            p.v.SetAt({0, h, key, 2}, bad);
          }
        }
        for (const Kernel& kernel : test::Thinned(test::Kernels(), 2)) {
          for (int32_t rows : {0, 3}) {
            PlanOptions options;
            options.tile_rows = rows, options.block_keys = rows == 0 ? 0 : 5;
            RunOn(kernel, p, options);
            for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
              const bool sees = row / (s.Hq * s.Tq) == 0 && row % s.Tq >= key;
              for (int64_t c = 0; c < s.dv; ++c) {
                const double x = p.out.Get(row * s.dv + c);
                if (!sees || (!in_k && c != 2)) {
                  ASSERT_TRUE(std::isfinite(x))
                      << ToString(kernel) << " key " << key << " row " << row << " channel " << c
                      << (in_k ? " k " : " v ") << bad;
                } else if (!in_k) {
                  // Inf·p is Inf, unless p is 0 in f32: NaN. Never finite.
                  ASSERT_FALSE(std::isfinite(x))
                      << ToString(kernel) << " key " << key << " row " << row;
                } else if (std::isnan(bad)) {
                  ASSERT_TRUE(std::isnan(x))
                      << ToString(kernel) << " key " << key << " row " << row;
                }
              }
              if (in_k && std::isnan(bad)) {
                ASSERT_EQ(std::isnan(p.lse.Get(row)), sees) << ToString(kernel) << " row " << row;
              }
            }
          }
        }
        if (in_k) test::ExpectMatchesReference(p);
      }
    }
  }
}

TEST(RemovedPairTest, RowsThatDoNotSeeABadKeyStayFiniteWhateverRemovesIt) {
  // Bad keys here and there, some in areas that are removed for whole tiles, some for single rows.
  for (int how = 0; how < 4; ++how) {
    for (bool in_k : {false, true}) {
      ProblemSpec s = SmallSpec();
      s.Tq = 40, s.Tk = 200, s.weights = false;
      if (how < 2) s.mask = Axes::kHQK, s.mask_type = how == 0 ? DType::kBool : DType::kBit;
      if (how == 2) s.block_map = Axes::kHQK, s.block_queries = 3, s.block_keys = 20;
      if (how == 3) s.parents = DType::kI32, s.query_offset = 160;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t n = 0; n < p.mask.size(); ++n) {
        const int64_t i = n / s.Tk % s.Tq, j = n % s.Tk;
        p.mask.Set(n, i / 16 == j / 64 && (i + j) % 3 != 0);
      }
      const std::vector<int64_t> bad_keys =
          how == 3 ? std::vector<int64_t>{165, 180, 199} : std::vector<int64_t>{5, 70, 130, 199};
      for (int64_t j : bad_keys) {
        for (int64_t h = 0; h < s.Hkv; ++h) (in_k ? p.k : p.v).SetAt({0, h, j, 2}, kNaN);
      }
      SCOPED_TRACE("removed by " + std::to_string(how) + (in_k ? " k" : " v"));
      test::ExpectMatchesReference(p);
      for (const Kernel& kernel : test::Kernels()) {
        RunOn(kernel, p);
        for (int64_t h = 0; h < s.Hq; ++h) {
          for (int64_t i = 0; i < s.Tq; ++i) {
            bool sees = false;
            for (int64_t j : bad_keys) sees = sees || p.Visible(0, h, i, j);
            for (int64_t c = 0; c < s.dv; ++c) {
              ASSERT_EQ(std::isnan(p.out.At({0, h, i, c})), sees && (in_k || c == 2))
                  << ToString(kernel) << " " << h << " " << i << " " << c;
            }
          }
        }
      }
    }
  }
}

TEST(RemovedPairTest, BadBiasUnderAMaskIsNotSeen) {
  for (double bad : {kNaN, kInf}) {
    for (bool causal : {false, true}) {
      ProblemSpec s = SmallSpec();
      s.bias = Axes::kQK;
      if (causal) {
        s.causal = Causal::kTopLeft;
      } else {
        s.mask = Axes::kQK;
      }
      RandomProblem p(s, test::BaseSeed());
      for (int64_t i = 0; i < s.Tq; ++i) {
        for (int64_t j = 0; j < s.Tk; ++j) {
          if (!p.Visible(0, 0, i, j)) p.bias.SetAt({i, j}, bad);
        }
      }
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(RemovedPairTest, LowestFiniteBiasDoesNotRemove) {
  ProblemSpec s = SmallSpec();
  s.bias = Axes::kQK;
  for (const Kernel& kernel : test::Kernels()) {
    RandomProblem p(s, test::BaseSeed());
    // Rows where all keys have it: the mean of V by q·k is lost in the rounding of lowest(), so all
    // weigh the same. Others: weight 0.
    for (int64_t i = 0; i < s.Tq; ++i) {
      for (int64_t j = 0; j < s.Tk; ++j) p.bias.SetAt({i, j}, i % 2 == 0 || j < 30 ? kLowest : 0.0);
    }
    RunOn(kernel, p);
    for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
      const bool all = row % s.Tq % 2 == 0;
      for (int64_t j = 0; j < s.Tk; ++j) {
        const double w = p.weights.Get(row * s.Tk + j);
        if (all) {
          ASSERT_NEAR(w, 1.0 / static_cast<double>(s.Tk), 1e-6)
              << ToString(kernel) << " row " << row;
        } else if (j < 30) {
          ASSERT_EQ(w, 0) << ToString(kernel);
        }
      }
      ASSERT_TRUE(std::isfinite(p.lse.Get(row))) << ToString(kernel) << " row " << row;
    }
  }
}

TEST(RemovedPairTest, LowestBiasOnTheOnlyVisibleKeysKeepsTheRow) {
  // Beside removed pairs: lowest() is finite and must win over nothing.
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    ProblemSpec s = SmallSpec();
    s.bias = Axes::kQK, s.bias_type = type;
    RandomProblem p(s, test::BaseSeed());
    const double lowest = type == DType::kF16    ? -65504.0
                          : type == DType::kBF16 ? -0x1.FEp127
                                                 : kLowest;
    p.bias.Fill([n = 0, lowest]() mutable { return n++ % 3 == 0 ? lowest : -kInf; });
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, p);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        double sum = 0;
        for (int64_t j = 0; j < s.Tk; ++j) {
          const double w = p.weights.Get(row * s.Tk + j);
          ASSERT_EQ(w > 0, (row % s.Tq * s.Tk + j) % 3 == 0)
              << ToString(kernel) << " " << Name(type);
          sum += w;
        }
        ASSERT_NEAR(sum, 1, 1e-5) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

// ---- what is visible is not hidden ----

TEST(VisibleNaNTest, NaNInAQueryGivesANaNRowAndOnlyThatRow) {
  ProblemSpec s = SmallSpec();
  for (const Kernel& kernel : test::Kernels()) {
    for (int64_t i : test::Thinned({0, 3, 18})) {
      RandomProblem p(s, test::BaseSeed());
      p.q.SetAt({1, 2, i, 19}, kNaN);
      RunOn(kernel, p);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        const bool bad = row == (1 * s.Hq + 2) * s.Tq + i;
        ASSERT_EQ(std::isnan(p.lse.Get(row)), bad) << ToString(kernel) << " row " << row;
        for (int64_t c = 0; c < s.dv; ++c)
          ASSERT_EQ(std::isnan(p.out.Get(row * s.dv + c)), bad)
              << ToString(kernel) << " row " << row;
      }
    }
  }
}

TEST(VisibleNaNTest, NaNInAVisibleKeyGivesNaNRowsEvenBesideLargerScores) {
  // max(NaN, x) hides NaN on some targets; wherever the key stands, and whatever the others'
  // scores.
  for (int64_t key : {0, 1, 15, 16, 17, 31, 32, 63, 64, 69}) {
    for (float scale : test::Thinned({0.2f, 100.0f, 0.0f})) {
      ProblemSpec s = SmallSpec();
      s.scale = scale, s.sinks = key % 2 == 1, s.softcap = key % 3 == 0 ? 5.0f : 0.0f;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t b = 0; b < s.B; ++b) p.k.SetAt({b, 1, key, 0}, kNaN);
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 4)) {
        RunOn(kernel, p);
        for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
          const bool bad = row / s.Tq % s.Hq >= 2;
          ASSERT_EQ(std::isnan(p.lse.Get(row)), bad)
              << ToString(kernel) << " key " << key << " scale " << scale;
          for (int64_t c = 0; c < s.dv; ++c)
            ASSERT_EQ(std::isnan(p.out.Get(row * s.dv + c)), bad)
                << ToString(kernel) << " key " << key << " scale " << scale;
        }
      }
    }
  }
}

TEST(VisibleNaNTest, NaNInAVisibleValueReachesItsChannelOnly) {
  for (int64_t key : {0, 16, 33, 69}) {
    ProblemSpec s = SmallSpec();
    s.weights = false;
    RandomProblem p(s, test::BaseSeed());
    p.v.SetAt({0, 1, key, 17}, kNaN);
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, p);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        const bool reads = row / s.Tq / s.Hq == 0 && row / s.Tq % s.Hq >= 2;
        for (int64_t c = 0; c < s.dv; ++c)
          ASSERT_EQ(std::isnan(p.out.Get(row * s.dv + c)), reads && c == 17)
              << ToString(kernel) << " row " << row << " channel " << c;
        ASSERT_TRUE(std::isfinite(p.lse.Get(row))) << ToString(kernel);
      }
    }
  }
}

TEST(VisibleNaNTest, NaNInAValueOfWeightZeroIsNotHidden) {
  // The score of key 10 is 200 below all others, which lie in other splits.
  ProblemSpec s;
  s.Tk = 600, s.dv = 3, s.scale = 1.0f;
  RandomProblem p(s, test::BaseSeed());
  p.q.Fill([] { return 1; });
  p.k.Fill([n = 0]() mutable { return n++ < 64 ? -200 : 0; });
  for (double bad : {kNaN, kInf}) {
    p.v.SetAt({0, 0, 10, 1}, bad);
    for (const Kernel& kernel : test::Kernels()) {
      for (int64_t split : {0, 64, 100}) {
        PlanOptions options;
        options.split_keys = split;
        RunOn(kernel, p, options);
        for (int64_t c = 0; c < 3; ++c)
          EXPECT_EQ(std::isnan(p.out.Get(c)), c == 1) << ToString(kernel) << " splits of " << split;
      }
    }
  }
}

TEST(VisibleNaNTest, PlusInfinityInAScoreOrBiasGivesNaN) {
  for (int how = 0; how < 2; ++how) {
    ProblemSpec s = SmallSpec();
    s.bias = Axes::kQK;
    RandomProblem p(s, test::BaseSeed());
    if (how == 0) {
      p.bias.SetAt({5, 40}, kInf);
    } else {
      p.q.Fill([] { return 1.0; });
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t h = 0; h < s.Hkv; ++h) {
          for (int64_t c = 0; c < s.dk; ++c) p.k.SetAt({b, h, 40, c}, kInf);
        }
      }
    }
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, p);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        const bool bad = how == 1 || row % s.Tq == 5;
        for (int64_t c = 0; c < s.dv; ++c)
          ASSERT_EQ(std::isnan(p.out.Get(row * s.dv + c)), bad)
              << ToString(kernel) << " row " << row << " how " << how;
      }
    }
  }
}

TEST(VisibleNaNTest, MinusInfinityAsAScoreOfAVisibleKeyHasWeightZero) {
  // Not removed by anything, but s = −inf: exp is 0, the row goes on.
  ProblemSpec s = SmallSpec();
  s.scale = 1.0f;
  RandomProblem p(s, test::BaseSeed());
  p.q.Fill([] { return 1.0; });
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.Hkv; ++h) p.k.SetAt({b, h, 40, 3}, -kInf);
  }
  for (const Kernel& kernel : test::Kernels()) {
    RunOn(kernel, p);
    for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
      ASSERT_TRUE(std::isfinite(p.lse.Get(row))) << ToString(kernel);
      ASSERT_EQ(p.weights.Get(row * s.Tk + 40), 0) << ToString(kernel);
      for (int64_t c = 0; c < s.dv; ++c)
        ASSERT_TRUE(std::isfinite(p.out.Get(row * s.dv + c))) << ToString(kernel);
    }
  }
}

}  // namespace
}  // namespace fovea
