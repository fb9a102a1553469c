// The reference on packed batches: each sequence is the sequence alone.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "spec/example.h"

namespace fovea::reference {
namespace {

// The problem of sequence b alone: its rows, and of what has Tq or Tk its part.
Problem Alone(const Problem& packed, const Sequence& sequence, int64_t b) {
  Problem alone = packed;
  const auto cut = [](TensorView view, int axis, int64_t first, int64_t count) {
    if (!view.present() || view.shape[axis] == 1) return view;
    view.data = static_cast<const char*>(view.data) + first * view.stride[axis];
    view.shape[axis] = count;
    return view;
  };
  alone.cu_seqlens_q = alone.cu_seqlens_k = TensorView();
  alone.q = cut(cut(packed.q, 0, sequence.queries.batch, 1), 2, sequence.queries.first,
                sequence.queries.count);
  for (TensorView Problem::* kv : {&Problem::k, &Problem::v}) {
    alone.*kv = cut(cut(packed.*kv, 0, sequence.keys.batch, 1), 2, sequence.keys.first,
                    sequence.keys.count);
  }
  Score& score = alone.score;
  score.bias =
      cut(cut(cut(score.bias, 0, b, 1), 2, 0, sequence.queries.count), 3, 0, sequence.keys.count);
  for (TensorView* lengths : {&score.q_lengths, &score.kv_lengths, &score.query_offsets})
    *lengths = cut(*lengths, 0, b, 1);
  score.parents = cut(cut(score.parents, 0, b, 1), 1, 0, sequence.queries.count);
  return alone;
}

TEST(Packed, EachSequenceIsTheSequenceAlone) {
  for (bool packed_keys : {true, false}) {
    Packed p(packed_keys);
    const Sizes n = SizesOf(p.e.problem);
    ASSERT_EQ(n.B, 3);
    ASSERT_EQ(n.Tq, 3);
    ASSERT_EQ(n.Tk, 4);
    const ForwardResult r = Forward(p.e.problem);
    ASSERT_EQ(r.out.size(), 2u * 7 * 3);
    ASSERT_EQ(r.lse.size(), 2u * 7);
    ASSERT_EQ(r.weights.size(), 3u * 2 * 3 * 4);
    for (int64_t h = 0; h < 2; ++h) {
      for (const int64_t spare : {0, 6})
        EXPECT_TRUE(std::isnan(r.lse[h * 7 + spare]) && std::isnan(r.out[(h * 7 + spare) * 3]));
    }
    for (int64_t b = 0; b < 3; ++b) {
      const Sequence sequence = SequenceOf(p.e.problem, b);
      const Problem problem = Alone(p.e.problem, sequence, b);
      const ForwardResult alone = Forward(problem);
      const StageResult scaled = ScoresAt(p.e.problem, ScoreStage::kScaled),
                        scaled_alone = ScoresAt(problem, ScoreStage::kScaled);
      const int64_t Tq = sequence.queries.count, Tk = sequence.keys.count;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 3; ++i) {
          for (int64_t j = 0; j < 4; ++j) {
            const size_t pair = ((b * 2 + h) * 3 + i) * 4 + j, own = (h * Tq + i) * Tk + j;
            const bool exists = i < Tq && j < Tk;
            ASSERT_EQ(r.weights[pair], exists ? alone.weights[own] : 0) << b << h << i << j;
            ASSERT_EQ(r.scores[pair], exists ? alone.scores[own] : -kInf) << b << h << i << j;
            ASSERT_EQ(scaled.scores[pair], exists ? scaled_alone.scores[own] : -kInf)
                << b << h << i << j;
          }
          if (i >= Tq) continue;
          const int64_t row = h * 7 + p.cu_q[b] + i;
          ASSERT_EQ(r.lse[row], alone.lse[h * Tq + i]);
          for (int64_t c = 0; c < 3; ++c)
            ASSERT_EQ(r.out[row * 3 + c], alone.out[(h * Tq + i) * 3 + c]);
        }
      }
    }
    // the third query of the third sequence is behind its length: padding, which is written
    EXPECT_EQ(r.lse[5], -kInf);
    EXPECT_EQ(r.out[5 * 3], 0);
  }
}

TEST(Packed, NothingOutsideOfTheSequencesIsRead) {
  Packed clean(true), dirty(true);
  for (int64_t h = 0; h < 2; ++h) {
    for (const int64_t spare : {0, 6}) dirty.e.q[(h * 7 + spare) * 2] = kNan;
  }
  dirty.e.k[6 * 2] = dirty.e.v[6 * 3] = kNan;
  const ForwardResult a = Forward(clean.e.problem), b = Forward(dirty.e.problem);
  EXPECT_EQ(a.weights, b.weights);
  for (size_t n = 0; n < a.out.size(); ++n)
    EXPECT_TRUE(a.out[n] == b.out[n] || (std::isnan(a.out[n]) && std::isnan(b.out[n])));
}

}  // namespace
}  // namespace fovea::reference
