// Plans: exact workspace, exact cost, updates in place, and what they say about themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Memory;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;

// A problem of any size without memory: Create looks at no data.
Problem Shapes(int64_t B, int64_t Hq, int64_t Hkv, int64_t Tq, int64_t Tk, int64_t dk, int64_t dv) {
  const void* const in = nullptr;
  void* const out = nullptr;
  Problem p;
  p.q = View(in, DType::kF32, {B, Hq, Tq, dk});
  p.k = View(in, DType::kF32, {B, Hkv, Tk, dk});
  p.v = View(in, DType::kF32, {B, Hkv, Tk, dv});
  p.out = View(out, DType::kF32, {B, Hq, Tq, dv});
  p.lse = View(out, DType::kF32, {B, Hq, Tq});
  return p;
}

Plan MakePlan(const Problem& problem, const PlanOptions& options = {}) {
  Plan plan;
  const Status status = Plan::Create(problem, options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

// ---- workspace ----

TEST(WorkspaceTest, IsAFixedPartForEachWorkerPlusPartials) {
  for (const Kernel& kernel : test::Kernels()) {
    for (const Problem& p : {Shapes(1, 8, 8, 512, 512, 64, 64),
                             Shapes(1, 32, 8, 1, 32768, 128, 128), Shapes(4, 6, 2, 33, 777, 40, 24),
                             Shapes(1, 1, 1, 1, 1, 1, 1), Shapes(1, 1, 1, 0, 5, 3, 3)}) {
      const Plan plan = MakePlan(p, test::Options(kernel));
      const size_t one = plan.WorkspaceBytes(1), each = plan.WorkspaceBytes(2) - one;
      for (int workers = 1; workers <= 128; workers *= 3)
        EXPECT_EQ(plan.WorkspaceBytes(workers), one + static_cast<size_t>(workers - 1) * each)
            << ToString(kernel) << " workers " << workers;
    }
  }
}

// Sizes that a dense tensor could never have, by strides of 0: a plan is refused or needs more
// memory than there is, and nothing overflows on the way.
TEST(WorkspaceTest, OfAbsurdSizesIsMoreThanThereIs) {
  const float x = 1;
  const uint8_t allowed = 1;
  float y[4] = {};
  const auto absurd = [&](int64_t H, int64_t Tq, int64_t Tk, int64_t d) {
    Problem p;
    p.q = View(&x, {1, H, Tq, d}, {0, 0, 0, 0});
    p.k = p.v = View(&x, {1, H, Tk, d}, {0, 0, 0, 0});
    p.out = View(y, {1, H, Tq, d}, {0, 0, 0, 0});
    return p;
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Problem long_mask = absurd(1, 1, int64_t{1} << 60, 1);
  long_mask.score.mask = View(&allowed, DType::kBool, {1});
  long_mask.score.mask.shape[0] = int64_t{1} << 60;
  long_mask.score.mask.stride[0] = 0;
  PlanOptions splits;
  splits.split_keys = splits.block_keys = 1;
  const struct {
    Problem problem;
    PlanOptions options;
  } cases[] = {{absurd(1, 1, kMost, 1), {}},
               {absurd(1, 1, kMost - 1, 1), splits},
               {absurd(int64_t{1} << 61, 1, 2, 1), splits},
               {absurd(int64_t{1} << 61, 1, 2, 1), {}},
               {absurd(1, 64, 64, int64_t{1} << 24), {}},
               {long_mask, {}}};
  for (const auto& [problem, options] : cases) {
    Plan plan;
    if (!Plan::Create(problem, options, &plan).ok()) continue;
    size_t before = 0;
    for (int workers = 1; workers > 0 && workers < (1 << 30); workers *= 2) {
      const size_t bytes = plan.WorkspaceBytes(workers);
      EXPECT_TRUE(bytes > before || bytes == std::numeric_limits<size_t>::max())
          << plan.ToString() << workers;
      before = bytes;
    }
  }
}

TEST(WorkspaceTest, OfAWorkerIsSmall) {
  struct Limit {
    int64_t dk, dv;
    size_t bytes;
  };
  std::vector<Kernel> kernels = test::Kernels();
  for (const Kernel& kernel : test::BF16Kernels()) kernels.push_back(kernel);
  for (const Kernel& kernel : kernels) {
    const bool bf16 = kernel.product == Product::kBF16;
    for (const Limit& limit :
         {Limit{1, 1, 256u << 10}, Limit{32, 32, 256u << 10}, Limit{64, 64, 256u << 10},
          Limit{128, 128, 256u << 10}, Limit{576, 512, 1u << 20}}) {
      for (int64_t Hq : {1, 8, 16}) {  // one KV head: all of them may be stacked
        for (int64_t Tq : {1, 100, 8192}) {
          Problem problem = Shapes(1, Hq, 1, Tq, 8192, limit.dk, limit.dv);
          if (bf16) problem.q.dtype = problem.k.dtype = problem.v.dtype = DType::kBF16;
          const Plan plan = MakePlan(problem, test::Options(kernel));
          EXPECT_LE(plan.WorkspaceBytes(2) - plan.WorkspaceBytes(1),
                    bf16 ? std::max(limit.bytes, size_t{512} << 10) : limit.bytes)
              << ToString(kernel) << " d " << limit.dk << " Hq " << Hq << " Tq " << Tq;
        }
      }
    }
  }
}

TEST(WorkspaceTest, IsIndependentOfTheNumberOfQueriesAndKeysWithoutSplits) {
  for (Target target : UsableTargets()) {
    for (int64_t d : {64, 128}) {
      PlanOptions options;
      options.target = target, options.engine = Engine::kTile;
      std::vector<size_t> bytes;
      for (int64_t T : {2048, 16384, 131072}) {
        Problem p = Shapes(1, 2, 1, T, T, d, d);
        p.score.causal = Causal::kBottomRight;
        bytes.push_back(MakePlan(p, options).WorkspaceBytes(2));
      }
      EXPECT_EQ(bytes[0], bytes[1]) << Name(target);
      EXPECT_EQ(bytes[0], bytes[2]) << Name(target);
    }
  }
}

TEST(WorkspaceTest, IsIndependentOfTheBatchWithoutSplits) {
  for (const Kernel& kernel : test::Kernels()) {
    const size_t one =
        MakePlan(Shapes(1, 4, 2, 16, 32, 64, 64), test::Options(kernel)).WorkspaceBytes(1);
    EXPECT_EQ(one,
              MakePlan(Shapes(100, 4, 2, 16, 32, 64, 64), test::Options(kernel)).WorkspaceBytes(1))
        << ToString(kernel);
  }
}

TEST(WorkspaceTest, PartialsAreNoMoreThanAStateForEachRowAndSplit) {
  // With splits of s keys asked for, a plan has at most ⌈Tk / block⌉ of them; here blocks of 16
  // keys at least.
  for (const Kernel& kernel : test::Kernels()) {
    const int64_t Hq = 8, Tq = 2, Tk = 4096, dv = 32, split = 512;
    PlanOptions options = test::Options(kernel);
    options.split_keys = split;
    const Plan plan = MakePlan(Shapes(1, Hq, 2, Tq, Tk, 32, dv), options);
    const size_t each = plan.WorkspaceBytes(2) - plan.WorkspaceBytes(1);
    const size_t partials = plan.WorkspaceBytes(1) - each;
    // out, and lse in no more than a cache line
    const size_t state = static_cast<size_t>(dv + 16) * 4;
    // The hook is an upper bound: a plan of its own may split finer, but not below an eighth of it.
    EXPECT_LE(partials, static_cast<size_t>(8 * Tk / split * Hq * Tq) * state + 4096)
        << ToString(kernel);
    EXPECT_GE(partials, static_cast<size_t>(2 * Hq * Tq) * (dv + 1) * 4)
        << ToString(kernel) << ": two splits at least need a state each";
  }
}

TEST(WorkspaceTest, IsNeverOverrun) {
  // RunHostDriven's workspace ends at an inaccessible page.
  test::Random random(test::BaseSeed());
  SCOPED_TRACE("seed " + std::to_string(test::BaseSeed()));
  for (int64_t n : test::Thinned(test::Numbers(0, 29), 4)) {
    ProblemSpec s;
    s.B = random.Between(1, 2), s.Hkv = random.Between(1, 2), s.Hq = s.Hkv * random.Between(1, 5);
    s.Tq = random.Between(1, 70), s.Tk = random.Between(1, 300), s.dk = random.Between(1, 140),
    s.dv = random.Between(1, 140);
    s.weights = random.Chance(0.5), s.kv_lengths = random.Chance(0.5) ? DType::kI32 : DType::kNone;
    s.bias = random.Chance(0.5) ? Axes::kHQK : Axes::kAbsent;
    const int64_t split_keys = random.Chance(0.5) ? 37 : 0;
    RandomProblem p(s, test::BaseSeed() + static_cast<uint64_t>(n));
    const reference::ForwardResult expected = reference::Forward(p.problem);
    for (const Kernel& kernel : test::Kernels()) {
      PlanOptions options = test::Options(kernel);
      options.split_keys = split_keys;
      const Plan plan = MakePlan(p.problem, options);
      p.ResetOutputs();
      const Status status =
          test::RunHostDriven(plan, p.problem, static_cast<int>(1 + n % 3), test::BaseSeed());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernel) << "\n" << ToString(s);
    }
  }
}

// ---- cost ----

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
