// Run does not check again what it has checked while planning: it must never take what Create would
// refuse, or plan otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "api/broken_problem.h"
#include "fovea/attention.h"
#include "support/problem_spec.h"
#include "support/random_problem.h"
#include "tensors.h"

namespace fovea {
namespace {

using test::Planned;
using test::ProblemSpec;
using test::RandomProblem;

// The words of a problem that may be overwritten by any number: not addresses, no steps, types and
// counts that would have Create read past what is there, and no booleans, which may hold nothing
// but 0 and 1.
std::vector<size_t> WordsOf(const Problem& problem) {
  std::vector<bool> skipped(sizeof(Problem) / sizeof(uint32_t));
  const auto skip = [&](const auto& member) {
    const size_t first = static_cast<size_t>(reinterpret_cast<const char*>(&member) -
                                             reinterpret_cast<const char*>(&problem));
    for (size_t n = first / 4; n < (first + sizeof(member) + 3) / 4; ++n) skipped[n] = true;
  };
  ForEachTensor(
      [&](const TensorRow& row, const auto& view) {
        skip(view.data);
        if (row.types.set != kIntegers.set) return;
        skip(view.stride);
        skip(view.dtype);
        if (row.shape.axes[0] == Axis::kAny) skip(view.shape);
      },
      problem);
  skip(problem.ring);
  skip(problem.score.scale);
  skip(problem.score.query_offset);
  std::vector<size_t> words;
  for (size_t n = 0; n < skipped.size(); ++n) {
    if (!skipped[n]) words.push_back(n);
  }
  return words;
}

// Bind refuses what Create refuses; what it takes Create plans in the same way.
void ExpectKnown(const Planned& planned, const Problem& problem) {
  Plan own;
  BoundCall call;
  const Status created = Plan::Create(problem, {}, &own);
  const Status bound = Bind(planned.plan, problem, planned.workspace, 1, &call);
  if (!created.ok()) {
    EXPECT_FALSE(bound.ok()) << created.message();
  } else if (bound.ok()) {
    EXPECT_EQ(own.ToString(), planned.plan.ToString());
  }
}

TEST(RepeatedProblemTest, AnyWordMayDiffer) {
  for (const ProblemSpec& spec : test::VariedSpecs()) {
    RandomProblem p(spec, 1);
    Planned planned(p);
    BoundCall call;
    ASSERT_TRUE(Bind(planned.plan, p.problem, planned.workspace, 1, &call).ok());
    for (size_t word : WordsOf(p.problem)) {
      for (uint32_t value :
           {0u, 1u, 2u, 3u, 7u, 0xffffffffu, 0x80000000u, 0x7f800000u, 0x7fc00000u, 0x40000000u}) {
        Problem changed = p.problem;
        std::memcpy(reinterpret_cast<char*>(&changed) + word * sizeof(value), &value,
                    sizeof(value));
        SCOPED_TRACE("word " + std::to_string(word) + " = " + std::to_string(value) + " of " +
                     ToString(spec));
        ExpectKnown(planned, changed);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(RepeatedProblemTest, NumbersThatAreOptionalMayDiffer) {
  RandomProblem p(test::Plain(), 1);
  Planned planned(p);
  for (float scale : {0.0f, -1.0f, HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    Problem changed = p.problem;
    changed.score.scale = scale;
    ExpectKnown(planned, changed);
  }
  for (int64_t offset : {int64_t{0}, int64_t{1}, INT64_MAX, INT64_MIN}) {
    Problem changed = p.problem;
    changed.score.query_offset = offset;
    ExpectKnown(planned, changed);
  }
  Problem changed = p.problem;
  changed.ring = !changed.ring;
  ExpectKnown(planned, changed);
}

// Lengths that an update has read are those that the next run must have.
TEST(RepeatedProblemTest, AnUpdateIsWhatIsRepeated) {
  RandomProblem p(test::Plain(), 1);
  Planned planned(p);
  std::vector<int64_t> lengths(static_cast<size_t>(p.spec.B), 1);
  Problem shorter = p.problem;
  shorter.score.kv_lengths = View(lengths.data(), {p.spec.B});
  ASSERT_TRUE(planned.plan.Update(shorter).ok());
  BoundCall call;
  EXPECT_TRUE(Bind(planned.plan, shorter, planned.workspace, 1, &call).ok());
  EXPECT_FALSE(Bind(planned.plan, p.problem, planned.workspace, 1, &call).ok());
  ASSERT_TRUE(planned.plan.Update(p.problem).ok());
  EXPECT_TRUE(Bind(planned.plan, p.problem, planned.workspace, 1, &call).ok());
  EXPECT_FALSE(Bind(planned.plan, shorter, planned.workspace, 1, &call).ok());
}

}  // namespace
}  // namespace fovea
