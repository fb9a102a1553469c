// The baseline of the benchmarks computes what the reference does: a baseline that is wrong proves
// nothing.
#include "reference/standard_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/reference.h"
#include "support/check.h"
#include "support/compare.h"
#include "support/manifest.h"
#include "support/thin.h"

namespace fovea::test {
namespace {

TEST(StandardAttention, MatchesTheReferenceOnCapturedProblems) {
  const std::string folder = std::string(FOVEA_TEST_DATA) + "/real";
  std::vector<float> scores;
  for (const std::string& name : Thinned(RealProblems(folder), 3)) {
    SCOPED_TRACE(name);
    Case c = LoadRealProblem(folder, name);
    const Outputs outputs(&c.problem, c.token_major, /*with_weights=*/false);
    ASSERT_TRUE(reference::StandardAttentionSupports(c.problem));
    reference::StandardAttention(c.problem, &scores);
    EXPECT_EQ(static_cast<int64_t>(scores.size() * sizeof(float)),
              reference::ScoreMatrixBytes(c.problem));
    EXPECT_TRUE(Matches(c.problem, reference::Forward(c.problem)));
  }
}

TEST(StandardAttention, RowsWithoutKeysAreEmpty) {
  const std::vector<float> q(4, 1), k(4, 1), v = {1, 2, 3, 4};
  const int32_t q_length[] = {3};
  Problem problem;
  problem.q = View(q.data(), {1, 1, 4, 1});
  problem.k = View(k.data(), {1, 1, 2, 1});
  problem.v = View(v.data(), {1, 1, 2, 2});
  problem.score.causal = Causal::kBottomRight;
  // offset −1: query 0 sees nothing, query 3 is padding
  problem.score.q_lengths = View(q_length, {1});
  const Outputs outputs(&problem, false, /*with_weights=*/false);
  std::vector<float> scores;
  reference::StandardAttention(problem, &scores);
  EXPECT_TRUE(Matches(problem, reference::Forward(problem)));
}

TEST(StandardAttention, RefusesWhatItDoesNotCompute) {
  const std::vector<float> x(16, 1);
  Problem problem;
  problem.q = problem.k = problem.v = View(x.data(), {1, 1, 4, 4});
  const Outputs outputs(&problem, false, /*with_weights=*/false);
  EXPECT_TRUE(reference::StandardAttentionSupports(problem));
  problem.score.softcap = 1;
  EXPECT_FALSE(reference::StandardAttentionSupports(problem));
  problem.score.softcap = 0;
  problem.score.head_scales = View(x.data(), {1});
  EXPECT_FALSE(reference::StandardAttentionSupports(problem));
  problem.score.head_scales = TensorView();
  problem.q = SwapAxes(problem.q, 2, 3);
  EXPECT_FALSE(reference::StandardAttentionSupports(problem));
}

}  // namespace
}  // namespace fovea::test
