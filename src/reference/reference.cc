#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.h"

namespace fovea::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A score as it is summed up, with the largest magnitude passed on the way. Rounding of float32 is
// relative to that, not to the result.
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

// Step 1: s = scale · head_scale_h · (q_i · k_j), the scales inside, so that only the whole product
// can overflow.
Sum ScaledProduct(const Problem& problem, const Sequence& sequence, int64_t b, int64_t h, int64_t i,
                  int64_t hkv, int64_t j) {
  const double scale = ScaleOf(problem) * HeadFactor(problem.score.head_scales, h);
  const Rows& queries = sequence.queries;
  const Place key = PlaceOf(problem, sequence, b, j);
  Sum s;
  double positive = 0, negative = 0;
  for (int64_t c = 0; c < problem.q.shape[3]; ++c) {
    const double term = scale * At(problem.q, queries.batch, h, queries.first + i, c) *
                        KeyAt(problem, key.batch, hkv, key.row, c);
    s.value += term;
    (term > 0 ? positive : negative) += term;
  }
  s.largest = std::max(positive, -negative);  // no partial sum exceeds this, whatever the order
  s.magnitude = positive - negative;
  return s;
}

// The bias of step 4, −inf where it removes. No finite bias becomes infinite by its scale.
double ScaledBias(const fovea::Score& score, int64_t b, int64_t h, int64_t i, int64_t j) {
  const double kMost = static_cast<double>(std::numeric_limits<float>::max());
  const double bias = BroadcastAt(score.bias, b, h, i, j);
  if (bias == -kInfinity) return bias;
  const double scaled = HeadFactor(score.bias_scales, h) * bias;
  return std::isfinite(bias) ? std::clamp(scaled, -kMost, kMost) : scaled;
}

// What the caller's function makes of a score, which is a float to it: called on that one alone.
float Apply(const ScoreFunction& function, float score, int64_t b, int64_t h, int64_t position,
            int64_t offset, int64_t key_position) {
  ScoreBlock block = {};
  block.size = sizeof(block);
  block.scores = &score;
  block.rows = block.keys = block.row_stride = block.key_stride = 1;
  block.heads = &h;
  block.query_positions = &position;
  block.first_key_position = key_position;
  block.sequence = b;
  block.offset = offset;
  function.apply(function.context, &block);
  return score;
}

// A pair of a query and a resident key, step by step.
struct PairScore {
  Sum scaled;            // step 1
  Sum softcapped;        // steps 1 and 2
  Sum score;             // steps 1 to 4
  bool removed = false;  // by the function of step 4
};
PairScore Score(const Problem& problem, const Sequence& sequence, int64_t b, int64_t h, int64_t i,
                int64_t hkv, int64_t j) {
  const fovea::Score& score = problem.score;
  const int64_t position = sequence.position + j;
  PairScore pair;
  Sum s = pair.scaled = ScaledProduct(problem, sequence, b, h, i, hkv, j);
  if (score.softcap > 0) s.value = score.softcap * std::tanh(s.value / score.softcap);
  pair.softcapped = s;
  if (score.alibi_slopes.present()) {
    const double distance = std::abs(static_cast<double>(i + sequence.offset - position));
    s.Add(-At(score.alibi_slopes, h) * distance);
  }
  if (score.bias.present()) s.Add(ScaledBias(score, b, h, i, j));
  if (score.function.present()) {
    s.value = Apply(score.function, static_cast<float>(s.value), b, h, i + sequence.offset,
                    sequence.offset, position);
    s.largest = std::max(s.largest, std::abs(s.value));
    pair.removed = s.value == -kInfinity;
  }
  pair.score = pair.removed ? Sum{-kInfinity, 0, 0} : s;
  return pair;
}

// Whether node n of the tree of sequence b is query i or an ancestor of it.
bool IsOnPath(const TensorView& parents, int64_t b, int64_t i, int64_t n) {
  while (i > n) i = IntegerAt(parents, b, i);  // a parent's number is below its child's
  return i == n;
}

// The sum fits no float32, though its terms are finite: nothing is promised of it.
bool OverflowsFloat(const Sum& s) {
  return std::isfinite(s.magnitude) && std::isinf(static_cast<float>(s.magnitude));
}

// Error of a float32 score that passed through `largest`.
double ScoreError(double largest) { return 8 * std::ldexp(1.0, -24) * largest; }
double ScoreTolerance(const Sum& s) {
  return OverflowsFloat(s) ? kInfinity : std::max(1e-5, ScoreError(s.largest));
}

// The longest of the sequences whose rows begin at cu_seqlens[b] and end before cu_seqlens[b + 1].
int64_t Longest(const TensorView& cu_seqlens) {
  int64_t longest = 0;
  for (int64_t b = 0; b + 1 < cu_seqlens.shape[0]; ++b)
    longest = std::max(longest, IntegerAt(cu_seqlens, b + 1) - IntegerAt(cu_seqlens, b));
  return longest;
}

// Tk of pages.
int64_t KeysOf(const PageTable& pages, int64_t page) {
  if (pages.keys > 0) return pages.keys;
  return page * (pages.begins.present() ? Longest(pages.begins) : pages.table.shape[1]);
}

// The rows of sequence b in a tensor [B, H, T, d], or [1, H, rows of all sequences, d] with
// cu_seqlens.
Rows RowsOf(const TensorView& tensor, const TensorView& cu_seqlens, int64_t b) {
  if (!cu_seqlens.present()) return {b, 0, tensor.shape[2]};
  const int64_t first = IntegerAt(cu_seqlens, b);
  return {0, first, IntegerAt(cu_seqlens, b + 1) - first};
}

}  // namespace

double ScaleOf(const Problem& problem) {
  return problem.score.scale ? *problem.score.scale
                             : 1 / std::sqrt(static_cast<double>(problem.q.shape[3]));
}

double HeadFactor(const TensorView& factors, int64_t h) {
  return factors.present() ? At(factors, h) : 1;
}

Sizes SizesOf(const Problem& problem) {
  Sizes n;
  n.B = problem.cu_seqlens_q.present()   ? problem.cu_seqlens_q.shape[0] - 1
        : problem.cu_seqlens_k.present() ? problem.cu_seqlens_k.shape[0] - 1
                                         : problem.q.shape[0];
  n.Hq = problem.q.shape[1];
  n.Tq = problem.cu_seqlens_q.present() ? Longest(problem.cu_seqlens_q) : problem.q.shape[2];
  n.dk = problem.q.shape[3];
  n.Hkv = problem.k.shape[1];
  n.Tk = problem.cu_seqlens_k.present() ? Longest(problem.cu_seqlens_k)
         : problem.pages.present()      ? KeysOf(problem.pages, problem.k.shape[2])
                                        : problem.k.shape[2];
  n.dv = problem.v.shape[3];
  return n;
}

Sequence SequenceOf(const Problem& problem, int64_t b) {
  const fovea::Score& score = problem.score;
  Sequence sequence;
  sequence.queries = RowsOf(problem.q, problem.cu_seqlens_q, b);
  sequence.keys = RowsOf(problem.k, problem.cu_seqlens_k, b);
  if (problem.pages.present()) sequence.keys.count = SizesOf(problem).Tk;
  sequence.q_length =
      score.q_lengths.present() ? IntegerAt(score.q_lengths, b) : sequence.queries.count;
  sequence.kv_length =
      score.kv_lengths.present() ? IntegerAt(score.kv_lengths, b) : sequence.keys.count;
  if (score.key_offsets.present()) sequence.position = IntegerAt(score.key_offsets, b);
  if (problem.ring) {  // kv_length counts the keys so far
    const int64_t resident = std::min(sequence.keys.count, sequence.kv_length);
    sequence.position = sequence.kv_length - resident;
    sequence.kv_length = resident;
  }
  if (score.query_offset) {
    sequence.offset = *score.query_offset;
  } else if (score.query_offsets.present()) {
    sequence.offset = IntegerAt(score.query_offsets, b);
  } else if (score.causal == Causal::kBottomRight) {
    sequence.offset = sequence.position + sequence.kv_length - sequence.q_length;
  }
  return sequence;
}

Place PlaceOf(const Problem& problem, const Sequence& sequence, int64_t b, int64_t j) {
  const PageTable& pages = problem.pages;
  const int64_t rows = problem.k.shape[2];
  if (pages.begins.present())
    return {IntegerAt(pages.table, IntegerAt(pages.begins, b) + j / rows), j % rows};
  if (pages.present()) return {IntegerAt(pages.table, b, j / rows), j % rows};
  if (problem.ring) return {b, (sequence.position + j) % rows};
  return {sequence.keys.batch, sequence.keys.first + j};
}

// Step 5, and the −inf of step 4. The lengths come first: nothing behind them is read.
bool Visible(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j) {
  const fovea::Score& score = problem.score;
  const Sequence sequence = SequenceOf(problem, b);
  const int64_t position = i + sequence.offset, key = sequence.position + j;
  if (i >= sequence.q_length || j >= sequence.kv_length) return false;
  if (score.causal != Causal::kNone && key > position) return false;
  if (score.window.left >= 0 && key - position < -score.window.left) return false;
  if (score.window.right >= 0 && key - position > score.window.right) return false;
  const TensorView& ranges = score.key_ranges;
  if (ranges.present()) {
    const int64_t of = ranges.shape[0] == 1 ? 0 : b;
    if (key < IntegerAt(ranges, of, i, 0) || key >= IntegerAt(ranges, of, i, 1)) return false;
  }
  if (score.parents.present() && key >= sequence.offset &&
      !IsOnPath(score.parents, b, i, key - sequence.offset))
    return false;
  const BlockMap& map = score.block_map;
  if (map.visible.present() && BroadcastAt(map.visible, b, h, i / map.queries, j / map.keys) == 0)
    return false;
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
    const PairScore pair = Score(problem, sequence, b, h, i, hkv, j);
    row.visible[j] = !pair.removed;
    if (pair.removed) continue;
    row.scaled[j] = pair.scaled.value;
    row.scores[j] = pair.score.value;
    largest[j] = pair.score.largest;
    if (OverflowsFloat(pair.score)) row.overflows_float = true;
  }

  // 6. p = exp(s − m) / (Σ exp(s − m) + exp(σ − m)), m the largest of them all
  const double sink = problem.score.sinks.present() ? At(problem.score.sinks, h) : -kInfinity;
  if (std::find(row.visible.begin(), row.visible.end(), true) == row.visible.end()) {
    // An empty row, which a sink that is infinite or NaN must not make NaN.
    row.lse = sink;
    row.sink_weight = sink == -kInfinity ? 0 : 1;
    return row;
  }
  double m = sink;
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (row.visible[j]) m = MaxKeepingNan(m, row.scores[j]);
  }
  // nothing but −inf, or nothing at all: every term below is exp(−inf) = 0
  if (m == -kInfinity) m = 0;
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
  const auto value = [&](int64_t j, int64_t c) {
    const Place key = PlaceOf(problem, sequence, b, j);
    return ValueAt(problem, key.batch, hkv, key.row, c);
  };
  for (int64_t j = 0; j < n.Tk; ++j) {
    if (!row.visible[j]) continue;  // not 0·v: v may be NaN there
    for (int64_t c = 0; c < n.dv; ++c) row.out[c] += row.weights[j] * value(j, c);
  }
  row.lse = m + std::log(sum);

  for (int64_t j = 0; j < n.Tk; ++j) {
    if (!row.visible[j]) continue;
    for (int64_t c = 0; c < n.dv; ++c)
      row.max_abs_value = std::max(row.max_abs_value, std::abs(value(j, c)));
    // A pair matters if its weight could differ from 0 within its error: one pushed away by a
    // lowest() bias does not.
    const double kUnderflow = 745;  // exp(−745.2) is 0 in double
    if (row.scores[j] + ScoreError(largest[j]) > m - kUnderflow)
      row.max_partial_score = std::max(row.max_partial_score, largest[j]);
  }
  return row;
}

double RelativeTolerance(const Row& row) {
  if (row.overflows_float) return kInfinity;
  return std::max(1e-5, ScoreError(row.max_partial_score));
}

double WeightTolerance(Product product) {
  return product == Product::kBF16 ? 0x1p-8 / (1 - 0x1p-8) : 0;
}

StageResult ScoresAt(const Problem& problem, ScoreStage stage) {
  const Sizes n = SizesOf(problem);
  const bool of_all_pairs = stage == ScoreStage::kScaled || stage == ScoreStage::kSoftcapped;
  StageResult result;
  for (int64_t b = 0; b < n.B; ++b) {
    const Sequence sequence = SequenceOf(problem, b);
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        const Row row = stage == ScoreStage::kWeights ? ForwardRow(problem, b, h, i) : Row();
        for (int64_t j = 0; j < n.Tk; ++j) {
          double score = stage == ScoreStage::kWeights ? 0 : -kInfinity, tolerance = 0;
          const bool exists = i < sequence.q_length && j < sequence.kv_length;
          if (of_all_pairs ? exists : Visible(problem, b, h, i, j)) {
            if (stage == ScoreStage::kWeights) {
              score = row.weights[j];
              tolerance = RelativeTolerance(row);
            } else {
              const PairScore pair = Score(problem, sequence, b, h, i, h / (n.Hq / n.Hkv), j);
              const Sum& s = stage == ScoreStage::kScaled       ? pair.scaled
                             : stage == ScoreStage::kSoftcapped ? pair.softcapped
                                                                : pair.score;
              score = s.value;
              tolerance = ScoreTolerance(s);
            }
          }
          result.scores.push_back(score);
          result.tolerance.push_back(tolerance);
        }
      }
    }
  }
  return result;
}

ForwardResult Forward(const Problem& problem) {
  const Sizes n = SizesOf(problem);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t rows = problem.q.shape[0] * n.Hq * problem.q.shape[2];
  ForwardResult result;
  result.out.assign(rows * n.dv, nan);
  result.lse.assign(rows, nan);
  result.relative_tolerance.assign(rows, nan);
  result.max_abs_value.assign(rows, nan);
  for (int64_t b = 0; b < n.B; ++b) {
    const Rows queries = SequenceOf(problem, b).queries;
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        const Row row = ForwardRow(problem, b, h, i);
        result.weights.insert(result.weights.end(), row.weights.begin(), row.weights.end());
        result.scores.insert(result.scores.end(), row.scores.begin(), row.scores.end());
        result.visible.insert(result.visible.end(), row.visible.begin(), row.visible.end());
        // another sequence is longer: there is no such row of out
        if (i >= queries.count) continue;
        const int64_t place = (queries.batch * n.Hq + h) * problem.q.shape[2] + queries.first + i;
        std::copy(row.out.begin(), row.out.end(), result.out.begin() + place * n.dv);
        result.lse[place] = row.lse;
        result.relative_tolerance[place] = RelativeTolerance(row);
        result.max_abs_value[place] = row.max_abs_value;
      }
    }
  }
  if (problem.scores.present()) result.stage = ScoresAt(problem, problem.score_stage);
  return result;
}

}  // namespace fovea::reference
