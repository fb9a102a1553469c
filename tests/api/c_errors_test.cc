// Every entry point of the C interface given nonsense: a code and a message, no crash, no output
// touched.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/c.h"
#include "fovea/fovea.h"
#include "support/c_problem.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::RandomProblem;
using test::ToC;

constexpr size_t kWrongSizes[] = {0,
                                  1,
                                  4,
                                  sizeof(size_t),
                                  2 * sizeof(size_t) + 1,
                                  size_t{1} << 20,
                                  std::numeric_limits<size_t>::max()};

// A problem, its plan and a workspace for two workers: what is right about a call when one thing is
// wrong.
class CErrorsTest : public testing::Test {
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

  static test::ProblemSpec Spec() {
    test::ProblemSpec spec;
    spec.B = 2, spec.Hq = 4, spec.Hkv = 2, spec.Tq = 9, spec.Tk = 30, spec.dk = 8, spec.dv = 8,
    spec.bias = test::Axes::kBHQK;
    spec.mask = test::Axes::kQK, spec.kv_lengths = DType::kI32, spec.q_lengths = DType::kI64,
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

// What is wrong with a problem is said as in C++, code and words alike.
TEST_F(CErrorsTest, InconsistentProblems) {
  const std::vector<std::function<void(Problem&)>> mistakes = {
      [](Problem& p) { p.v.shape[2] = 29; },
      [](Problem& p) { p.k.shape[3] = 7; },
      [](Problem& p) { p.k.shape[1] = 3; },
      [](Problem& p) { p.k.shape[0] = 1; },
      [](Problem& p) { p.q.shape[2] = -1; },
      [](Problem& p) { p.q.rank = 3; },
      [](Problem& p) { p.q.rank = -1; },
      [](Problem& p) { p.k.rank = 5; },
      [](Problem& p) { p.v.rank = std::numeric_limits<int32_t>::max(); },
      [](Problem& p) { p.out = {}; },
      [](Problem& p) { p.q = {}; },
      [](Problem& p) { p.v.dtype = DType::kI32; },
      [](Problem& p) { p.v.dtype = static_cast<DType>(99); },
      [](Problem& p) { p.out.dtype = static_cast<DType>(-1); },
      [](Problem& p) { p.q.stride[0] = std::numeric_limits<int64_t>::max(); },
      [](Problem& p) { p.k.shape[2] = p.v.shape[2] = std::numeric_limits<int64_t>::max(); },
      [](Problem& p) { p.lse.shape[2] = 8; },
      [](Problem& p) { p.weights.dtype = DType::kF16; },
      [](Problem& p) { p.score.scale = std::numeric_limits<float>::quiet_NaN(); },
      [](Problem& p) { p.score.softcap = -1; },
      [](Problem& p) { p.score.causal = static_cast<Causal>(3); },
      [](Problem& p) { p.score.window.left = -2; },
      [](Problem& p) { p.score.query_offset = std::numeric_limits<int64_t>::min(); },
      [](Problem& p) { p.score_stage = static_cast<ScoreStage>(4); },
      [](Problem& p) { p.score.block_map.queries = 4; },
      [](Problem& p) { p.score.bias.shape[3] = 31; },
      [](Problem& p) { p.score.bias.rank = 9; },
      [](Problem& p) { p.score.mask.dtype = DType::kF32; },
      [](Problem& p) { p.score.kv_lengths.shape[0] = 3; },
      [](Problem& p) { p.score.kv_lengths.dtype = DType::kF32; },
      [](Problem& p) { p.score.kv_lengths.data = nullptr; },
      [](Problem& p) { p.cu_seqlens_q = p.score.q_lengths; },
      [](Problem& p) {
        static const int32_t beyond[2] = {31, 0};
        p.score.kv_lengths.data = beyond, p.score.kv_lengths.dtype = DType::kI32,
        p.score.kv_lengths.stride[0] = 4;
      },
      [](Problem& p) {
        static const int64_t negative[2] = {-1, 9};
        p.score.q_lengths.data = negative, p.score.q_lengths.dtype = DType::kI64,
        p.score.q_lengths.stride[0] = 8;
      },
  };
  for (size_t n = 0; n < mistakes.size(); ++n) {
    SCOPED_TRACE(n);
    Problem wrong = random.problem;
    mistakes[n](wrong);
    Plan none;
    const Status expected = Plan::Create(wrong, {}, &none);
    ASSERT_FALSE(expected.ok());
    const fovea_problem p = ToC(wrong);
    ExpectProblemError(&p, expected.message(), static_cast<fovea_status>(expected.code()));
  }
}

TEST_F(CErrorsTest, MissingData) {
  for (fovea_tensor fovea_problem::* tensor :
       {&fovea_problem::q, &fovea_problem::k, &fovea_problem::v, &fovea_problem::out,
        &fovea_problem::lse, &fovea_problem::weights, &fovea_problem::bias, &fovea_problem::mask,
        &fovea_problem::kv_lengths, &fovea_problem::q_lengths}) {
    fovea_problem p = problem;
    (p.*tensor).data = nullptr;
    ExpectError("", [&](fovea_error* e) { return fovea_attention(&p, nullptr, nullptr, e); });
    ExpectError("", [&](fovea_error* e) {
      return fovea_run(plan, &p, workspace.data(), workspace.size(), nullptr, e);
    });
    ExpectError("", [&](fovea_error* e) {
      return fovea_bind(plan, &p, workspace.data(), workspace.size(), 2, &untouched_call, e);
    });
  }
  EXPECT_EQ(untouched_call, nullptr);
}

TEST_F(CErrorsTest, Options) {
  const std::vector<std::function<void(fovea_plan_options&)>> mistakes = {
      [](fovea_plan_options& o) { o.target = 99; },
      [](fovea_plan_options& o) { o.target = -1; },
      [](fovea_plan_options& o) { o.engine = 3; },
      [](fovea_plan_options& o) { o.product = -1; },
      [](fovea_plan_options& o) { o.max_keys = -1; },
      [](fovea_plan_options& o) { o.tile_rows = -1; },
      [](fovea_plan_options& o) { o.block_keys = -8; },
      [](fovea_plan_options& o) { o.product = FOVEA_PRODUCT_BF16; },
  };
  for (const auto& mistake : mistakes) {
    fovea_plan_options o = options;
    mistake(o);
    ExpectError("options.", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
    ExpectError("options.",
                [&](fovea_error* e) { return fovea_attention(&problem, &o, nullptr, e); });
  }
  EXPECT_EQ(untouched_plan, nullptr);
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

TEST_F(CErrorsTest, FlagsAreZeroOrOne) {
  for (int32_t flag : {2, -1}) {
    for (int32_t fovea_problem::* member : {&fovea_problem::has_scale, &fovea_problem::has_window,
                                            &fovea_problem::has_query_offset}) {
      fovea_problem p = problem;
      p.*member = flag;
      ExpectProblemError(&p, "problem.has_");
    }
    fovea_plan_options o = options;
    o.fixed_mask = flag;
    ExpectError("options.fixed_mask", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
  }
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
    ExpectError("executor.for_each", [&](fovea_error* e) {
      return fovea_run(plan, &problem, workspace.data(), workspace.size(), &x, e);
    });
    ExpectError("executor.for_each",
                [&](fovea_error* e) { return fovea_attention(&problem, nullptr, &x, e); });
  }
  random.ResetOutputs();  // the one error after which they may hold anything
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

TEST_F(CErrorsTest, ShapesThatOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const float x = 0;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}, {2, kMost / 2, 3, 4}}) {
    fovea_problem p = problem;
    p.q = fovea_dense(&x, FOVEA_F32, 4, shape.data());
    p.mask = fovea_dense(&x, FOVEA_BIT, 4, shape.data());
    ExpectProblemError(&p, "q.");
  }
  ExpectError("Hq = -1", [&](fovea_error* e) { return fovea_alibi_slopes(-1, 8, nullptr, e); });
  EXPECT_EQ(fovea_alibi_slopes(0, 8, nullptr, nullptr), FOVEA_OK);
}

}  // namespace
}  // namespace fovea
