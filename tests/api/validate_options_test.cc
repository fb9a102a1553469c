// Errors beside the problem: options, the workspace and the number of workers.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "api/broken_problem.h"
#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Everything;
using test::kLeast;
using test::kMost;
using test::Plain;
using test::Planned;
using test::RandomProblem;
using test::Says;

// ---- options ----

TEST(ValidateTest, OptionsOutOfRange) {
  struct OptionRule {
    void (*break_it)(PlanOptions&);
    std::vector<const char*> message;
  };
  const std::vector<OptionRule> rules = {
      {[](PlanOptions& o) { o.tile_rows = -1; }, {"tile_rows", "-1"}},
      {[](PlanOptions& o) { o.block_keys = std::numeric_limits<int32_t>::min(); },
       {"block_keys", "-2147483648"}},
      {[](PlanOptions& o) { o.split_keys = -7; }, {"split_keys", "-7"}},
      {[](PlanOptions& o) { o.max_queries = -1; }, {"max_queries", "-1"}},
      {[](PlanOptions& o) { o.max_keys = kLeast; }, {"max_keys"}},
      {[](PlanOptions& o) { o.engine = static_cast<Engine>(3); }, {"engine", "3"}},
      {[](PlanOptions& o) { o.engine = static_cast<Engine>(-1); }, {"engine", "-1"}},
      {[](PlanOptions& o) { o.product = static_cast<Product>(3); }, {"product", "3"}},
      {[](PlanOptions& o) { o.product = static_cast<Product>(-1); }, {"product", "-1"}},
      {[](PlanOptions& o) { o.product = Product::kBF16; }, {"product", "bf16", "f32"}},
      {[](PlanOptions& o) { o.target = static_cast<Target>(99); }, {"target", "99"}},
      {[](PlanOptions& o) { o.target = static_cast<Target>(-1); }, {"target", "-1"}},
  };
  for (const OptionRule& rule : rules) {
    SCOPED_TRACE(rule.message.front());
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    rule.break_it(options);
    Plan plan;
    for (const Status& status : {Plan::Create(p.problem, options, &plan),
                                 Attention(p.problem, options, SerialExecutor())}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, rule.message));
    }
    EXPECT_FALSE(plan.valid());
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, HugeTestHooksAreUpperBoundsOnly) {
  RandomProblem p(Plain(), test::BaseSeed());
  PlanOptions options;
  options.tile_rows = options.block_keys = std::numeric_limits<int32_t>::max();
  options.split_keys = kMost;
  test::ExpectMatchesReference(p, options);
}

TEST(ValidateTest, TargetsThatAreNotUsableAreErrors) {
  for (Target target : {Target::kEmu128, Target::kSse2, Target::kSse4, Target::kAvx2,
                        Target::kAvx512, Target::kNeon, Target::kAvx512Bf16, Target::kNeonBf16,
                        Target::kAvx512Amx, Target::kPpc8, Target::kPpc9, Target::kWasm}) {
    bool usable = false;
    for (Target t : UsableTargets()) usable = usable || t == target;
    if (usable) continue;
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    options.target = target;
    const Status status = Attention(p.problem, options, SerialExecutor());
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << "a host can fall back";
    EXPECT_TRUE(Says(status, {Name(target), Name(*UsableTargets().begin())}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, NumbersThatAreNoTargetAreErrors) {
  for (int number : {-1, 1000}) {
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    options.target = static_cast<Target>(number);
    const Status status = Attention(p.problem, options, SerialExecutor());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(status, {"options.target", std::to_string(number).c_str(),
                              Name(*UsableTargets().begin())}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

// ---- workspace and workers ----

// An executor that claims any number of workers, and must never be asked to run.
class ClaimingExecutor : public Executor {
 public:
  explicit ClaimingExecutor(int workers) : workers_(workers) {}
  int Workers() const noexcept override { return workers_; }
  void ForEach(int64_t, Task, void*) noexcept override { ADD_FAILURE() << "ran"; }

 private:
  int workers_;
};

TEST(ValidateTest, WorkspaceTooSmallOrAbsent) {
  for (const test::Kernel& kernel : test::Kernels()) {
    RandomProblem p(Everything(), 1);
    Planned planned(p, test::Options(kernel));
    for (int workers : {1, 2}) {
      const size_t needed = planned.plan.WorkspaceBytes(workers);
      ASSERT_GT(needed, 0u);
      for (size_t bytes : {size_t{0}, size_t{1}, needed / 2, needed - 1}) {
        BoundCall call;
        const Status status =
            Bind(planned.plan, p.problem, {planned.memory.data(), bytes}, workers, &call);
        EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
        EXPECT_TRUE(Says(status, {"workspace"}));
        EXPECT_NE(std::string(status.message()).find(std::to_string(needed)), std::string::npos)
            << status.message();
        EXPECT_EQ(call.Phases(), 0);
      }
      BoundCall call;
      EXPECT_TRUE(
          Bind(planned.plan, p.problem, {planned.memory.data(), needed}, workers, &call).ok());
    }
    const Status small = fovea::Run(planned.plan, p.problem,
                                    {planned.memory.data(), planned.plan.WorkspaceBytes(1) - 1});
    EXPECT_EQ(small.code(), StatusCode::kOutOfMemory) << small.message();
    const Status null =
        fovea::Run(planned.plan, p.problem, {nullptr, planned.plan.WorkspaceBytes(1)});
    EXPECT_FALSE(null.ok());
    EXPECT_TRUE(Says(null, {"workspace"}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, FewerThanOneWorker) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  for (int workers : {0, -1, std::numeric_limits<int>::min()}) {
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, workers, &call);
    EXPECT_EQ(bind.code(), StatusCode::kInvalidArgument) << bind.message();
    EXPECT_TRUE(Says(bind, {"workers"}));
    EXPECT_NE(std::string(bind.message()).find(std::to_string(workers)), std::string::npos)
        << bind.message();
    EXPECT_EQ(call.Phases(), 0);
    ClaimingExecutor executor(workers);
    EXPECT_EQ(fovea::Run(planned.plan, p.problem, planned.workspace, executor).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(Attention(p.problem, executor).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(planned.plan.WorkspaceBytes(workers), 0u);
  }
  EXPECT_TRUE(p.OutputsUntouched());
}

TEST(ValidateTest, MoreWorkersThanMemoryHasBytes) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  BoundCall call;
  EXPECT_FALSE(
      Bind(planned.plan, p.problem, planned.workspace, std::numeric_limits<int>::max(), &call)
          .ok());
}

}  // namespace
}  // namespace fovea
