// What the tests of the C interface's errors break.
#ifndef FOVEA_TESTS_API_C_ERRORS_H_
#define FOVEA_TESTS_API_C_ERRORS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "fovea/c.h"
#include "fovea/fovea.h"
#include "support/c_problem.h"
#include "support/random_problem.h"

namespace fovea::test {

// A problem, its plan and a workspace for two workers: what is right about a call when one thing is
// wrong.
class CErrorsTest : public ::testing::Test {
 protected:
  CErrorsTest() : random(Spec(), 1) {
    problem = ToC(random.problem);
    fovea_executor_init(&executor);
    executor.for_each = Serial;
    executor.workers = 2;
    fovea_plan_options_init(&options);
    fovea_allocator_init(&allocator);
    EXPECT_EQ(fovea_plan_create(&problem, nullptr, &plan, nullptr), FOVEA_OK);
    workspace.resize(fovea_plan_workspace_bytes(plan, 2));
    EXPECT_EQ(fovea_bind(plan, &problem, workspace.data(), workspace.size(), 2, &call, nullptr),
              FOVEA_OK);
  }
  ~CErrorsTest() override {
    EXPECT_TRUE(random.OutputsUntouched());
    fovea_plan_destroy(plan);
  }

  static ProblemSpec Spec() {
    ProblemSpec spec;
    spec.B = 2, spec.Hq = 4, spec.Hkv = 2, spec.Tq = 9, spec.Tk = 30, spec.dk = 8, spec.dv = 8,
    spec.bias = Axes::kBHQK;
    spec.mask = Axes::kQK, spec.kv_lengths = DType::kI32, spec.q_lengths = DType::kI64,
    spec.weights = true;
    return spec;
  }
  static void Serial(void*, int64_t tasks, fovea_task run, void* task_context) {
    for (int64_t n = 0; n < tasks; ++n) run(task_context, n, 0);
  }

  // With a message, and without one.
  void ExpectError(const std::string& message, const std::function<fovea_status(fovea_error*)>& f,
                   fovea_status expected = FOVEA_INVALID_ARGUMENT) {
    fovea_error error;
    std::memset(&error, 'x', sizeof(error));
    EXPECT_EQ(f(&error), expected) << message;
    EXPECT_TRUE(std::memchr(error.message, 0, sizeof(error.message)) != nullptr);
    EXPECT_TRUE(std::string(error.message).find(message) == 0)
        << "\"" << error.message << "\", expected \"" << message << "…\"";
    EXPECT_EQ(f(nullptr), expected) << message;
  }
  // Through every function that takes a problem.
  void ExpectProblemError(const fovea_problem* p, const std::string& message,
                          fovea_status expected = FOVEA_INVALID_ARGUMENT) {
    ExpectError(
        message, [&](fovea_error* e) { return fovea_attention(p, nullptr, nullptr, e); }, expected);
    ExpectError(
        message, [&](fovea_error* e) { return fovea_plan_create(p, nullptr, &untouched_plan, e); },
        expected);
    EXPECT_EQ(untouched_plan, nullptr);
    ExpectError(message, [&](fovea_error* e) { return fovea_plan_update(plan, p, e); }, expected);
    ExpectError(
        message,
        [&](fovea_error* e) {
          return fovea_run(plan, p, workspace.data(), workspace.size(), nullptr, e);
        },
        expected);
    ExpectError(
        message,
        [&](fovea_error* e) {
          return fovea_bind(plan, p, workspace.data(), workspace.size(), 2, &untouched_call, e);
        },
        expected);
    EXPECT_EQ(untouched_call, nullptr);
  }

  RandomProblem random;
  fovea_problem problem;
  fovea_executor executor;
  fovea_plan_options options;
  fovea_allocator allocator;
  fovea_plan *plan = nullptr, *untouched_plan = nullptr;
  std::vector<char> workspace;
  fovea_call *call = nullptr, *untouched_call = nullptr;
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_API_C_ERRORS_H_
