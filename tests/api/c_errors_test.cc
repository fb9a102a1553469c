// Every entry point of the C interface given nonsense: a code and a message, no crash, no output
// touched. What can be wrong with a problem itself is in c_problem_errors_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "api/c_errors.h"
#include "fovea/c.h"
#include "fovea/fovea.h"
#include "support/c_problem.h"

namespace fovea {
namespace {

using test::CErrorsTest;

constexpr size_t kWrongSizes[] = {0,
                                  1,
                                  4,
                                  sizeof(size_t),
                                  2 * sizeof(size_t) + 1,
                                  size_t{1} << 20,
                                  std::numeric_limits<size_t>::max()};

TEST_F(CErrorsTest, NullPointers) {
  ExpectProblemError(nullptr, "problem = null");
  char* const w = workspace.data();
  const size_t bytes = workspace.size();
  const float x[4] = {};
  float y[4] = {};
  const int64_t one[4] = {1, 1, 1, 1};
  const fovea_partial_state part = {fovea_dense(x, FOVEA_F32, 4, one),
                                    fovea_dense(x, FOVEA_F32, 3, one)};
  const fovea_tensor out = fovea_dense(y, FOVEA_F32, 4, one);
  fovea_cost cost;
  fovea_cost_init(&cost);
  fovea_target target = -5;
  const std::vector<std::pair<std::string, std::function<fovea_status(fovea_error*)>>> calls = {
      {"plan = null",
       [&](fovea_error* e) { return fovea_plan_create(&problem, nullptr, nullptr, e); }},
      {"plan = null", [&](fovea_error* e) { return fovea_plan_update(nullptr, &problem, e); }},
      {"plan = null", [&](fovea_error* e) { return fovea_plan_cost(nullptr, &cost, e); }},
      {"cost = null", [&](fovea_error* e) { return fovea_plan_cost(plan, nullptr, e); }},
      {"plan = null",
       [&](fovea_error* e) { return fovea_run(nullptr, &problem, w, bytes, nullptr, e); }},
      {"workspace = null",
       [&](fovea_error* e) { return fovea_run(plan, &problem, nullptr, bytes, nullptr, e); }},
      {"workspace = null",
       [&](fovea_error* e) { return fovea_run(plan, &problem, nullptr, 0, nullptr, e); }},
      {"plan = null",
       [&](fovea_error* e) {
         return fovea_bind(nullptr, &problem, w, bytes, 2, &untouched_call, e);
       }},
      {"call = null",
       [&](fovea_error* e) { return fovea_bind(plan, &problem, w, bytes, 2, nullptr, e); }},
      {"workspace = null",
       [&](fovea_error* e) {
         return fovea_bind(plan, &problem, nullptr, bytes, 2, &untouched_call, e);
       }},
      {"parts = null", [&](fovea_error* e) { return fovea_merge(nullptr, 1, &out, nullptr, e); }},
      {"out = null", [&](fovea_error* e) { return fovea_merge(&part, 1, nullptr, nullptr, e); }},
      {"target = null", [&](fovea_error* e) { return fovea_parse_target(nullptr, &target, e); }},
      {"target = null", [&](fovea_error* e) { return fovea_parse_target("avx2", nullptr, e); }},
      {"target = null", [&](fovea_error* e) { return fovea_active_target(nullptr, e); }},
      {"slopes = null", [&](fovea_error* e) { return fovea_alibi_slopes(3, 8, nullptr, e); }},
  };
  for (const auto& [message, f] : calls) ExpectError(message, f);
  EXPECT_EQ(target, -5);
  EXPECT_EQ(untouched_call, nullptr);

  fovea_plan_destroy(nullptr);
  EXPECT_EQ(fovea_plan_workspace_bytes(nullptr, 1), 0u);
  EXPECT_EQ(fovea_plan_target(nullptr), FOVEA_TARGET_AUTO);
  EXPECT_EQ(fovea_plan_engine(nullptr), FOVEA_ENGINE_AUTO);
  EXPECT_EQ(fovea_plan_product(nullptr), FOVEA_PRODUCT_AUTO);
  EXPECT_EQ(fovea_plan_to_string(nullptr, w, bytes), 0u);
  EXPECT_GT(fovea_plan_to_string(plan, nullptr, 100), 1u);
  EXPECT_EQ(fovea_call_phases(nullptr), 0);
  EXPECT_EQ(fovea_call_tasks(nullptr, 0), 0);
  EXPECT_EQ(fovea_call_run_task(nullptr, 0, 0, 0), FOVEA_INVALID_ARGUMENT);
  EXPECT_GT(fovea_compiled_targets(nullptr, 5), 0u);
  EXPECT_GT(fovea_usable_targets(nullptr, 5), 0u);
}

TEST_F(CErrorsTest, WrongSizes) {
  for (size_t size : kWrongSizes) {
    SCOPED_TRACE(size);
    fovea_problem p = problem;
    p.size = size;
    ExpectProblemError(&p, "problem.size = ");
    fovea_plan_options o = options;
    o.size = size;
    ExpectError("options.size = ", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
    ExpectError("options.size = ",
                [&](fovea_error* e) { return fovea_attention(&problem, &o, nullptr, e); });
    fovea_allocator a = allocator;
    a.size = size;
    o = options;
    o.allocator = &a;
    ExpectError("options.allocator.size = ", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
    fovea_executor x = executor;
    x.size = size;
    ExpectError("executor.size = ",
                [&](fovea_error* e) { return fovea_attention(&problem, nullptr, &x, e); });
    ExpectError("executor.size = ", [&](fovea_error* e) {
      return fovea_run(plan, &problem, workspace.data(), workspace.size(), &x, e);
    });
    fovea_cost c = {size, -1, -1, -1, -1};
    ExpectError("cost.size = ", [&](fovea_error* e) { return fovea_plan_cost(plan, &c, e); });
    EXPECT_EQ(c.flops, -1);
  }
  EXPECT_EQ(untouched_plan, nullptr);
  fovea_problem p = problem;
  p.reserved = 1;
  ExpectProblemError(&p, "problem.reserved = 1, expected 0");
}

TEST_F(CErrorsTest, ExecutorsAndWorkers) {
  fovea_executor none = executor, empty = executor, reserved = executor;
  none.for_each = nullptr;
  empty.workers = 0;
  reserved.reserved = 1;
  for (const fovea_executor* x : {&none, &empty, &reserved}) {
    ExpectError("executor.",
                [&](fovea_error* e) { return fovea_attention(&problem, nullptr, x, e); });
    ExpectError("executor.", [&](fovea_error* e) {
      return fovea_run(plan, &problem, workspace.data(), workspace.size(), x, e);
    });
  }
  for (int32_t workers : {0, -1, std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(fovea_plan_workspace_bytes(plan, workers), 0u);
    ExpectError("workers = ", [&](fovea_error* e) {
      return fovea_bind(plan, &problem, workspace.data(), workspace.size(), workers,
                        &untouched_call, e);
    });
  }
  for (int32_t workers : {3, std::numeric_limits<int32_t>::max()}) {
    ExpectError(
        "workspace_bytes = ",
        [&](fovea_error* e) {
          return fovea_bind(plan, &problem, workspace.data(), workspace.size(), workers,
                            &untouched_call, e);
        },
        FOVEA_OUT_OF_MEMORY);
  }
  for (size_t bytes : {size_t{0}, size_t{1}, sizeof(void*), workspace.size() - 1}) {
    ExpectError(
        "workspace_bytes = ",
        [&](fovea_error* e) {
          return fovea_bind(plan, &problem, workspace.data(), bytes, 2, &untouched_call, e);
        },
        FOVEA_OUT_OF_MEMORY);
    ExpectError(
        "workspace_bytes = ",
        [&](fovea_error* e) {
          return fovea_run(plan, &problem, workspace.data(), bytes, &executor, e);
        },
        FOVEA_OUT_OF_MEMORY);
  }
  EXPECT_EQ(untouched_call, nullptr);
}

TEST_F(CErrorsTest, AHostThatCallsTasksOrWorkersThatDoNotExist) {
  struct Numbers {
    int64_t task;
    int32_t worker;
  };
  for (Numbers wrong : {Numbers{-1, 0}, {int64_t{1} << 40, 0}, {0, -1}, {0, 2}}) {
    fovea_executor x = executor;
    x.context = &wrong;
    x.for_each = [](void* context, int64_t tasks, fovea_task run, void* task_context) {
      for (int64_t i = 0; i < tasks; ++i) run(task_context, i, 0);
      run(task_context, static_cast<Numbers*>(context)->task,
          static_cast<Numbers*>(context)->worker);
    };
    ExpectError("executor called", [&](fovea_error* e) {
      return fovea_run(plan, &problem, workspace.data(), workspace.size(), &x, e);
    });
    ExpectError("executor called",
                [&](fovea_error* e) { return fovea_attention(&problem, nullptr, &x, e); });
  }
  random.ResetOutputs();  // the one error after which they may hold anything
}

TEST_F(CErrorsTest, AHostThatLeavesTasksOut) {
  fovea_executor x = executor;
  x.for_each = [](void*, int64_t, fovea_task, void*) {};
  ExpectError("executor did not call", [&](fovea_error* e) {
    return fovea_run(plan, &problem, workspace.data(), workspace.size(), &x, e);
  });
  ExpectError("executor did not call",
              [&](fovea_error* e) { return fovea_attention(&problem, nullptr, &x, e); });
}

TEST_F(CErrorsTest, Tasks) {
  const int32_t phases = fovea_call_phases(call);
  ASSERT_GT(phases, 0);
  const int64_t tasks = fovea_call_tasks(call, 0);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (int32_t phase :
       {-1, phases, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(fovea_call_tasks(call, phase), 0);
    EXPECT_EQ(fovea_call_run_task(call, phase, 0, 0), FOVEA_INVALID_ARGUMENT);
  }
  for (int64_t task : {int64_t{-1}, tasks, kMost, -kMost - 1})
    EXPECT_EQ(fovea_call_run_task(call, 0, task, 0), FOVEA_INVALID_ARGUMENT);
  for (int32_t worker : {-1, 2, std::numeric_limits<int32_t>::max()})
    EXPECT_EQ(fovea_call_run_task(call, 0, 0, worker), FOVEA_INVALID_ARGUMENT);
}

TEST_F(CErrorsTest, Merge) {
  const float x[12] = {};
  float y[12] = {7};
  const int64_t shape[4] = {1, 1, 2, 3}, other[4] = {1, 1, 2, 4};
  const fovea_partial_state part = {fovea_dense(x, FOVEA_F32, 4, shape),
                                    fovea_dense(x, FOVEA_F32, 3, shape)};
  fovea_partial_state wrong = part;
  wrong.out = fovea_dense(x, FOVEA_F32, 4, other);
  const fovea_partial_state parts[2] = {part, wrong};
  const fovea_tensor out = fovea_dense(y, FOVEA_F32, 4, shape), absent = {},
                     half = fovea_dense(y, FOVEA_F16, 4, shape);
  for (int64_t count : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    ExpectError("count = ",
                [&](fovea_error* e) { return fovea_merge(&part, count, &out, nullptr, e); });
  }
  ExpectError("parts[1].out.shape[3]",
              [&](fovea_error* e) { return fovea_merge(parts, 2, &out, nullptr, e); });
  ExpectError("out.rank",
              [&](fovea_error* e) { return fovea_merge(&part, 1, &absent, nullptr, e); });
  ExpectError("out.dtype",
              [&](fovea_error* e) { return fovea_merge(&part, 1, &half, nullptr, e); });
  ExpectError("lse.rank", [&](fovea_error* e) { return fovea_merge(&part, 1, &out, &out, e); });
  EXPECT_EQ(y[0], 7);
}

}  // namespace
}  // namespace fovea
