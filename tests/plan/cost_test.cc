// The cost of a plan: visible pairs, counted exactly.
#include <gtest/gtest.h>

#include <algorithm>

#include "fovea/attention.h"
#include "plan/make_plan.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::MakePlan;
using test::Memory;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::Shapes;

TEST(CostTest, CountsVisiblePairsExactly) {
  uint64_t seed = test::BaseSeed();
  for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    for (Window window : {Window{-1, -1}, Window{0, 0}, Window{7, -1}, Window{-1, 3}, Window{12, 2},
                          Window{1000, 1000}}) {
      for (int offset = 0; offset < 4; ++offset) {
        for (int lengths : test::Thinned({0, 1, 2, 3})) {
          ProblemSpec s;
          s.B = 3, s.Hq = 6, s.Hkv = 2, s.Tq = 23, s.Tk = 41, s.dk = 5, s.dv = 3, s.causal = causal,
          s.window = window;
          if (offset == 1) s.query_offset = 11;
          if (offset == 2) s.query_offset = -9;
          if (offset == 3) s.query_offsets = DType::kI64;
          if (lengths & 1) s.q_lengths = DType::kI32;
          if (lengths & 2) s.kv_lengths = DType::kI64;
          s.mask = Axes::kQK, s.bias = Axes::kQK, s.bias_removes = 0.5;  // not looked at
          RandomProblem p(s, ++seed);
          double pairs = 0;
          for (int64_t b = 0; b < s.B; ++b) {
            for (int64_t i = 0; i < s.Tq; ++i) {
              for (int64_t j = 0; j < s.Tk; ++j)
                pairs += p.InBand(b, i, j) ? static_cast<double>(s.Hq) : 0;
            }
          }
          const Cost cost = MakePlan(p.problem).cost();
          EXPECT_EQ(cost.pairs, pairs) << "seed " << seed << "\n" << ToString(s);
          EXPECT_EQ(cost.flops, pairs * 4 * 0.5 * static_cast<double>(s.dk + s.dv));
          EXPECT_GE(cost.kv_bytes, 0);
          EXPECT_LE(cost.kv_bytes, static_cast<double>(s.B * s.Hkv * s.Tk * (s.dk + s.dv) * 4));
        }
      }
    }
  }
}

TEST(CostTest, OfTheWorkloadsByHand) {
  const double T = 2048;
  Problem p = Shapes(1, 8, 8, 2048, 2048, 64, 64);
  EXPECT_EQ(MakePlan(p).cost().pairs, 8 * T * T);
  p.score.causal = Causal::kBottomRight;
  const Cost causal = MakePlan(p).cost();
  EXPECT_EQ(causal.pairs, 8 * T * (T + 1) / 2);
  EXPECT_EQ(causal.flops, 8 * T * (T + 1) / 2 * 4 * 64);
  EXPECT_EQ(causal.kv_bytes, 2 * 8 * T * 64 * 4);
  // Decode: every key once, all query heads of a group at once.
  const Cost decode = MakePlan(Shapes(8, 32, 8, 1, 2048, 128, 128)).cost();
  EXPECT_EQ(decode.pairs, 8 * 32 * T);
  EXPECT_EQ(decode.kv_bytes, 8 * 8 * T * 2 * 128 * 4);
}

TEST(CostTest, OfHugeProblemsIsNotCutToIntegers) {
  Problem p = Shapes(64, 128, 8, int64_t{1} << 20, int64_t{1} << 20, 128, 128);
  Plan plan;
  const Status status = Plan::Create(p, {}, &plan);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(plan.cost().pairs, 64.0 * 128 * 0x1p40);
}

TEST(CostTest, NothingToDoCostsNothing) {
  for (const Problem& p :
       {Shapes(0, 4, 2, 5, 5, 8, 8), Shapes(2, 4, 2, 0, 5, 8, 8), Shapes(2, 4, 2, 5, 0, 8, 8)}) {
    const Cost cost = MakePlan(p).cost();
    EXPECT_EQ(cost.pairs, 0);
    EXPECT_EQ(cost.flops, 0);
    EXPECT_EQ(cost.kv_bytes, 0);
  }
}

TEST(CostTest, TasksAreThoseOfTheLargestPhase) {
  for (const Kernel& kernel : test::Kernels()) {
    for (int64_t Tq : {1, 200}) {
      ProblemSpec s;
      s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = 3000, s.dk = 8, s.dv = 8;
      RandomProblem p(s, 1);
      const Plan plan = MakePlan(p.problem, test::Options(kernel));
      const Memory memory(plan.WorkspaceBytes(1), Placement::kAligned, 1);
      BoundCall call;
      ASSERT_TRUE(Bind(plan, p.problem, {memory.data(), memory.bytes()}, 1, &call).ok());
      ASSERT_GE(call.Phases(), 1);
      int64_t most = 0;
      for (int phase = 0; phase < call.Phases(); ++phase) most = std::max(most, call.Tasks(phase));
      EXPECT_EQ(plan.cost().tasks, most) << ToString(kernel);
      EXPECT_GE(most, 2) << ToString(kernel) << ": two KV heads are two tasks at least";
    }
  }
}

}  // namespace
}  // namespace fovea
