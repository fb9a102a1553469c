#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.h"

namespace fovea::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// std::max drops a NaN on one side; a NaN score must reach its row.
double MaxKeepingNan(double a, double b) { return std::isnan(b) || b > a ? b : a; }

// A score as it is summed up, with the largest magnitude passed on the way. Rounding of float32 is relative to that, not to the result.
struct Sum {
  double value = 0;
  double largest = 0;    // over any order of the summation
  double magnitude = 0;  // Σ|terms|

  void Add(double term) {
    value += term;
    magnitude += std::abs(term);
    largest = std::max({largest, std::abs(term), std::abs(value)});
  }
};

// Step 1: s = scale · (q_i · k_j), the scale inside, so that only the scaled product can overflow.
Sum ScaledProduct(const Problem& problem, double scale, int64_t b, int64_t h, int64_t i, int64_t hkv, int64_t j) {
  Sum s;
  double positive = 0, negative = 0;
  for (int64_t c = 0; c < problem.q.shape[3]; ++c) {
    const double term = scale * At(problem.q, b, h, i, c) * At(problem.k, b, hkv, j, c);
    s.value += term;
    (term > 0 ? positive : negative) += term;
  }
  s.largest = std::max(positive, -negative);  // no partial sum exceeds this, whatever the order
  s.magnitude = positive - negative;
  return s;
}

// Steps 1 to 4 for a visible pair.
Sum Score(const Problem& problem, const Sequence& sequence, int64_t b, int64_t h, int64_t i, int64_t hkv, int64_t j, double* scaled) {
  const fovea::Score& score = problem.score;
  const double scale = score.scale ? *score.scale : 1 / std::sqrt(static_cast<double>(problem.q.shape[3]));
  Sum s = ScaledProduct(problem, scale, b, h, i, hkv, j);
  *scaled = s.value;
  if (score.softcap > 0) s.value = score.softcap * std::tanh(s.value / score.softcap);
  if (score.alibi_slopes.present()) {
    const double distance = std::abs(static_cast<double>(i + sequence.offset - j));
    s.Add(-At(score.alibi_slopes, h) * distance);
  }
  if (score.bias.present()) s.Add(BroadcastAt(score.bias, b, h, i, j));
  return s;
}

// Error of a float32 score that passed through `largest`.
double ScoreError(double largest) { return 8 * std::ldexp(1.0, -24) * largest; }

}  // namespace

Sizes SizesOf(const Problem& problem) {
  Sizes n;
  n.B = problem.q.shape[0];
  n.Hq = problem.q.shape[1];
  n.Tq = problem.q.shape[2];
  n.dk = problem.q.shape[3];
  n.Hkv = problem.k.shape[1];
  n.Tk = problem.k.shape[2];
  n.dv = problem.v.shape[3];
  return n;
}

Sequence SequenceOf(const Problem& problem, int64_t b) {
  const fovea::Score& score = problem.score;
  Sequence sequence;
  sequence.q_length = score.q_lengths.present() ? IntegerAt(score.q_lengths, b) : problem.q.shape[2];
  sequence.kv_length = score.kv_lengths.present() ? IntegerAt(score.kv_lengths, b) : problem.k.shape[2];
  if (score.query_offset) {
    sequence.offset = *score.query_offset;
  } else if (score.query_offsets.present()) {
    sequence.offset = IntegerAt(score.query_offsets, b);
  } else if (score.causal == Causal::kBottomRight) {
    sequence.offset = sequence.kv_length - sequence.q_length;
  }
  return sequence;
}

// Step 5, and the −inf of step 4. The lengths come first: nothing behind them is read.
bool Visible(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j) {
  const fovea::Score& score = problem.score;
  const Sequence sequence = SequenceOf(problem, b);
  const int64_t position = i + sequence.offset;
  if (i >= sequence.q_length || j >= sequence.kv_length) return false;
  if (score.causal != Causal::kNone && j > position) return false;
  if (score.window.left >= 0 && j - position < -score.window.left) return false;
  if (score.window.right >= 0 && j - position > score.window.right) return false;
  if (score.mask.present() && BroadcastAt(score.mask, b, h, i, j) == 0) return false;
  if (score.bias.present() && BroadcastAt(score.bias, b, h, i, j) == -kInfinity) return false;
  return true;
}

Row ForwardRow(const Problem& problem, int64_t b, int64_t h, int64_t i) {
  const Sizes n = SizesOf(problem);
  const Sequence sequence = SequenceOf(problem, b);
  const int64_t hkv = h / (n.Hq / n.Hkv);
  Row row;
  row.visible.assign(n.Tk, false);
  row.scaled.assign(n.Tk, -kInfinity);
  row.scores.assign(n.Tk, -kInfinity);
  row.weights.assign(n.Tk, 0);
  row.out.assign(n.dv, 0);
  row.lse = -kInfinity;
  if (i >= sequence.q_length) return row;  // padding: out = 0, lse = −inf, even with a sink

  // 1.–5. the scores of the visible pairs
  std::vector<double> largest(n.Tk, 0);  // of each visible score
  for (int64_t j = 0; j < n.Tk; ++j) {
    row.visible[j] = Visible(problem, b, h, i, j);
    if (!row.visible[j]) continue;
    const Sum s = Score(problem, sequence, b, h, i, hkv, j, &row.scaled[j]);
    row.scores[j] = s.value;
    largest[j] = s.largest;
    if (std::isfinite(s.magnitude) && std::isinf(static_cast<float>(s.magnitude))) row.overflows_float = true;
  }

  // 6. p = exp(s − m) / (Σ exp(s − m) + exp(σ − m)), m the largest of them all
  const double sink = problem.score.sinks.present() ? At(problem.score.sinks, h) : -kInfinity;
  double m = sink;
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (row.visible[j]) m = MaxKeepingNan(m, row.scores[j]);
  }
  if (m == -kInfinity) m = 0;  // nothing but −inf, or nothing at all: every term below is exp(−inf) = 0
  double sum = std::exp(sink - m);
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (row.visible[j]) sum += std::exp(row.scores[j] - m);
  }
  const double divisor = sum == 0 ? 1 : sum;  // an empty row has weights of 0, not 0/0
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (row.visible[j]) row.weights[j] = std::exp(row.scores[j] - m) / divisor;
  }
  row.sink_weight = std::exp(sink - m) / divisor;

  // 7. out = Σ p_j·v_j, lse = ln(Σ exp(s) + exp(σ))
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (!row.visible[j]) continue;  // not 0·v: v may be NaN there
    for (int64_t c = 0; c < n.dv; ++c) row.out[c] += row.weights[j] * At(problem.v, b, hkv, j, c);
  }
  row.lse = m + std::log(sum);

  for (int64_t j = 0; j < n.Tk; ++j) {
    if (!row.visible[j]) continue;
    for (int64_t c = 0; c < n.dv; ++c) row.max_abs_value = std::max(row.max_abs_value, std::abs(At(problem.v, b, hkv, j, c)));
    // A pair matters if its weight could differ from 0 within its error: one pushed away by a lowest() bias does not.
    const double kUnderflow = 745;  // exp(−745.2) is 0 in double
    if (row.scores[j] + ScoreError(largest[j]) > m - kUnderflow) row.max_partial_score = std::max(row.max_partial_score, largest[j]);
  }
  return row;
}

double RelativeTolerance(const Row& row) {
  if (row.overflows_float) return kInfinity;
  return std::max(1e-5, ScoreError(row.max_partial_score));
}

ForwardResult Forward(const Problem& problem) {
  const Sizes n = SizesOf(problem);
  ForwardResult result;
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        const Row row = ForwardRow(problem, b, h, i);
        result.out.insert(result.out.end(), row.out.begin(), row.out.end());
        result.lse.push_back(row.lse);
        result.weights.insert(result.weights.end(), row.weights.begin(), row.weights.end());
        result.scores.insert(result.scores.end(), row.scores.begin(), row.scores.end());
        result.visible.insert(result.visible.end(), row.visible.begin(), row.visible.end());
        result.relative_tolerance.push_back(RelativeTolerance(row));
        result.max_abs_value.push_back(row.max_abs_value);
      }
    }
  }
  return result;
}

MergeResult Merge(const PartialState* parts, int64_t count) {
  const TensorView& shape = parts[0].out;
  MergeResult result;
  for (int64_t b = 0; b < shape.shape[0]; ++b) {
    for (int64_t h = 0; h < shape.shape[1]; ++h) {
      for (int64_t i = 0; i < shape.shape[2]; ++i) {
        // m = max lse_n
        double m = -kInfinity;
        for (int64_t n = 0; n < count; ++n) m = MaxKeepingNan(m, At(parts[n].lse, b, h, i));
        if (m == -kInfinity) m = 0;  // all parts empty: every weight is 0
        // w_n = exp(lse_n − m), out = Σ w_n·out_n / Σ w_n, lse = m + ln Σ w_n
        double sum = 0;
        std::vector<double> out(shape.shape[3], 0);
        for (int64_t n = 0; n < count; ++n) {
          const double lse = At(parts[n].lse, b, h, i);
          if (lse == -kInfinity) continue;  // the identity: its out is not read
          const double w = std::exp(lse - m);
          sum += w;
          for (int64_t c = 0; c < shape.shape[3]; ++c) out[c] += w * At(parts[n].out, b, h, i, c);
        }
        for (double& x : out) x /= sum == 0 ? 1 : sum;
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.lse.push_back(m + std::log(sum));
      }
    }
  }
  return result;
}

}  // namespace fovea::reference
