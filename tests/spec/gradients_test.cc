// The gradients of the reference, against finite differences.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "spec/example.h"

namespace fovea::reference {
namespace {

// Σ out·dout
double Loss(const Problem& problem, const std::vector<float>& dout) {
  const std::vector<double> out = Forward(problem).out;
  double loss = 0;
  for (size_t n = 0; n < out.size(); ++n) {
    if (dout[n] != 0) loss += out[n] * dout[n];  // rows outside of every packed sequence are NaN
  }
  return loss;
}

// The derivative of Loss by every element of `x`, which the problem looks at: five-point central
// differences, exact up to h⁴·f⁽⁵⁾/30.
std::vector<double> Differences(const Problem& problem, const std::vector<float>& dout,
                                std::vector<float>* x) {
  constexpr float h = 1.0f / 256;
  std::vector<double> derivatives;
  for (float& element : *x) {
    const float saved = element;
    const auto loss_at = [&](float step) {
      element = saved + step;
      return Loss(problem, dout);
    };
    const double d = 8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h));
    derivatives.push_back(std::isinf(saved) ? 0 : d / (12 * static_cast<double>(h)));
    element = saved;
  }
  return derivatives;
}
// h⁴/30 = 8e-12 times fifth derivatives of softmax over scores that change by up to 4 per unit:
// below 4⁵ · 24 · Σ|dout·v|
constexpr double kDifferenceError = 1e-6;

void ExpectGradientsMatchDifferences(Example* e) {
  const std::vector<float> dout = Numbers(99).Take(e->n.B * e->n.Hq * e->n.Tq * e->n.dv);
  const GradientResult g =
      Gradients(e->problem, Input(dout.data(), {e->n.B, e->n.Hq, e->n.Tq, e->n.dv}));
  ExpectAllNear(g.dq, Differences(e->problem, dout, &e->q), kDifferenceError);
  ExpectAllNear(g.dk, Differences(e->problem, dout, &e->k), kDifferenceError);
  ExpectAllNear(g.dv, Differences(e->problem, dout, &e->v), kDifferenceError);
}

TEST(Gradients, PlainMatchesDifferences) {
  Example e(MakeSizes(1, 1, 1, 3, 4, 3, 2));
  ExpectGradientsMatchDifferences(&e);
}

TEST(Gradients, MaskedWindowedNegativeScaleMatchesDifferences) {
  Example e(MakeSizes(2, 3, 1, 4, 5, 2, 3), 7);
  const bool mask[] = {true, true, false, true, false};
  const int64_t offsets[] = {1, -2};
  e.problem.score.scale = -0.75f;
  e.problem.score.mask = View(mask, {5});
  e.problem.score.window = {1, 2};  // with these offsets some rows are empty
  e.problem.score.query_offsets = View(offsets, {2});
  ExpectGradientsMatchDifferences(&e);
}

TEST(Gradients, EverythingTogetherMatchesDifferences) {
  const Sizes n = MakeSizes(2, 4, 2, 3, 5, 3, 2);
  Example e(n, 11);
  Numbers numbers(5);
  std::vector<float> bias = numbers.Take(n.B * n.Hq * n.Tq * n.Tk), sinks = numbers.Take(n.Hq);
  bias[3] = bias[17] = bias[40] = -kInf;
  const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f};
  const int32_t q_lengths[] = {2, 3}, kv_lengths[] = {5, 4};
  Score& score = e.problem.score;
  std::vector<float> head_scales = {0.5f, -1.5f, 0, 2};
  const float bias_scales[] = {2, -0.5f, 1, 0};
  const int32_t ranges[] = {0, 4, 1, 9, -2, 3};
  score.head_scales = Input(head_scales.data(), {n.Hq});
  score.bias_scales = View(bias_scales, {n.Hq});
  score.key_ranges = View(ranges, {1, n.Tq, 2});
  score.softcap = 1.5f;
  score.causal = Causal::kBottomRight;
  score.bias = Input(bias.data(), {n.B, n.Hq, n.Tq, n.Tk});
  score.sinks = Input(sinks.data(), {n.Hq});
  score.alibi_slopes = View(slopes, {n.Hq});
  score.q_lengths = View(q_lengths, {2});
  score.kv_lengths = View(kv_lengths, {2});
  ExpectGradientsMatchDifferences(&e);

  const std::vector<float> dout = Numbers(99).Take(n.B * n.Hq * n.Tq * n.dv);
  const GradientResult g = Gradients(e.problem, Input(dout.data(), {n.B, n.Hq, n.Tq, n.dv}));
  ExpectAllNear(g.dsinks, Differences(e.problem, dout, &sinks), kDifferenceError);
  ExpectAllNear(g.dbias, Differences(e.problem, dout, &bias), kDifferenceError);
  ExpectAllNear(g.dhead_scales, Differences(e.problem, dout, &head_scales), kDifferenceError);
}

TEST(Gradients, PackedWithATreeAndABlockMapMatchesDifferences) {
  Packed p(true);
  const bool map[] = {true, true, false, true};
  p.e.problem.score.block_map = {View(map, {2, 2}), 2, 3};
  // Differences take every element of q, k and v in turn: those outside of the sequences have a
  // gradient of 0.
  std::vector<float> dout = Numbers(99).Take(2 * 7 * 3);
  const GradientResult g = Gradients(p.e.problem, Input(dout.data(), {1, 2, 7, 3}));
  for (int64_t h = 0; h < 2; ++h) {
    for (const int64_t spare : {0, 6}) {
      EXPECT_EQ(g.dq[(h * 7 + spare) * 2], 0);
      for (int64_t c = 0; c < 3; ++c) dout[(h * 7 + spare) * 3 + c] = 0;
    }
  }
  ExpectAllNear(g.dq, Differences(p.e.problem, dout, &p.e.q), kDifferenceError);
  ExpectAllNear(g.dk, Differences(p.e.problem, dout, &p.e.k), kDifferenceError);
  ExpectAllNear(g.dv, Differences(p.e.problem, dout, &p.e.v), kDifferenceError);
  ExpectAllNear(g.dbias, Differences(p.e.problem, dout, &p.bias), kDifferenceError);
}

TEST(Gradients, RemovedPairsAndPaddingHaveNoPart) {
  const Sizes n = MakeSizes(1, 1, 1, 2, 3, 2, 2);
  Example clean(n), dirty(n);
  const int32_t one[] = {1}, two[] = {2};
  clean.problem.score.q_lengths = dirty.problem.score.q_lengths = View(one, {1});
  clean.problem.score.kv_lengths = dirty.problem.score.kv_lengths = View(two, {1});
  dirty.q[2] = dirty.k[4] = dirty.v[4] = kNan;  // query 1, key 2
  std::vector<float> dout = {1, 2, 3, 4};
  const TensorView dout_view = Input(dout.data(), {1, 1, 2, 2});
  const GradientResult want = Gradients(clean.problem, dout_view);
  dout[2] = kNan;
  const GradientResult got = Gradients(dirty.problem, dout_view);
  EXPECT_EQ(got.dq, want.dq);
  EXPECT_EQ(got.dk, want.dk);
  EXPECT_EQ(got.dv, want.dv);
  EXPECT_EQ(got.dbias, want.dbias);
  EXPECT_EQ(got.dk[4], 0);
}

}  // namespace
}  // namespace fovea::reference
