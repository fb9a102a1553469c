// Score: the defaults of a problem that sets nothing, since callers add fields one by one.
#include "fovea/score.h"

#include <gtest/gtest.h>

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
       {&score.alibi_slopes, &score.bias, &score.mask, &score.query_offsets, &score.q_lengths, &score.kv_lengths, &score.sinks}) {
    EXPECT_FALSE(view->present());
  }
}

}  // namespace
}  // namespace fovea
