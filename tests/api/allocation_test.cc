// Run, Bind, RunTask, Update and Merge never allocate. A binary of its own: it counts every
// allocation of the process.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::KernelsAndAuto;
using test::Memory;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::VariedSpecs;

// Defeats the removal of allocations that nobody looks at.
void* volatile sink;

TEST(AllocationsTest, AreCounted) {
  const int64_t before = test::Allocations();
  sink = ::operator new(100);
  ::operator delete(sink);
  EXPECT_EQ(test::Allocations(), before + 1);
  if (test::CountsMalloc()) {
    sink = std::malloc(100);
    std::free(sink);
    EXPECT_EQ(test::Allocations(), before + 2);
  }
}

TEST(AllocationTest, RunDoesNotAllocate) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, 1);
    for (const Kernel& kernel : test::Thinned(KernelsAndAuto(), 4)) {
      Plan plan;
      PlanOptions options = test::Options(kernel);
      options.fixed_mask = spec.fixed_mask;
      ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
      const Memory memory(plan.WorkspaceBytes(1), Placement::kAligned, 1);
      Executor& executor = SerialExecutor();
      const int64_t before = test::Allocations();
      const Status status = fovea::Run(plan, p.problem, {memory.data(), memory.bytes()}, executor);
      const int64_t after = test::Allocations();
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(after, before) << ToString(kernel);
    }
  }
}

// The plan of a small call lies on the stack; that of many sequences does not.
TEST(AllocationTest, ASmallCallAllocatesItsWorkspaceAlone) {
  if (!test::CountsMalloc()) return;
  ProblemSpec spec;
  spec.Hq = 8, spec.Hkv = 2, spec.Tk = 200, spec.dk = spec.dv = 128;
  RandomProblem small(spec, 1);
  spec.B = 100;
  RandomProblem large(spec, 1);
  const int64_t before = test::Allocations();
  const Status status = Attention(small.problem);
  const int64_t between = test::Allocations();
  EXPECT_TRUE(Attention(large.problem).ok());
  const int64_t after = test::Allocations();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(between, before + 1);
  EXPECT_GT(after, between + 1);
}

TEST(AllocationTest, ErrorsDoNotAllocate) {
  RandomProblem p(VariedSpecs()[0], 1);
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  const Memory memory(plan.WorkspaceBytes(1), Placement::kAligned, 1);
  Problem broken = p.problem;
  broken.v.shape[2] = 7;
  BoundCall call;
  const int64_t before = test::Allocations();
  const Status run = fovea::Run(plan, broken, {memory.data(), memory.bytes()});
  const Status bind = Bind(plan, p.problem, {memory.data(), 1}, 1, &call);
  const Status update = plan.Update(broken);
  const int64_t after = test::Allocations();
  EXPECT_FALSE(run.ok() || bind.ok() || update.ok());
  EXPECT_EQ(after, before);
}

TEST(AllocationTest, BindAndRunTaskDoNotAllocateOnAnyThread) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, 1);
    for (const Kernel& kernel : test::Thinned(KernelsAndAuto(), 4)) {
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
      const Memory memory(plan.WorkspaceBytes(2), Placement::kAligned, 1);
      BoundCall call;
      const int64_t before = test::Allocations();
      const Status status = Bind(plan, p.problem, {memory.data(), memory.bytes()}, 2, &call);
      EXPECT_EQ(test::Allocations(), before) << ToString(kernel);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int phase = 0; phase < call.Phases(); ++phase) {
        // Making a thread allocates: count inside it.
        std::vector<int64_t> allocated(2, 0);
        for (int worker = 0; worker < 2; ++worker) {
          std::thread([&] {
            const int64_t start = test::Allocations();
            for (int64_t task = worker; task < call.Tasks(phase); task += 2)
              call.RunTask(phase, task, worker);
            allocated[static_cast<size_t>(worker)] = test::Allocations() - start;
          }).join();
        }
        EXPECT_EQ(allocated[0] + allocated[1], 0) << ToString(kernel) << " phase " << phase;
      }
    }
  }
}

TEST(AllocationTest, UpdateDoesNotAllocate) {
  ProblemSpec s;
  s.B = 64, s.Hq = 4, s.Hkv = 2, s.Tq = 33, s.Tk = 33, s.dk = 8, s.dv = 8,
  s.causal = Causal::kBottomRight, s.q_lengths = DType::kI32, s.kv_lengths = DType::kI32;
  RandomProblem lengths(s, 1);  // its shapes and lengths only: Update looks at no tensor data
  for (const Kernel& kernel : KernelsAndAuto()) {
    Problem p = lengths.problem;
    const auto sized = [&](int64_t Tq, int64_t Tk) {
      p.q.shape[2] = p.out.shape[2] = p.lse.shape[2] = Tq;
      p.k.shape[2] = p.v.shape[2] = Tk;
    };
    PlanOptions options = test::Options(kernel);
    options.max_queries = 33, options.max_keys = 5000;
    sized(1, 33);
    lengths.q_lengths.Fill([] { return 1; });
    lengths.kv_lengths.Fill([] { return 33; });
    Plan plan;
    const Status created = Plan::Create(p, options, &plan);
    ASSERT_TRUE(created.ok()) << created.message();
    test::Random random(test::BaseSeed());
    for (auto [Tq, Tk] : {std::pair<int64_t, int64_t>{1, 34},
                          {33, 5000},
                          {1, 5000},
                          {17, 2000},
                          {0, 10},
                          {33, 0},
                          {33, 5000}}) {
      sized(Tq, Tk);
      lengths.q_lengths.Fill(
          [&, most = Tq] { return static_cast<double>(random.Between(0, most)); });
      lengths.kv_lengths.Fill(
          [&, most = Tk] { return static_cast<double>(random.Between(0, most)); });
      const int64_t before = test::Allocations();
      const Status status = plan.Update(p);
      const int64_t after = test::Allocations();
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(after, before) << ToString(kernel) << " Tq " << Tq << " Tk " << Tk;
    }
  }
}

TEST(AllocationTest, UpdateOfPackedSequencesAndFixedMasksDoesNotAllocate) {
  ProblemSpec s;
  s.B = 6, s.Hq = 4, s.Hkv = 2, s.Tq = 10, s.Tk = 30, s.dk = 8, s.dv = 8,
  s.causal = Causal::kBottomRight, s.mask = Axes::kBHQK;
  for (bool packed : {false, true}) {
    if (packed) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI32;
    s.Tq = 10, s.Tk = 30;
    RandomProblem first(s, 1);
    std::vector<RandomProblem> steps;
    for (auto [Tq, Tk] : {std::pair<int64_t, int64_t>{1, 900},
                          {70, 900},
                          {70, 40},
                          {1, 1},
                          {0, 900},
                          {70, 0},
                          {70, 900}}) {
      s.Tq = Tq, s.Tk = Tk;
      steps.emplace_back(s, test::BaseSeed());
    }
    for (const Kernel& kernel : KernelsAndAuto()) {
      PlanOptions options = test::Options(kernel);
      options.max_queries = 70, options.max_keys = 900, options.fixed_mask = true;
      Plan plan;
      ASSERT_TRUE(Plan::Create(first.problem, options, &plan).ok());
      for (RandomProblem& p : steps) {
        const int64_t before = test::Allocations();
        const Status status = plan.Update(p.problem);
        const int64_t after = test::Allocations();
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(after, before) << ToString(kernel) << " " << ToString(p.spec);
      }
    }
  }
}

TEST(AllocationTest, MergeDoesNotAllocate) {
  const float out[6] = {}, lse[2] = {};
  float merged_out[6], merged_lse[2];
  PartialState parts[3];
  for (PartialState& part : parts) part = {View(out, {1, 1, 2, 3}), View(lse, {1, 1, 2})};
  const int64_t before = test::Allocations();
  const Status status =
      Merge(parts, 3, View(merged_out, {1, 1, 2, 3}), View(merged_lse, {1, 1, 2}));
  const int64_t after = test::Allocations();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace fovea
