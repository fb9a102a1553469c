// Every error, on every entry point: its code, a message that names the field and both values, and
// outputs that nobody touched; and what looks wrong but is legal.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "api/broken_problem.h"
#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::Everything;
using test::kLeast;
using test::kMost;
using test::Plain;
using test::Planned;
using test::ProblemSpec;
using test::RandomProblem;
using test::Rule;
using test::Says;
using test::Seen;
using test::Suite;
using test::Suites;

// "kv_lengths" of "kv_lengths[1]": beside a plan, another element may be the first that is wrong.
std::string Field(const std::string& text) {
  return text.find("lengths[") == std::string::npos ? text : text.substr(0, text.find('['));
}

TEST(ValidateTest, TheUnbrokenProblemIsAccepted) {
  std::vector<RandomProblem> problems = {RandomProblem(Everything(), 1), RandomProblem(Plain(), 1)};
  for (const Suite& suite : Suites()) problems.push_back(suite.make());
  for (RandomProblem& p : problems) {
    test::ExpectMatchesReference(p);
    Planned planned(p);
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_TRUE(run.ok()) << run.message();
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_TRUE(bind.ok()) << bind.message();
    const Status update = planned.plan.Update(p.problem);
    EXPECT_TRUE(update.ok()) << update.message();
  }
}

TEST(ValidateTest, AttentionRefusesEveryBrokenProblem) {
  for (const Suite& suite : Suites()) {
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      for (int how = 0; how < 2; ++how) {
        const Status status =
            how == 0 ? Attention(p.problem) : Attention(p.problem, PlanOptions(), SerialExecutor());
        EXPECT_EQ(status.code(), rule.code) << status.message();
        EXPECT_TRUE(Says(status, rule.message));
        EXPECT_TRUE(p.OutputsUntouched());
      }
    }
  }
}

TEST(ValidateTest, CreateRefusesEveryBrokenProblemAndKeepsThePlan) {
  for (const Suite& suite : Suites()) {
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      Plan plan;
      const Status status = Plan::Create(p.problem, PlanOptions(), &plan);
      if (rule.seen == Seen::kByRuns) {  // a plan is made without looking at this data
        EXPECT_TRUE(status.ok()) << status.message();
        continue;
      }
      EXPECT_EQ(status.code(), rule.code) << status.message();
      EXPECT_TRUE(Says(status, rule.message));
      EXPECT_FALSE(plan.valid());

      RandomProblem good(Plain(), 1);
      Planned planned(good);
      const size_t bytes = planned.plan.WorkspaceBytes(3);
      EXPECT_FALSE(Plan::Create(p.problem, PlanOptions(), &planned.plan).ok());
      EXPECT_EQ(planned.plan.WorkspaceBytes(3), bytes);
      EXPECT_TRUE(fovea::Run(planned.plan, good.problem, planned.workspace).ok());
    }
  }
}

TEST(ValidateTest, UpdateRefusesEveryBrokenProblemAndKeepsThePlan) {
  for (const Suite& suite : Suites()) {
    RandomProblem good = suite.make();
    const auto expected = reference::Forward(good.problem);
    Planned planned(good);
    for (const Rule& rule : suite.rules) {
      if (rule.seen == Seen::kByRuns) continue;
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      const Status status = planned.plan.Update(p.problem);
      EXPECT_TRUE(status.code() == rule.code || status.code() == StatusCode::kInvalidArgument)
          << status.message();
      EXPECT_TRUE(Says(status, {Field(rule.message.front()).c_str()}));
      good.ResetOutputs();
      ASSERT_TRUE(fovea::Run(planned.plan, good.problem, planned.workspace).ok());
      ASSERT_TRUE(test::Matches(good.problem, expected));
    }
  }
}

TEST(ValidateTest, RunAndBindRefuseEveryBrokenProblem) {
  for (const Suite& suite : Suites()) {
    RandomProblem good = suite.make();
    Planned planned(good);
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
      EXPECT_TRUE(run.code() == rule.code || run.code() == StatusCode::kInvalidArgument)
          << run.message();
      EXPECT_TRUE(Says(run, {Field(rule.message.front()).c_str()}));
      BoundCall call;
      const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
      EXPECT_EQ(bind.code(), run.code());
      EXPECT_STREQ(bind.message(), run.message());
      EXPECT_EQ(call.Phases(), 0) << "an error changed the call";
      EXPECT_TRUE(p.OutputsUntouched());
    }
  }
}

// ---- legal things beside the errors ----

TEST(ValidateTest, QueriesWithoutHeadsAreAnError) {
  RandomProblem p(Plain(), 1);
  for (int64_t* shape : {p.problem.q.shape, p.problem.k.shape, p.problem.v.shape,
                         p.problem.out.shape, p.problem.lse.shape})
    shape[1] = 0;
  const Status status = Attention(p.problem);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_TRUE(Says(status, {"shape[1]", "0"}));
  EXPECT_TRUE(p.OutputsUntouched());
}

TEST(ValidateTest, StridesOfAxesWithOneElementAreNotLookedAt) {
  ProblemSpec s = Plain();
  s.B = s.Hq = s.Hkv = 1;
  RandomProblem p(s, test::BaseSeed());
  for (TensorView* view : {&p.problem.q, &p.problem.k, &p.problem.v})
    view->stride[0] = kMost, view->stride[1] = kLeast;
  p.problem.out.stride[0] = kLeast;
  test::ExpectMatchesReference(p);
}

TEST(ValidateTest, NullDataOfEmptyTensorsIsLegal) {
  ProblemSpec s = Everything();
  s.Tk = 0;
  RandomProblem p(s, 1);
  p.problem.weights.data = p.problem.scores.data = nullptr;
  for (TensorView* view : {&p.problem.k, &p.problem.v, &p.problem.score.mask, &p.problem.score.bias,
                           &p.problem.score.block_map.visible}) {
    view->data = nullptr;
  }
  const Status status = Attention(p.problem);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ValidateTest, NoHeadsWithoutQueriesAreLegalWithAnythingThatIsEmptyThen) {
  ProblemSpec s = Everything();
  s.Tq = 0, s.Tk = 200;
  for (Axes axes : {Axes::kBHQK, Axes::kK}) {
    for (bool fixed : {false, true}) {
      s.mask = axes;
      RandomProblem p(s, 1);
      p.problem.score.alibi_slopes.shape[0] = p.problem.score.sinks.shape[0] = 0;
      for (int64_t* shape : {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape,
                             p.problem.weights.shape, p.problem.scores.shape,
                             p.problem.score.bias.shape, p.problem.score.block_map.visible.shape}) {
        shape[1] = 0;
      }
      if (axes == Axes::kBHQK) p.problem.score.mask.shape[1] = 0;
      PlanOptions options;
      options.fixed_mask = fixed;
      const Status status = Attention(p.problem, options, SerialExecutor());
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(ValidateTest, ParentsOfPaddingAreNotLookedAtByTheResult) {
  // Rows behind q_lengths have no tree: whatever a legal parent there is, nothing changes.
  ProblemSpec s = Plain();
  s.q_lengths = DType::kI32, s.parents = DType::kI32, s.causal = Causal::kBottomRight;
  RandomProblem p(s, 1), other(s, 1);
  p.q_lengths.Set(0, 3), p.q_lengths.Set(1, 0);
  other.q_lengths = p.q_lengths;
  for (auto [b, i] : {std::pair<int64_t, int64_t>{0, 3}, {0, 4}, {1, 1}})
    other.parents.SetAt({b, i}, static_cast<double>(i - 1));
  other.Refresh();
  ASSERT_TRUE(Attention(p.problem).ok());
  ASSERT_TRUE(Attention(other.problem).ok());
  EXPECT_EQ(p.out.Bytes(), other.out.Bytes());
}

TEST(ValidateTest, LengthsMayHaveAnyStride) {
  ProblemSpec s = Plain();
  s.kv_lengths = DType::kI64, s.q_lengths = DType::kI32;
  RandomProblem p(s, test::BaseSeed());
  p.kv_lengths = p.kv_lengths.CopiedTo({test::Layout::kReversed});
  p.q_lengths = p.q_lengths.CopiedTo({test::Layout::kSparse});
  p.Refresh();
  test::ExpectMatchesReference(p);
}

}  // namespace
}  // namespace fovea
