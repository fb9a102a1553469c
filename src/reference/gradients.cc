// The chain rule through the steps of reference.cc, backwards (the forward pass and its numbering
// are there).
#include <cassert>
#include <cmath>
#include <cstring>

#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::reference {
namespace {

// Where the gradients of one query row go.
struct QueryRow {
  int64_t b, h, i, hkv;
};

// Adds the part of row (b, h, i) to every gradient.
void AddRow(const Problem& problem, const TensorView& dout, const TensorView& dlse, const Sizes& n,
            const QueryRow& at, GradientResult* g) {
  const auto [b, h, i, hkv] = at;
  const fovea::Score& score = problem.score;
  const double scale = ScaleOf(problem) * HeadFactor(score.head_scales, h);
  const Row row = ForwardRow(problem, b, h, i);
  const Sequence sequence = SequenceOf(problem, b);
  const Rows& queries = sequence.queries;
  const int64_t qt = queries.first + i;  // where the row lies
  const int64_t query = (queries.batch * n.Hq + h) * problem.q.shape[2] + qt;

  // out = Σ p_j·v_j:  dp_j = dout·v_j, and through the softmax  ds_j = p_j·(dp_j − Σ_k p_k·dp_k),
  // where Σ_k p_k·dp_k = dout·out; and lse adds p_j·dlse. An out of 0 counts nothing whatever dout
  // is: that of a row that sees nothing.
  double delta = 0;
  for (int64_t c = 0; c < n.dv; ++c) {
    if (row.out[c] != 0) delta += At(dout, queries.batch, h, qt, c) * row.out[c];
  }
  if (dlse.present()) {
    float d;
    std::memcpy(&d,
                static_cast<const char*>(dlse.data) + queries.batch * dlse.stride[0] +
                    h * dlse.stride[1] + qt * dlse.stride[2],
                sizeof(d));
    delta -= static_cast<double>(d);
  }

  for (int64_t j = 0; j < n.Tk; ++j) {
    if (!row.visible[j]) continue;
    const auto [kb, kt] = PlaceOf(problem, sequence, b, j);
    const int64_t key = (kb * n.Hkv + hkv) * problem.k.shape[2] + kt;
    const double p = row.weights[j];

    double dp = 0;
    for (int64_t c = 0; c < n.dv; ++c) {
      const double d = At(dout, queries.batch, h, qt, c);
      dp += d * At(problem.v, kb, hkv, kt, c);
      g->dv[key * n.dv + c] += p * d;
    }
    const double ds = p * (dp - delta);

    // s = … + bias_scale·bias: the gradient passes as it is, also through ALiBi
    g->dbias[((b * n.Hq + h) * n.Tq + i) * n.Tk + j] = HeadFactor(score.bias_scales, h) * ds;

    // s = c·tanh(x / c):  dx = ds·(1 − tanh²(x / c))
    double dx = ds;
    if (score.softcap > 0) {
      const double t = std::tanh(row.scaled[j] / score.softcap);
      dx *= 1 - t * t;
    }

    // x = scale·head_scale·(q·k)
    for (int64_t c = 0; c < n.dk; ++c) {
      const double qc = At(problem.q, queries.batch, h, qt, c);
      const double kc = At(problem.k, kb, hkv, kt, c);
      g->dq[query * n.dk + c] += dx * scale * kc;
      g->dk[key * n.dk + c] += dx * scale * qc;
      g->dhead_scales[h] += dx * ScaleOf(problem) * qc * kc;
    }
  }

  // The sink is a key without a value: dp = 0
  if (score.sinks.present()) g->dsinks[h] -= row.sink_weight * delta;
}

}  // namespace

GradientResult Gradients(const Problem& problem, const TensorView& dout, const TensorView& dlse) {
  assert(!problem.score.function.present());
  const Sizes n = SizesOf(problem);
  GradientResult g;
  g.dq.assign(problem.q.size(), 0);
  g.dk.assign(problem.k.size(), 0);
  g.dv.assign(problem.v.size(), 0);
  g.dbias.assign(n.B * n.Hq * n.Tq * n.Tk, 0);
  g.dsinks.assign(n.Hq, 0);
  g.dhead_scales.assign(n.Hq, 0);
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        if (i >= SequenceOf(problem, b).q_length) continue;  // padding: its dout is not read
        AddRow(problem, dout, dlse, n, {b, h, i, h / (n.Hq / n.Hkv)}, &g);
      }
    }
  }
  return g;
}

}  // namespace fovea::reference
