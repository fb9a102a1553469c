// Score: the defaults of a problem that sets nothing, since callers add fields one by one.
#include "fovea/score.h"

#include <gtest/gtest.h>

#include "fovea/attention.h"

namespace fovea {
namespace {

TEST(ScoreTest, DefaultsModifyNothingAndRemoveNothing) {
  const Score score;
  EXPECT_FALSE(score.scale.has_value());
  EXPECT_EQ(score.softcap, 0.0f);
  EXPECT_EQ(score.causal, Causal::kNone);
  EXPECT_EQ(score.window.left, -1);
  EXPECT_EQ(score.window.right, -1);
  EXPECT_FALSE(score.query_offset.has_value());
  for (const TensorView* view :
       {&score.alibi_slopes, &score.bias, &score.mask, &score.block_map.visible, &score.parents,
        &score.query_offsets, &score.q_lengths, &score.kv_lengths, &score.sinks, &score.head_scales,
        &score.bias_scales, &score.key_ranges}) {
    EXPECT_FALSE(view->present());
  }
  EXPECT_FALSE(score.function.present());
}

TEST(ScoreTest, DefaultsOfAProblemAreNeitherPackedNorGiveScores) {
  const Problem problem;
  EXPECT_FALSE(problem.cu_seqlens_q.present());
  EXPECT_FALSE(problem.cu_seqlens_k.present());
  EXPECT_FALSE(problem.scores.present());
  EXPECT_FALSE(PlanOptions().fixed_mask);
}

}  // namespace
}  // namespace fovea
