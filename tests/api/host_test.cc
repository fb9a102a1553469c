// What depends on the host alone: sizes that it cannot count are refused, never cut off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "fovea/attention.h"
#include "fovea/target.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

constexpr int64_t kHead = int64_t{1} << 24;  // the most

TEST(HostTest, AWorkspaceBeyondTheAddressSpaceIsNotCutOff) {
  // Head sizes that lie in memory as one element each: a worker copies at least a row of q.
  test::RandomProblem p(test::ProblemSpec(), 1);
  for (TensorView* view : {&p.problem.q, &p.problem.k}) view->shape[3] = kHead, view->stride[3] = 0;
  for (Target target : UsableTargets()) {
    for (Engine engine : {Engine::kTile, Engine::kRow}) {
      PlanOptions options;
      options.target = target, options.engine = engine;
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
      constexpr int kWorkers = 1024;
      constexpr uint64_t kRows = kWorkers * sizeof(float) * kHead;
      EXPECT_GE(plan.WorkspaceBytes(kWorkers), std::min<uint64_t>(kRows, SIZE_MAX)) << Name(target);
      char small[64];
      BoundCall call;
      EXPECT_EQ(Bind(plan, p.problem, {small, sizeof(small)}, kWorkers, &call).code(),
                StatusCode::kOutOfMemory);
    }
  }
  EXPECT_TRUE(p.OutputsUntouched());
}

TEST(HostTest, ABatchBeyondTheAddressSpaceIsRefused) {
  test::RandomProblem p(test::ProblemSpec(), 1);
  const auto widen = [](auto& view) { view.shape[0] = int64_t{1} << 56, view.stride[0] = 0; };
  widen(p.problem.q), widen(p.problem.k), widen(p.problem.v);
  widen(p.problem.out), widen(p.problem.lse);
  Plan plan;
  EXPECT_EQ(Plan::Create(p.problem, PlanOptions(), &plan).code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(p.OutputsUntouched());
}

}  // namespace
}  // namespace fovea
