// Plans: what they say about themselves, one plan for many runs, and updates in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "plan/make_plan.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Kernel;
using test::MakePlan;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::Shapes;

// ---- what a plan says ----

TEST(PlanTest, SaysWhatItWillDo) {
  for (const Kernel& kernel : test::Kernels()) {
    const Plan plan = MakePlan(Shapes(3, 10, 5, 77, 91, 24, 28), test::Options(kernel));
    EXPECT_EQ(plan.target(), kernel.target);
    EXPECT_EQ(plan.engine(), kernel.engine);
    const std::string text = plan.ToString();
    for (const std::string& word :
         {std::string(Name(kernel.target)), std::string(Name(kernel.engine)), std::string("77"),
          std::string("91"), std::string("24"), std::string("28")}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " is not in:\n" << text;
    }
    EXPECT_GT(std::count(text.begin(), text.end(), '\n'), 1) << "several lines";
  }
}

TEST(PlanTest, AutoBecomesARealTargetAndEngine) {
  const Plan plan = MakePlan(Shapes(1, 1, 1, 8, 8, 8, 8));
  Target active = Target::kAuto;
  ASSERT_TRUE(ActiveTarget(&active).ok());
  EXPECT_EQ(plan.target(), active);
  EXPECT_NE(plan.engine(), Engine::kAuto);
}

TEST(PlanTest, ChoosesRowsForDecodeAndTilesForPrefill) {
  EXPECT_EQ(MakePlan(Shapes(1, 32, 8, 1, 4096, 128, 128)).engine(), Engine::kRow);
  EXPECT_EQ(MakePlan(Shapes(1, 8, 8, 2048, 2048, 64, 64)).engine(), Engine::kTile);
}

TEST(PlanTest, EngineNames) {
  EXPECT_STREQ(Name(Engine::kAuto), "auto");
  EXPECT_STREQ(Name(Engine::kTile), "tile");
  EXPECT_STREQ(Name(Engine::kRow), "row");
  EXPECT_STREQ(Name(static_cast<Engine>(3)), "unknown");
  EXPECT_STREQ(Name(static_cast<Engine>(-1)), "unknown");
}

TEST(PlanTest, ProductNames) {
  EXPECT_STREQ(Name(Product::kAuto), "auto");
  EXPECT_STREQ(Name(Product::kF32), "f32");
  EXPECT_STREQ(Name(Product::kBF16), "bf16");
  EXPECT_STREQ(Name(static_cast<Product>(3)), "unknown");
  EXPECT_STREQ(Name(static_cast<Product>(-1)), "unknown");
}

// ---- one plan, many runs ----

TEST(PlanTest, ServesTensorsOfAnyStridesAndData) {
  ProblemSpec s;
  s.Hq = 4, s.Hkv = 2, s.Tq = 20, s.Tk = 50, s.dk = 16, s.dv = 12, s.causal = Causal::kBottomRight;
  RandomProblem first(s, 1);
  std::vector<RandomProblem> layers;
  std::vector<reference::ForwardResult> expected;
  for (uint64_t layer = 0; layer < 5; ++layer) {
    ProblemSpec other = s;
    other.q.layout = other.out.layout = test::kLayouts[layer];
    other.k.layout = test::kLayouts[layer + 1];
    layers.emplace_back(other, layer);
    expected.push_back(reference::Forward(layers.back().problem));
  }
  for (const Kernel& kernel : test::Kernels()) {
    const Plan plan = MakePlan(first.problem, test::Options(kernel));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      RandomProblem& p = layers[layer];
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 1, layer).ok());
      EXPECT_TRUE(test::Matches(p.problem, expected[layer])) << ToString(kernel);
    }
  }
}

TEST(PlanTest, DoesNotKeepPointersToTheLengthsItRead) {
  ProblemSpec s;
  s.B = 2, s.Hq = 2, s.Tq = 5, s.Tk = 30, s.dk = 8, s.dv = 8, s.kv_lengths = DType::kI64, s.Hkv = 1;
  RandomProblem p(s, test::BaseSeed());
  Plan plan;
  {
    test::OwnedTensor lengths =
        p.kv_lengths.CopiedTo({test::Layout::kDense, Placement::kBeforeGuard});
    Problem other = p.problem;
    other.score.kv_lengths = lengths.view();
    plan = MakePlan(other);
    // Unmapped here: a pointer kept would crash.
  }
  ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 1, 1).ok());
  EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem)));
}

TEST(PlanTest, RunsOnSeveralThreadsAtTheSameTime) {
  ProblemSpec s;
  s.Hq = 4, s.Hkv = 2, s.Tq = 40, s.Tk = 300, s.dk = 16, s.dv = 12;
  std::vector<RandomProblem> problems;
  std::vector<reference::ForwardResult> expected;
  for (uint64_t n = 0; n < 4; ++n) {
    problems.emplace_back(s, n);
    expected.push_back(reference::Forward(problems.back().problem));
  }
  for (const Kernel& kernel : test::Kernels()) {
    for (RandomProblem& p : problems) p.ResetOutputs();
    const Plan plan = MakePlan(problems[0].problem, test::Options(kernel));
    std::vector<std::thread> threads;
    for (RandomProblem& p : problems)
      threads.emplace_back([&] { EXPECT_TRUE(test::RunHostDriven(plan, p.problem, 1, 1).ok()); });
    for (std::thread& thread : threads) thread.join();
    for (size_t n = 0; n < problems.size(); ++n)
      EXPECT_TRUE(test::Matches(problems[n].problem, expected[n])) << ToString(kernel);
  }
}

TEST(PlanTest, MovesKeepAPlanWhole) {
  RandomProblem p(ProblemSpec(), 1);
  Plan a = MakePlan(p.problem);
  const size_t bytes = a.WorkspaceBytes(1);
  Plan b = std::move(a);
  EXPECT_TRUE(b.valid());
  EXPECT_FALSE(a.valid());
  a = std::move(b);
  EXPECT_TRUE(a.valid());
  EXPECT_EQ(a.WorkspaceBytes(1), bytes);
  EXPECT_TRUE(test::RunHostDriven(a, p.problem, 1, 1).ok());
}

// ---- updates ----

TEST(UpdateTest, IsAFreshPlan) {
  std::vector<Kernel> kernels = test::Kernels();
  for (Target target : UsableTargets()) kernels.push_back({target, Engine::kAuto});
  ProblemSpec s;
  s.B = 3, s.Hq = 4, s.Hkv = 2, s.Tq = 40, s.Tk = 2100, s.dk = 16, s.dv = 12,
  s.causal = Causal::kBottomRight;
  s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64;
  RandomProblem room(s, test::BaseSeed());
  std::vector<RandomProblem> steps;
  for (auto [Tq, Tk] : {std::pair<int64_t, int64_t>{1, 2101},
                        {1, 2102},
                        {64, 70},
                        {7, 2200},
                        {33, 0},
                        {0, 5},
                        {64, 2200},
                        {1, 1},
                        {40, 2100}}) {
    s.Tq = Tq, s.Tk = Tk;
    steps.emplace_back(s, test::BaseSeed() + steps.size());
  }
  SCOPED_TRACE("seed " + std::to_string(test::BaseSeed()));
  for (const Kernel& kernel : kernels) {
    PlanOptions options = test::Options(kernel);
    options.max_queries = 64, options.max_keys = 2200;
    Plan updated = MakePlan(room.problem, options);
    for (int64_t n : test::Thinned(test::Numbers(0, static_cast<int64_t>(steps.size()) - 1), 3)) {
      RandomProblem& p = steps[static_cast<size_t>(n)];
      SCOPED_TRACE(ToString(kernel) + " " + ToString(p.spec));
      const uint64_t seed = test::BaseSeed();
      p.ResetOutputs();
      const Status status = updated.Update(p.problem);
      ASSERT_TRUE(status.ok()) << status.message();
      const Plan fresh = MakePlan(p.problem, test::Options(kernel));
      EXPECT_EQ(updated.target(), fresh.target());
      EXPECT_EQ(updated.engine(), fresh.engine());
      EXPECT_EQ(updated.cost().pairs, fresh.cost().pairs);
      EXPECT_EQ(updated.cost().flops, fresh.cost().flops);
      EXPECT_EQ(updated.cost().kv_bytes, fresh.cost().kv_bytes);
      EXPECT_EQ(updated.cost().tasks, fresh.cost().tasks);
      EXPECT_GE(updated.WorkspaceBytes(1), fresh.WorkspaceBytes(1));
      ASSERT_TRUE(test::RunHostDriven(fresh, p.problem, 2, seed).ok());
      const auto out = p.out.Bytes(), lse = p.lse.Bytes();
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(updated, p.problem, 2, seed).ok());
      EXPECT_EQ(out, p.out.Bytes());
      EXPECT_EQ(lse, p.lse.Bytes());
    }
  }
}

TEST(UpdateTest, ChangesOffsets) {
  ProblemSpec s;
  s.Hq = 2, s.Tq = 9, s.Tk = 60, s.dk = 8, s.dv = 8, s.Hkv = 1, s.causal = Causal::kTopLeft,
  s.window = {20, -1};
  s.query_offset = 3;
  RandomProblem p(s, test::BaseSeed());
  const std::vector<Kernel> kernels = test::Kernels();
  std::vector<Plan> plans;
  for (const Kernel& kernel : kernels) plans.push_back(MakePlan(p.problem, test::Options(kernel)));
  for (int64_t offset : {0, 30, -5, 51, 3}) {
    p.spec.query_offset = offset;
    p.Refresh();
    const reference::ForwardResult expected = reference::Forward(p.problem);
    for (size_t n = 0; n < kernels.size(); ++n) {
      p.ResetOutputs();
      ASSERT_TRUE(plans[n].Update(p.problem).ok());
      ASSERT_TRUE(test::RunHostDriven(plans[n], p.problem, 1, 1).ok());
      EXPECT_TRUE(test::Matches(p.problem, expected))
          << ToString(kernels[n]) << " offset " << offset;
    }
  }
}

TEST(UpdateTest, ADecodeOfManyTokensStepsThroughOnePlan) {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 1, s.Tk = 300, s.dk = 16, s.dv = 16,
  s.causal = Causal::kBottomRight, s.kv_lengths = DType::kI64;
  RandomProblem p(s, test::BaseSeed());
  test::Random random(test::BaseSeed());
  for (test::OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  std::vector<Plan> plans;
  for (Target target : UsableTargets()) {
    PlanOptions options;
    options.target = target;
    plans.push_back(MakePlan(p.problem, options));
  }
  for (int64_t length = 0; length <= 300; length += 23) {
    p.kv_lengths.Set(0, static_cast<double>(length));
    p.kv_lengths.Set(1, static_cast<double>(300 - length));
    const reference::ForwardResult expected = reference::Forward(p.problem);
    for (Plan& plan : plans) {
      p.ResetOutputs();
      ASSERT_TRUE(plan.Update(p.problem).ok());
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 1, 1).ok());
      EXPECT_TRUE(test::Matches(p.problem, expected))
          << Name(plan.target()) << " length " << length;
    }
  }
}

}  // namespace
}  // namespace fovea
