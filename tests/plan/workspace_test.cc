// The workspace of a plan: exact, small, and never overrun.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "plan/make_plan.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::MakePlan;
using test::ProblemSpec;
using test::RandomProblem;
using test::Shapes;

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

}  // namespace
}  // namespace fovea
