// The C interface to gradients is the C++ interface: equal bits, equal messages.
#include "fovea/c_gradient.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "support/c_problem.h"
#include "support/random_gradients.h"

namespace fovea {
namespace {

using test::RandomGradients;
using test::ToC;

RandomGradients Example() {
  test::ProblemSpec s = test::SmallSpec();
  s.bias = test::Axes::kHQK, s.sinks = true, s.head_scales = true, s.weights = false;
  s.scores.reset(), s.function = false;
  return RandomGradients(s, test::BaseSeed());
}

struct CProblem {
  fovea_problem forward;
  fovea_gradient_problem problem;

  explicit CProblem(const GradientProblem& p) : forward(ToC(p.forward)) {
    fovea_gradient_problem_init(&problem);
    problem.forward = &forward;
    problem.dout = ToC(p.dout), problem.dlse = ToC(p.dlse);
    problem.dq = ToC(p.dq), problem.dk = ToC(p.dk), problem.dv = ToC(p.dv);
    problem.dbias = ToC(p.dbias), problem.dsinks = ToC(p.dsinks);
    problem.dhead_scales = ToC(p.dhead_scales);
    problem.accumulate = p.accumulate;
  }
};

TEST(CGradientTest, GivesTheSameBitsOnEveryPath) {
  RandomGradients g = Example();
  ASSERT_TRUE(Gradients(g.problem).ok());
  const std::vector<unsigned char> expected = g.Bytes();
  const CProblem c(g.problem);
  fovea_error error;
  g.ResetGradients();
  ASSERT_EQ(fovea_gradients(&c.problem, nullptr, nullptr, &error), FOVEA_OK) << error.message;
  EXPECT_TRUE(g.Bytes() == expected);

  fovea_gradient_plan* plan = nullptr;
  ASSERT_EQ(fovea_gradient_plan_create(&c.problem, nullptr, &plan, &error), FOVEA_OK);
  std::vector<char> workspace(fovea_gradient_plan_workspace_bytes(plan, 2));
  int calls = 0;
  const fovea_executor executor = test::HostLoop(&calls);
  g.ResetGradients();
  std::vector<char> large(fovea_gradient_plan_workspace_bytes(plan, executor.workers));
  ASSERT_EQ(fovea_gradient_run(plan, &c.problem, large.data(), large.size(), &executor, &error),
            FOVEA_OK)
      << error.message;
  EXPECT_TRUE(g.Bytes() == expected);
  EXPECT_GT(calls, 0);

  fovea_gradient_call* call = nullptr;
  g.ResetGradients();
  ASSERT_EQ(fovea_gradient_plan_update(plan, &c.problem, &error), FOVEA_OK) << error.message;
  ASSERT_EQ(
      fovea_gradient_bind(plan, &c.problem, workspace.data(), workspace.size(), 2, &call, &error),
      FOVEA_OK)
      << error.message;
  EXPECT_GT(fovea_gradient_call_phases(call), 2);
  for (int32_t phase = 0; phase < fovea_gradient_call_phases(call); ++phase) {
    for (int64_t task = fovea_gradient_call_tasks(call, phase) - 1; task >= 0; --task) {
      const int32_t worker = static_cast<int32_t>(task % 2);
      ASSERT_EQ(fovea_gradient_call_run_task(call, phase, task, worker), FOVEA_OK);
    }
    EXPECT_EQ(fovea_gradient_call_run_task(call, phase, -1, 0), FOVEA_INVALID_ARGUMENT);
    EXPECT_EQ(fovea_gradient_call_run_task(call, phase, 0, 2), FOVEA_INVALID_ARGUMENT);
  }
  EXPECT_TRUE(g.Bytes() == expected);

  char text[1024];
  const size_t bytes = fovea_gradient_plan_to_string(plan, text, sizeof(text));
  EXPECT_EQ(bytes, std::strlen(text) + 1);
  EXPECT_NE(std::string(text).find("gradients"), std::string::npos);
  EXPECT_NE(fovea_gradient_plan_target(plan), FOVEA_TARGET_AUTO);
  fovea_cost cost;
  fovea_cost_init(&cost);
  ASSERT_EQ(fovea_gradient_plan_cost(plan, &cost, &error), FOVEA_OK);
  EXPECT_GT(cost.flops, 0);
  fovea_gradient_plan_destroy(plan);
  fovea_gradient_plan_destroy(nullptr);
}

TEST(CGradientTest, WhatIsWrongIsSaid) {
  RandomGradients g = Example();
  const auto expect = [&](const char* text, const auto& change) {
    CProblem c(g.problem);
    change(c.problem);
    fovea_error error;
    EXPECT_EQ(fovea_gradients(&c.problem, nullptr, nullptr, &error), FOVEA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find(text), std::string::npos) << error.message;
    EXPECT_TRUE(g.Untouched());
  };
  expect("problem.size", [](auto& p) { p.size = 0; });
  expect("problem = null", [](auto& p) { p.forward = nullptr; });
  expect("accumulate = 2", [](auto& p) { p.accumulate = 2; });
  expect("reserved = 1", [](auto& p) { p.reserved = 1; });
  expect("dout.rank = 0", [](auto& p) { p.dout = fovea_tensor(); });
  fovea_error error;
  EXPECT_EQ(fovea_gradient_plan_create(nullptr, nullptr, nullptr, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_gradient_plan_update(nullptr, nullptr, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_gradient_run(nullptr, nullptr, nullptr, 0, nullptr, &error),
            FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_gradient_call_phases(nullptr), 0);
  EXPECT_EQ(fovea_gradient_call_tasks(nullptr, 0), 0);
  EXPECT_EQ(fovea_gradient_call_run_task(nullptr, 0, 0, 0), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_gradient_plan_workspace_bytes(nullptr, 1), 0u);
}

}  // namespace
}  // namespace fovea
