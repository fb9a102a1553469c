// The ways in which one problem can be computed: every usable target, each engine.
#ifndef FOVEA_TESTS_SUPPORT_CONFIGURATIONS_H_
#define FOVEA_TESTS_SUPPORT_CONFIGURATIONS_H_

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"

namespace fovea::test {

// Calls f with `options` for every kernel that the problem has, its name in the trace of a failure.
// A fatal failure in f ends the loop.
inline void ForEachConfiguration(const Problem& problem, const PlanOptions& options,
                                 const std::function<void(const PlanOptions&)>& f) {
  for (const Kernel& kernel : KernelsFor(problem)) {
    SCOPED_TRACE(ToString(kernel));
    f(Options(kernel, options));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Plan, workspace and serial run; the plan must be what `options` ask for.
inline Status PlanAndRun(const Problem& problem, const PlanOptions& options) {
  Plan plan;
  const Status status = Plan::Create(problem, options, &plan);
  if (!status.ok()) return status;
  EXPECT_EQ(plan.target(), options.target);
  if (problem.q.shape[0] != 0) {  // a plan of no sequence has no engine
    EXPECT_EQ(plan.engine(), options.engine);
    EXPECT_EQ(plan.product(), options.product);
  }
  std::vector<char> workspace(plan.WorkspaceBytes(1));
  return Run(plan, problem, {workspace.data(), workspace.size()});
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_CONFIGURATIONS_H_
