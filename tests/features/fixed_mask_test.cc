// A mask that the plan reads (PlanOptions::fixed_mask) gives the bits that it gives when each run
// reads it; an update reads it again.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Layout;
using test::Outcome;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 45, s.Tk = 300, s.dk = 12, s.dv = 9, s.mask = Axes::kBHQK;
  return s;
}

PlanOptions Fixed(const Kernel& kernel) {
  PlanOptions options = test::Options(kernel);
  options.fixed_mask = true;
  return options;
}

// Removes whole areas: every pair but those of some blocks of 16 × 64, of which one in eight is
// removed in part.
void Blocky(OwnedTensor& mask, uint64_t seed) {
  const TensorView view = mask.view();
  const int64_t Tk = view.shape[view.rank - 1], Tq = view.rank == 1 ? 1 : view.shape[view.rank - 2];
  test::Random random(seed);
  std::vector<double> allows(static_cast<size_t>((Tq / 16 + 1) * (Tk / 64 + 1)));
  for (double& x : allows) x = random.Chance(0.5) ? 0.0 : random.Chance(0.25) ? 0.4 : 1.0;
  for (int64_t n = 0; n < mask.size(); ++n) {
    const int64_t i = n / Tk % Tq, j = n % Tk;
    mask.Set(n, random.Chance(allows[static_cast<size_t>(i / 16 * (Tk / 64 + 1) + j / 64)]));
  }
}

Outcome RunPlan(const Plan& plan, RandomProblem& p, int workers = 1) {
  p.ResetOutputs();
  const Status status = test::RunHostDriven(plan, p.problem, workers, test::BaseSeed());
  EXPECT_TRUE(status.ok()) << status.message();
  return test::OutcomeOf(p);
}

TEST(FixedMaskTest, GivesTheBitsOfAMaskThatEachRunReads) {
  for (Axes axes : test::kAllAxes) {
    for (DType type : {DType::kBool, DType::kBit}) {
      for (double allows : test::Thinned({0.0, 0.02, 0.98, -1.0})) {  // −1: in blocks
        ProblemSpec s = Spec();
        s.mask = axes, s.mask_type = type, s.mask_allows = allows;
        RandomProblem p(s, test::BaseSeed());
        if (allows < 0 && p.mask.present()) Blocky(p.mask, test::BaseSeed());
        for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto())) {
          const Outcome expected = RunSerial(kernel, p);
          Plan plan;
          const Status status = Plan::Create(p.problem, Fixed(kernel), &plan);
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(Same(RunPlan(plan, p, 2), expected)) << ToString(kernel) << "\n"
                                                           << ToString(s);
        }
      }
    }
  }
}

TEST(FixedMaskTest, WithCausalLengthsATreeAndPackedSequences) {
  uint64_t seed = test::BaseSeed();
  for (int which = 0; which < 4; ++which) {
    ProblemSpec s = Spec();
    s.causal = Causal::kBottomRight, s.fixed_mask = true;
    if (which == 1) s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64;
    if (which == 2) s.parents = DType::kI32;
    if (which == 3) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI32;
    RandomProblem fixed(s, ++seed);
    Blocky(fixed.mask, seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::ExpectMatchesReference(fixed);
    RandomProblem read = fixed;
    read.spec.fixed_mask = false;
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4))
      EXPECT_TRUE(Same(RunSerial(kernel, fixed), RunSerial(kernel, read))) << ToString(kernel);
  }
}

TEST(FixedMaskTest, UpdateReadsTheMaskAgain) {
  for (DType type : {DType::kBool, DType::kBit}) {
    ProblemSpec s = Spec();
    s.B = 1, s.mask_type = type;
    RandomProblem p(s, test::BaseSeed());
    const std::vector<Kernel> kernels = test::Thinned(test::KernelsAndAuto(), 2);
    std::vector<std::unique_ptr<Plan>> plans;
    p.mask.Fill([] { return 0.0; });  // nothing at all is visible at first
    for (const Kernel& kernel : kernels) {
      plans.push_back(std::make_unique<Plan>());
      ASSERT_TRUE(Plan::Create(p.problem, Fixed(kernel), plans.back().get()).ok());
    }
    for (uint64_t step = 0; step < 4; ++step) {
      if (step == 3) {
        p.mask.Fill([] { return 1.0; });
      } else {
        Blocky(p.mask, test::BaseSeed() + step);  // the same memory with other contents
      }
      const reference::ForwardResult expected = reference::Forward(p.problem);
      size_t n = 0;
      for (const Kernel& kernel : kernels) {
        Plan& plan = *plans[n++];
        const Status status = plan.Update(p.problem);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(Same(RunPlan(plan, p), RunSerial(kernel, p)))
            << ToString(kernel) << " step " << step;
        EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernel) << " step " << step;
      }
    }
  }
}

TEST(FixedMaskTest, UpdatesOfSizesWithinTheRoom) {
  for (Axes axes : {Axes::kBHQK, Axes::kK, Axes::kB1Q1, Axes::k1}) {
    ProblemSpec s = Spec();
    s.Hq = 2, s.Hkv = 1, s.mask = axes;
    RandomProblem first(s, test::BaseSeed());
    std::vector<RandomProblem> steps;
    for (auto [Tq, Tk] : {std::pair<int64_t, int64_t>{100, 700},
                          {1, 700},
                          {100, 129},
                          {17, 20},
                          {0, 700},
                          {45, 0},
                          {45, 300}}) {
      s.Tq = Tq, s.Tk = Tk;
      steps.emplace_back(s, test::BaseSeed() + static_cast<uint64_t>(Tk));
      if (steps.back().mask.size() > 0) Blocky(steps.back().mask, test::BaseSeed());
    }
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
      PlanOptions options = Fixed(kernel);
      options.max_queries = 100, options.max_keys = 700;
      Plan plan;
      ASSERT_TRUE(Plan::Create(first.problem, options, &plan).ok());
      for (RandomProblem& p : steps) {
        const Status status = plan.Update(p.problem);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(Same(RunPlan(plan, p, 2), RunSerial(kernel, p))) << ToString(kernel) << "\n"
                                                                     << ToString(p.spec);
      }
    }
  }
}

TEST(FixedMaskTest, AFailedUpdateKeepsTheMaskThatThePlanHasRead) {
  ProblemSpec s = Spec();
  s.kv_lengths = DType::kI32;
  RandomProblem p(s, test::BaseSeed()), other(s, test::BaseSeed());
  Blocky(p.mask, 1);
  other.mask.Fill([] { return 0.0; });
  other.kv_lengths.Set(1, 301);
  for (const Kernel& kernel : test::Kernels()) {
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, Fixed(kernel), &plan).ok());
    const Outcome expected = RunPlan(plan, p);
    EXPECT_FALSE(plan.Update(other.problem).ok());
    EXPECT_TRUE(Same(RunPlan(plan, p), expected)) << ToString(kernel);
  }
}

TEST(FixedMaskTest, APlanKeepsNoPointerToTheMaskItHasRead) {
  for (DType type : {DType::kBool, DType::kBit}) {
    ProblemSpec s = Spec();
    s.mask_type = type;
    RandomProblem p(s, test::BaseSeed());
    Blocky(p.mask, test::BaseSeed());
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 2)) {
      Plan plan;
      {
        const OwnedTensor mask = p.mask.CopiedTo({Layout::kPadded, Placement::kBeforeGuard});
        Problem other = p.problem;
        other.score.mask = mask.view();
        ASSERT_TRUE(Plan::Create(other, Fixed(kernel), &plan).ok());
        // Unmapped here: a pointer kept would crash. The runs' masks have the same contents.
      }
      EXPECT_TRUE(Same(RunPlan(plan, p), RunSerial(kernel, p))) << ToString(kernel);
    }
  }
}

// Layers that share where a bias removes pairs, and differ in what else it adds.
TEST(FixedMaskTest, AFixedBiasMayHaveOtherNumbersInTheNextRun) {
  for (DType type : test::kFloatTypes) {
    ProblemSpec s = Spec();
    s.mask = Axes::kAbsent, s.bias = Axes::kHQK, s.bias_type = type;
    RandomProblem first(s, test::BaseSeed()), next(s, test::BaseSeed() + 1);
    for (int64_t n = 0; n < first.bias.size(); ++n) {
      if (n % s.Tk / 64 % 2 == 1 || n / s.Tk % s.Tq < 16) continue;
      first.bias.Set(n, -std::numeric_limits<double>::infinity());
      next.bias.Set(n, -std::numeric_limits<double>::infinity());
    }
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 2)) {
      PlanOptions options = test::Options(kernel);
      options.fixed_bias = true;
      Plan plan;
      ASSERT_TRUE(Plan::Create(first.problem, options, &plan).ok());
      EXPECT_TRUE(Same(RunPlan(plan, first, 2), RunSerial(kernel, first))) << ToString(kernel);
      EXPECT_TRUE(Same(RunPlan(plan, next, 2), RunSerial(kernel, next))) << ToString(kernel);
      ASSERT_TRUE(plan.Update(next.problem).ok());
      EXPECT_TRUE(Same(RunPlan(plan, next), RunSerial(kernel, next))) << ToString(kernel);
    }
  }
}

TEST(FixedMaskTest, WithoutAMaskItDoesNothing) {
  ProblemSpec s = Spec();
  s.mask = Axes::kAbsent, s.causal = Causal::kBottomRight;
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    PlanOptions options;
    options.fixed_mask = true;
    EXPECT_TRUE(Same(RunSerial(kernel, p, options), RunSerial(kernel, p))) << ToString(kernel);
  }
}

TEST(FixedMaskTest, AMaskWithoutDataIsRefusedByWhatReadsIt) {
  RandomProblem p(Spec(), test::BaseSeed());
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  Plan fixed;
  PlanOptions options;
  options.fixed_mask = true;
  ASSERT_TRUE(Plan::Create(p.problem, options, &fixed).ok());
  const Outcome expected = RunPlan(fixed, p);
  Problem null = p.problem;
  null.score.mask.data = nullptr;
  Plan none;
  p.ResetOutputs();
  for (const Status& status : {Plan::Create(null, options, &none), fixed.Update(null),
                               Attention(null, options, SerialExecutor())}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find("mask.data"), std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(none.valid());
  EXPECT_TRUE(p.OutputsUntouched());
  EXPECT_TRUE(Same(RunPlan(fixed, p), expected)) << "the plan changed";
  EXPECT_TRUE(plan.Update(null).ok()) << "a mask that runs read is not looked at before";
}

}  // namespace
}  // namespace fovea
