// The C interface with a host's own parts: structs of other versions, its allocator, its threads.
#include "fovea/c.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "fovea/fovea.h"
#include "support/c_problem.h"
#include "support/check.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#ifdef FOVEA_TEST_TBB
#include "fovea/c_tbb.h"
#endif

namespace fovea {
namespace {

using test::HostLoop;
using test::Outcome;
using test::OutcomeOf;
using test::OwnedPlan;
using test::ProblemSpec;
using test::RandomProblem;
using test::Same;
using test::ToC;
using test::VariedSpecs;

// ---------------------------------------------------------------- structs of other versions

ProblemSpec Small() {
  ProblemSpec spec;
  spec.B = 1, spec.Hq = 2, spec.Hkv = 2, spec.Tq = 9, spec.Tk = 20, spec.dk = 8, spec.dv = 8;
  return spec;
}

// A struct of a newer header: `unknown` more bytes.
template <class Struct>
std::vector<uint64_t> Longer(const Struct& known, uint64_t unknown) {
  std::vector<uint64_t> words(sizeof(Struct) / 8 + 2, 0);
  std::memcpy(words.data(), &known, sizeof(Struct));
  words.back() = unknown;
  reinterpret_cast<Struct*>(words.data())->size = words.size() * 8;
  return words;
}

TEST(CVersionTest, WhatAShorterStructLacksIsTheDefault) {
  RandomProblem p(Small(), 1);
  ASSERT_TRUE(Attention(p.problem).ok());
  const Outcome expected = OutcomeOf(p);
  p.ResetOutputs();
  // The header of a version that knew tensors up to lse alone; what lies behind is not the
  // library's.
  fovea_problem problem = ToC(p.problem);
  problem.size = offsetof(fovea_problem, weights);
  std::memset(&problem.weights, 0x5A, sizeof(problem) - problem.size);
  fovea_error error;
  ASSERT_EQ(fovea_attention(&problem, nullptr, nullptr, &error), FOVEA_OK) << error.message;
  EXPECT_TRUE(Same(OutcomeOf(p), expected));

  fovea_plan_options options = ToC(PlanOptions());
  options.size = offsetof(fovea_plan_options, max_queries);
  std::memset(&options.max_queries, 0x5A, sizeof(options) - options.size);
  const fovea_problem whole = ToC(p.problem);
  ASSERT_EQ(fovea_attention(&whole, &options, nullptr, &error), FOVEA_OK) << error.message;

  fovea_plan* raw = nullptr;
  ASSERT_EQ(fovea_plan_create(&whole, nullptr, &raw, &error), FOVEA_OK) << error.message;
  const OwnedPlan plan(raw);
  fovea_cost cost = {offsetof(fovea_cost, pairs), -1, -1, -1, -1};
  ASSERT_EQ(fovea_plan_cost(raw, &cost, &error), FOVEA_OK) << error.message;
  EXPECT_GT(cost.flops, 0);
  EXPECT_GT(cost.kv_bytes, 0);
  EXPECT_EQ(cost.pairs, -1);
  EXPECT_EQ(cost.tasks, -1);
  EXPECT_EQ(cost.size, offsetof(fovea_cost, pairs));
}

TEST(CVersionTest, OneThatKnewNoScoreFunctionHasNone) {
  RandomProblem p(Small(), 1);
  ASSERT_TRUE(Attention(p.problem).ok());
  const Outcome expected = OutcomeOf(p);
  p.ResetOutputs();
  fovea_problem problem = ToC(p.problem);
  problem.size = offsetof(fovea_problem, head_scales);
  std::memset(&problem.head_scales, 0x5A, sizeof(problem) - problem.size);
  fovea_error error;
  ASSERT_EQ(fovea_attention(&problem, nullptr, nullptr, &error), FOVEA_OK) << error.message;
  EXPECT_TRUE(Same(OutcomeOf(p), expected));
}

TEST(CVersionTest, WhatALongerStructAddsMustBeZero) {
  RandomProblem p(Small(), 1);
  fovea_error error;
  const fovea_problem problem = ToC(p.problem);
  const auto attention = [&](const fovea_problem* pr, const fovea_plan_options* o,
                             const fovea_executor* e) {
    error.message[0] = '\0';
    return fovea_attention(pr, o, e, &error);
  };
  int calls = 0;
  for (uint64_t unknown : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    const fovea_status expected = unknown == 0 ? FOVEA_OK : FOVEA_INVALID_ARGUMENT;
    auto long_problem = Longer(problem, unknown);
    EXPECT_EQ(attention(reinterpret_cast<fovea_problem*>(long_problem.data()), nullptr, nullptr),
              expected)
        << error.message;
    fovea_allocator allocator;
    fovea_allocator_init(&allocator);
    auto long_allocator = Longer(allocator, unknown);
    fovea_plan_options options = ToC(PlanOptions());
    options.allocator = reinterpret_cast<fovea_allocator*>(long_allocator.data());
    EXPECT_EQ(attention(&problem, &options, nullptr), expected) << error.message;
    auto long_options = Longer(ToC(PlanOptions()), unknown);
    EXPECT_EQ(
        attention(&problem, reinterpret_cast<fovea_plan_options*>(long_options.data()), nullptr),
        expected)
        << error.message;
    auto long_executor = Longer(HostLoop(&calls), unknown);
    EXPECT_EQ(attention(&problem, nullptr, reinterpret_cast<fovea_executor*>(long_executor.data())),
              expected)
        << error.message;
  }
}

// ---------------------------------------------------------------- the caller's allocator

// Counts, and fails from the n-th allocation on.
struct CountingHost {
  int allocations = 0, most = 1 << 30;
  int64_t bytes = 0;
  static void* Allocate(void* context, size_t bytes) {
    auto& host = *static_cast<CountingHost*>(context);
    if (host.allocations >= host.most) return nullptr;
    ++host.allocations;
    host.bytes += static_cast<int64_t>(bytes);
    return std::malloc(bytes);
  }
  static void Release(void* context, void* memory, size_t bytes) {
    static_cast<CountingHost*>(context)->bytes -= static_cast<int64_t>(bytes);
    std::free(memory);
  }
  fovea_allocator ToC() {
    fovea_allocator allocator;
    fovea_allocator_init(&allocator);
    allocator.context = this;
    allocator.allocate = Allocate;
    allocator.release = Release;
    return allocator;
  }
};

TEST(CAllocatorTest, GivesAllMemoryAndGetsItBack) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, 1);
    CountingHost host;
    const fovea_allocator allocator = host.ToC();
    PlanOptions cc_options;
    cc_options.fixed_mask = spec.fixed_mask;
    fovea_plan_options options = ToC(cc_options);
    options.allocator = &allocator;
    const fovea_problem problem = ToC(p.problem);
    fovea_error error;
    fovea_plan* plan = nullptr;
    ASSERT_EQ(fovea_plan_create(&problem, &options, &plan, &error), FOVEA_OK) << error.message;
    EXPECT_GT(host.bytes, 0);
    const int planned = host.allocations;
    ASSERT_EQ(fovea_plan_update(plan, &problem, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(host.allocations, planned);
    fovea_plan_destroy(plan);
    EXPECT_EQ(host.bytes, 0);

    host.allocations = 0;
    ASSERT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(host.bytes, 0);
    const int once = host.allocations;
    EXPECT_EQ(once, planned - 1);  // without the handle and the plan's own memory, with a workspace

    // Whichever allocation fails: a code, nothing leaked, nothing written.
    p.ResetOutputs();
    for (int most = 0; most < planned; ++most) {
      host.allocations = 0, host.most = most;
      plan = nullptr;
      EXPECT_EQ(fovea_plan_create(&problem, &options, &plan, &error), FOVEA_OUT_OF_MEMORY);
      EXPECT_EQ(plan, nullptr);
      EXPECT_EQ(host.bytes, 0);
    }
    for (int most = 0; most < once; ++most) {
      host.allocations = 0, host.most = most;
      EXPECT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_OUT_OF_MEMORY);
      EXPECT_EQ(host.bytes, 0);
    }
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(CAllocatorTest, OneFunctionIsAnError) {
  RandomProblem p(Small(), 1);
  CountingHost host;
  fovea_allocator allocator = host.ToC();
  allocator.release = nullptr;
  fovea_plan_options options = ToC(PlanOptions());
  options.allocator = &allocator;
  const fovea_problem problem = ToC(p.problem);
  fovea_error error;
  EXPECT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "options.allocator.release = null, expected both functions or none");
  EXPECT_EQ(host.allocations, 0);
}

#ifdef FOVEA_TEST_TBB
TEST(CTbbTest, RunsOnOneTbb) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, test::BaseSeed());
    PlanOptions options;
    options.fixed_mask = spec.fixed_mask;
    ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
    const Outcome expected = OutcomeOf(p);
    p.ResetOutputs();
    fovea_executor executor;
    fovea_executor_init(&executor);
    fovea_error error;
    ASSERT_EQ(fovea_tbb_create(3, &executor, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(executor.workers, 3);
    const fovea_problem problem = ToC(p.problem);
    const fovea_plan_options c_options = ToC(options);
    ASSERT_EQ(fovea_attention(&problem, &c_options, &executor, &error), FOVEA_OK) << error.message;
    EXPECT_TRUE(Same(OutcomeOf(p), expected));
    fovea_tbb_destroy(&executor);
    EXPECT_EQ(executor.context, nullptr);
    EXPECT_EQ(fovea_attention(&problem, &c_options, &executor, &error), FOVEA_INVALID_ARGUMENT);
    fovea_tbb_destroy(&executor);
  }
  fovea_tbb_destroy(nullptr);
  fovea_executor executor;
  fovea_executor_init(&executor);
  EXPECT_EQ(fovea_tbb_create(1, nullptr, nullptr), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_tbb_create(-1, &executor, nullptr), FOVEA_INVALID_ARGUMENT);
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(executor) + 8, SIZE_MAX}) {
    executor.size = size;
    EXPECT_EQ(fovea_tbb_create(1, &executor, nullptr), FOVEA_INVALID_ARGUMENT);
  }
  // Another's executor is left alone.
  int host = 0;
  executor.context = &host;
  executor.for_each = [](void*, int64_t, fovea_task, void*) {};
  fovea_tbb_destroy(&executor);
  EXPECT_EQ(executor.context, &host);
}
#endif

}  // namespace
}  // namespace fovea
