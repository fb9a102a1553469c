// Products: which a plan chooses, which can be forced, and what dot products of bf16 promise. Every
// kernel that has them takes part, natively or emulated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "kernels/registry.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Kernel;
using test::ProblemSpec;
using test::RandomProblem;

ProblemSpec BF16(ProblemSpec s) {
  s.q_type = s.k_type = s.v_type = DType::kBF16;
  return s;
}

ProblemSpec Shape(int64_t Tq, int64_t Tk, int64_t dk, int64_t dv) {
  ProblemSpec s;
  s.Hq = 2, s.Tq = Tq, s.Tk = Tk, s.dk = dk, s.dv = dv;
  return s;
}

// ---- choice ----

TEST(ProductTest, SomeTargetHasDotProductsOfBF16) {
  // Emulated at least: what follows is no test of nothing.
  EXPECT_FALSE(test::BF16Kernels().empty());
  for (const Kernel& kernel : test::BF16Kernels())
    EXPECT_NE(FindKernels(kernel.target, kernel.engine, kernel.product), nullptr);
}

TEST(ProductTest, IsBF16WhereTypesAndTargetHaveIt) {
  for (Target target : UsableTargets()) {
    for (Engine engine : {Engine::kTile, Engine::kRow}) {
      for (int narrow = 0; narrow < 8; ++narrow) {
        ProblemSpec s = Shape(40, 40, 16, 16);
        s.q_type = (narrow & 1) != 0 ? DType::kBF16 : DType::kF32;
        s.k_type = (narrow & 2) != 0 ? DType::kBF16 : DType::kF16;
        s.v_type = (narrow & 4) != 0 ? DType::kBF16 : DType::kF32;
        RandomProblem p(s, 1);
        PlanOptions options;
        options.target = target, options.engine = engine;
        Plan plan;
        ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
        const bool bf16 =
            narrow == 7 && engine == Engine::kTile && IsNativeProduct(target, Product::kBF16);
        EXPECT_EQ(plan.product(), bf16 ? Product::kBF16 : Product::kF32)
            << Name(target) << " " << Name(engine) << " " << narrow;
        EXPECT_NE(plan.ToString().find(std::string("product ") + Name(plan.product())),
                  std::string::npos)
            << plan.ToString();
      }
    }
  }
}

TEST(ProductTest, OfABatchIsBF16WhereThatOfOneSequenceIs) {
  for (Target target : UsableTargets()) {
    ProblemSpec s = BF16(Shape(40, 100, 4, 4));
    s.B = 2, s.q_lengths = s.kv_lengths = DType::kI32;
    RandomProblem p(s, test::BaseSeed());
    // The costlier sequence has few queries: it streams keys, and multiplies in f32.
    p.q_lengths.Set(0, 2), p.kv_lengths.Set(0, 100);
    p.q_lengths.Set(1, 40), p.kv_lengths.Set(1, 2);
    PlanOptions options;
    options.target = target;
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
    EXPECT_EQ(plan.engine(), Engine::kRow) << Name(target);
    EXPECT_EQ(plan.product(),
              IsNativeProduct(target, Product::kBF16) ? Product::kBF16 : Product::kF32)
        << Name(target);
  }
}

TEST(ProductTest, F32CanBeForcedAndGivesWhatTheTargetWithoutDotProductsGives) {
  RandomProblem p(BF16(Shape(40, 90, 24, 20)), 1);
  for (auto [with, without] : {std::pair(Target::kAvx512Amx, Target::kAvx512),
                               std::pair(Target::kAvx512Bf16, Target::kAvx512),
                               std::pair(Target::kNeonBf16, Target::kNeon)}) {
    if (std::count(UsableTargets().begin(), UsableTargets().end(), with) == 0) continue;
    for (Engine engine : {Engine::kTile, Engine::kRow}) {
      RunOn({with, engine, Product::kF32}, p);
      const auto bits = p.out.Bytes();
      RunOn({without, engine, Product::kF32}, p);
      EXPECT_EQ(bits, p.out.Bytes()) << Name(with) << " " << Name(engine);
    }
  }
}

TEST(ProductTest, ForcingOneThatCannotBeSaysWhy) {
  const auto refusal = [](const ProblemSpec& s, Target target, Engine engine) {
    RandomProblem p(s, 1);
    PlanOptions options;
    options.target = target, options.engine = engine, options.product = Product::kBF16;
    Plan plan;
    const Status status = Plan::Create(p.problem, options, &plan);
    EXPECT_FALSE(plan.valid() && !status.ok());
    return status.ok() ? std::string() : std::string(status.message());
  };
  for (Target target : UsableTargets()) {
    const std::string message = refusal(BF16(Shape(40, 40, 8, 8)), target, Engine::kAuto);
    if (HasProduct(target, Product::kBF16)) {
      EXPECT_EQ(message, "");
      ProblemSpec s = BF16(Shape(40, 40, 8, 8));
      s.k_type = DType::kF16;
      EXPECT_NE(refusal(s, target, Engine::kAuto).find("bf16, f16 and bf16"), std::string::npos);
      EXPECT_NE(refusal(BF16(Shape(40, 40, 8, 8)), target, Engine::kRow).find("row"),
                std::string::npos);
    } else {
      EXPECT_NE(message.find(Name(target)), std::string::npos) << message;
    }
  }
}

TEST(ProductTest, ForcingBF16MeansTilesWhateverTheNumberOfRows) {
  for (const Kernel& kernel : test::BF16Kernels()) {
    RandomProblem p(BF16(Shape(1, 700, 16, 16)), 1);
    PlanOptions options = test::Options(kernel);
    options.engine = Engine::kAuto;
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
    EXPECT_EQ(plan.engine(), Engine::kTile);
    EXPECT_EQ(plan.product(), Product::kBF16);
  }
}

// ---- shapes ----

TEST(DotBF16Test, EveryHeadSizeFromOneToSeventy) {
  for (int64_t d = 1; d <= 70; d += test::GridStep() == 1 ? 1 : 5)
    ExpectMatchesReference(BF16(Shape(3, 11, d, 71 - d)), static_cast<uint64_t>(d));
  // Around the ends of chains of q·k.
  for (int64_t dk : {127, 128, 129, 255, 256, 257, 300})
    ExpectMatchesReference(BF16(Shape(3, 11, dk, 5)), static_cast<uint64_t>(dk));
}

TEST(DotBF16Test, EveryNumberOfKeysOddAndEven) {
  for (int64_t Tk = 0; Tk <= 40; ++Tk)
    ExpectMatchesReference(BF16(Shape(5, Tk, 6, 7)), static_cast<uint64_t>(Tk));
  for (int64_t Tk : {63, 64, 65, 127, 128, 129, 255, 257})
    ExpectMatchesReference(BF16(Shape(5, Tk, 6, 7)), static_cast<uint64_t>(Tk));
}

TEST(DotBF16Test, OddBlocksAndSplits) {
  for (int32_t block_keys : {1, 3, 5, 31}) {
    PlanOptions options;
    options.block_keys = block_keys, options.split_keys = 50;
    ProblemSpec s = BF16(Shape(9, 143, 10, 11));
    s.causal = Causal::kBottomRight, s.weights = true;
    ExpectMatchesReference(s, static_cast<uint64_t>(block_keys), options);
  }
}

TEST(DotBF16Test, OneToFourTiles) {
  for (int32_t tile_rows : {1, 3, 8, 32}) {
    for (int64_t Tq : {1, 7, 33, 64, 97, 128, 131}) {
      PlanOptions options;
      options.tile_rows = tile_rows;
      ProblemSpec s = BF16(Shape(Tq, 150, 20, 13));
      s.causal = Causal::kBottomRight;
      ExpectMatchesReference(s, static_cast<uint64_t>(Tq), options);
    }
  }
}

TEST(DotBF16Test, ARowsBitsDoNotDependOnWhatSharesItsTile) {
  for (const Kernel& kernel : test::BF16Kernels()) {
    RandomProblem all(BF16(Shape(70, 137, 20, 13)), test::BaseSeed());
    RunOn(kernel, all);
    for (int64_t i : {0, 15, 16, 33, 69}) {
      RandomProblem one(BF16(Shape(70, 137, 20, 13)), test::BaseSeed());
      // The first query takes the place of query i.
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t c = 0; c < 20; ++c) one.q.SetAt({0, h, 0, c}, all.q.At({0, h, i, c}));
      }
      one.problem.q.shape[2] = one.problem.out.shape[2] = one.problem.lse.shape[2] = 1;
      PlanOptions options;
      options.split_keys = 1 << 20;
      RunOn(kernel, one, options);
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(one.lse.At({0, h, 0}), all.lse.At({0, h, i})) << ToString(kernel) << " row " << i;
        for (int64_t c = 0; c < 13; ++c) {
          EXPECT_EQ(one.out.At({0, h, 0, c}), all.out.At({0, h, i, c}))
              << ToString(kernel) << " row " << i << " channel " << c;
        }
      }
    }
  }
}

// ---- precision ----

// Textbook attention in bf16: scores, weights and out are stored as bf16; every sum is exact.
std::vector<double> TextbookOut(const RandomProblem& p) {
  const reference::Sizes size = reference::SizesOf(p.problem);
  std::vector<double> out;
  for (int64_t h = 0; h < size.Hq; ++h) {
    for (int64_t i = 0; i < size.Tq; ++i) {
      reference::Row row = reference::ForwardRow(p.problem, 0, h, i);
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (double& s : row.scores) s = reference::Rounded(DType::kBF16, s), max = std::max(max, s);
      for (double& s : row.scores) s = std::exp(s - max), sum += s;
      for (int64_t c = 0; c < size.dv; ++c) {
        double x = 0;
        for (int64_t j = 0; j < size.Tk; ++j) {
          const double weight =
              reference::Rounded(DType::kBF16, row.scores[static_cast<size_t>(j)] / sum);
          x += weight * reference::At(p.problem.v, 0, h / (size.Hq / size.Hkv), j, c);
        }
        out.push_back(reference::Rounded(DType::kBF16, x));
      }
    }
  }
  return out;
}

TEST(DotBF16Test, ErrsAtMostTwiceAsMuchAsATextbookComputationInBF16) {
  for (auto [Tk, d, scale] : {std::tuple(int64_t{7}, int64_t{64}, 0.0f),
                              {300, 64, 0.0f},
                              {300, 128, 0.4f},
                              {64, 33, 3.0f}}) {
    ProblemSpec s = BF16(Shape(40, Tk, d, d));
    s.out_type = DType::kBF16;
    if (scale > 0) s.scale = scale;
    RandomProblem p(s, test::BaseSeed());
    const auto expected = reference::Forward(p.problem);
    const std::vector<double> textbook = TextbookOut(p);
    const auto largest_error = [&](const std::vector<double>& out) {
      double error = 0;
      for (size_t n = 0; n < out.size(); ++n)
        error = std::max(error, std::fabs(out[n] - expected.out[n]));
      return error;
    };
    for (const Kernel& kernel : test::BF16Kernels()) {
      RunOn(kernel, p);
      EXPECT_LE(largest_error(p.out.Dense()), 2 * largest_error(textbook))
          << ToString(kernel) << " Tk " << Tk << " d " << d;
    }
  }
}

TEST(DotBF16Test, AScaleRoundsNothingButTheScore) {
  // One key and one channel: lse is the score. Products of two bf16 are exact in f32, so only the
  // factor of the scale rounds, once.
  for (float scale : {1.0f, 0.1f, -3.7f, 1e-30f, 3e30f, 0x1.fffffep-1f}) {
    ProblemSpec s = BF16(Shape(64, 1, 1, 1));
    s.scale = scale;
    RandomProblem p(s, test::BaseSeed());
    for (const Kernel& kernel : test::BF16Kernels()) {
      RunOn(kernel, p);
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 64; ++i) {
          const double exact =
              static_cast<double>(scale) * p.q.At({0, h, i, 0}) * p.k.At({0, 0, 0, 0});
          EXPECT_EQ(static_cast<float>(p.lse.At({0, h, i})), static_cast<float>(exact))
              << ToString(kernel) << " scale " << scale;
        }
      }
    }
  }
}

TEST(DotBF16Test, ExtremeScalesAndQueries) {
  // Products that overflow or vanish though the scores, scaled, are near 1; rows of all sizes share
  // a tile.
  for (int exponent : {-120, -100, -40, 40, 100, 120}) {
    ProblemSpec s = BF16(Shape(20, 30, 9, 5));
    s.scale = std::ldexp(1.3f, -exponent);
    RandomProblem p(s, test::BaseSeed());
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 20; ++i) {
        for (int64_t c = 0; c < 9; ++c)
          p.q.SetAt({0, h, i, c}, std::ldexp(p.q.At({0, h, i, c}), i % 3 == 0   ? exponent
                                                                   : i % 3 == 1 ? 0
                                                                                : exponent / 2));
      }
    }
    SCOPED_TRACE("2^" + std::to_string(exponent));
    ExpectMatchesReference(p);
  }
}

TEST(DotBF16Test, AScaleOfZeroMeetsProductsThatOverflow) {
  ProblemSpec s = BF16(Shape(20, 30, 9, 5));
  s.scale = 0.0f;
  RandomProblem p(s, test::BaseSeed());
  for (int64_t n = 0; n < p.q.size(); ++n) p.q.Set(n, std::copysign(0x1.8p127, p.q.Get(n)));
  ExpectMatchesReference(p);
}

TEST(DotBF16Test, OutIsNoLargerThanTheLargestValue) {
  RandomProblem p(BF16(Shape(40, 300, 32, 20)), test::BaseSeed());
  p.v.Fill([n = 0]() mutable { return n++ % 7 == 0 ? 0.99609375 : 1.0; });
  for (const Kernel& kernel : test::BF16Kernels()) {
    RunOn(kernel, p);
    for (double x : p.out.Dense()) {
      ASSERT_LE(x, 1 + 300 * 0x1p-24) << ToString(kernel);
      ASSERT_GE(x, 0.99609375 - 300 * 0x1p-24) << ToString(kernel);
    }
  }
}

// ---- what a pair must not share ----

TEST(DotBF16Test, AKeyThatNoRowOfItsTileSeesDoesNotReachItsPairsOther) {
  // Key Tq is the second of a pair whose first the last row sees; nothing is removed within what
  // the tile computes.
  for (double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (int64_t Tq : {1, 2, 5, 31, 33}) {
      ProblemSpec s = BF16(Shape(Tq, 70, 8, 9));
      s.causal = Causal::kTopLeft;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t j = Tq; j < 70; ++j) {
        for (int64_t c = 0; c < 9; ++c) p.v.SetAt({0, 0, j, c}, bad);
      }
      ExpectMatchesReference(p);
    }
  }
}

TEST(DotBF16Test, RepeatsForAnyNumberOfWorkers) {
  for (const Kernel& kernel : test::BF16Kernels()) {
    RandomProblem p(BF16(Shape(75, 1500, 40, 36)), test::BaseSeed());
    RunOn(kernel, p);
    const auto bits = p.out.Bytes();
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
    for (int workers : {1, 3}) {
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, workers, 7).ok());
      EXPECT_EQ(p.out.Bytes(), bits) << ToString(kernel) << " workers " << workers;
    }
  }
}

}  // namespace
}  // namespace fovea
