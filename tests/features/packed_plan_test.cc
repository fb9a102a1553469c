// Plans of packed batches: updates, what a plan keeps, and what it counts.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "features/packed_problem.h"
#include "fovea/attention.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Kernel;
using test::kPackings;
using test::Layout;
using test::Outcome;
using test::OwnedTensor;
using test::PackedSpec;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::Same;

TEST(PackedTest, UpdateIsAFreshPlan) {
  ProblemSpec s = PackedSpec();
  s.causal = Causal::kBottomRight, s.weights = true;
  RandomProblem first(s, 1);
  std::vector<RandomProblem> steps;
  std::vector<reference::ForwardResult> references;
  for (auto [Tq, Tk] :
       {std::pair<int64_t, int64_t>{1, 700}, {64, 64}, {7, 0}, {0, 30}, {33, 601}, {40, 150}}) {
    s.Tq = Tq, s.Tk = Tk;
    steps.emplace_back(s, test::BaseSeed() + static_cast<uint64_t>(Tq));
    references.push_back(reference::Forward(steps.back().problem));
  }
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    PlanOptions options = test::Options(kernel);
    options.max_queries = 64, options.max_keys = 700;
    Plan plan;
    ASSERT_TRUE(Plan::Create(first.problem, options, &plan).ok());
    for (int64_t step :
         test::Thinned(test::Numbers(0, static_cast<int64_t>(steps.size()) - 1), 2)) {
      const size_t n = static_cast<size_t>(step);
      RandomProblem& p = steps[n];
      SCOPED_TRACE(ToString(kernel) + " " + ToString(p.spec));
      const Status status = plan.Update(p.problem);
      ASSERT_TRUE(status.ok()) << status.message();
      Plan fresh;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &fresh).ok());
      EXPECT_EQ(plan.cost().pairs, fresh.cost().pairs);
      EXPECT_EQ(plan.cost().tasks, fresh.cost().tasks);
      ASSERT_TRUE(test::RunHostDriven(fresh, p.problem, 2, 1).ok());
      const Outcome expected = test::OutcomeOf(p);
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 2, 1).ok());
      EXPECT_TRUE(Same(test::OutcomeOf(p), expected));
      EXPECT_TRUE(test::Matches(p.problem, references[n]));
    }
  }
}

TEST(PackedTest, APlanKeepsNoPointerToTheSequences) {
  RandomProblem p(PackedSpec(), test::BaseSeed());
  Plan plan;
  {
    const OwnedTensor cu_q = p.cu_seqlens_q.CopiedTo({Layout::kDense, Placement::kBeforeGuard});
    const OwnedTensor cu_k = p.cu_seqlens_k.CopiedTo({Layout::kDense, Placement::kBeforeGuard});
    Problem other = p.problem;
    other.cu_seqlens_q = cu_q.view();
    other.cu_seqlens_k = cu_k.view();
    ASSERT_TRUE(Plan::Create(other, {}, &plan).ok());
    // Unmapped here: a pointer kept would crash.
  }
  ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 1, 1).ok());
  EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem)));
}

TEST(PackedTest, CostCountsThePairsOfEachSequence) {
  uint64_t seed = test::BaseSeed();
  for (const auto& packing : kPackings) {
    for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
      ProblemSpec s = PackedSpec(packing[0], packing[1]);
      s.causal = causal, s.window = {50, -1}, s.q_lengths = DType::kI32;
      RandomProblem p(s, ++seed);
      double pairs = 0;
      for (int64_t b = 0; b < s.B; ++b) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t j = 0; j < s.Tk; ++j)
            pairs += p.InBand(b, i, j) ? static_cast<double>(s.Hq) : 0;
        }
      }
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
      EXPECT_EQ(plan.cost().pairs, pairs) << "seed " << seed << "\n" << ToString(s);
      EXPECT_NE(plan.ToString().find("sequence"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace fovea
