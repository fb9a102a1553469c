// Textbook attention in scalar double: the specification as code. Slow and obvious on purpose;
// every kernel is tested against it, and nothing here may know how a kernel works.
//
// Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk query/key
// size, dv value size. Results are dense, in C order. All functions assume a problem that
// validation accepts and read only its inputs (out, lse, weights and scores may be absent). Views
// may have any strides; q, k, v and bias any of f32, f16, bf16. Thread-safe.
//
// Packed batches: Tq and Tk are those of the longest sequence, and b, i and j name a sequence, its
// query and its key, wherever they lie. What has the shape of q, k, v or out has the shape that
// they have in the problem: [1, Hq, rows of all sequences, …].
#ifndef FOVEA_REFERENCE_REFERENCE_H_
#define FOVEA_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"

namespace fovea::reference {

struct Sizes {
  int64_t B = 0, Hq = 0, Hkv = 0, Tq = 0, Tk = 0, dk = 0, dv = 0;
};
Sizes SizesOf(const Problem& problem);

// The scale of all heads; and what a tensor [Hq] of factors gives head h: 1 where it is absent.
double ScaleOf(const Problem& problem);
double HeadFactor(const TensorView& factors, int64_t h);

// Where the rows of one sequence lie in q, out and lse, or, outside of pages and rings, in k and v:
// row t is [batch, head, first + t].
struct Rows {
  int64_t batch = 0;
  int64_t first = 0;
  int64_t count = 0;
};

// Lengths and offset of one sequence, the defaults resolved.
struct Sequence {
  int64_t q_length = 0;   // rows at or behind it are padding
  int64_t kv_length = 0;  // resident keys: K and V at or behind it do not exist
  int64_t position = 0;   // of the first resident key
  int64_t offset = 0;     // position of query 0 among the keys
  Rows queries;           // q_length and padding
  Rows keys;              // kv_length and what does not exist
};
Sequence SequenceOf(const Problem& problem, int64_t b);

// Where resident key j of sequence b is in k and v: row [batch, head, row].
struct Place {
  int64_t batch = 0;
  int64_t row = 0;
};
Place PlaceOf(const Problem& problem, const Sequence& sequence, int64_t b, int64_t j);

// Keys j are counted from the first resident one of their sequence, here and below.
//
// Whether query i of head h sees key j: all that is given must allow the pair, but for a score
// function, which needs the score. Does not read q, k or v, nor bias, masks, parents and key ranges
// behind the lengths.
bool Visible(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j);

// Everything about one query row. Removed pairs have score −inf and weight 0.
struct Row {
  std::vector<bool> visible;    // [Tk]
  std::vector<double> scaled;   // [Tk] scale·head_scale·(q·k) of the visible pairs
  std::vector<double> scores;   // [Tk] after softcap, ALiBi, bias and function
  std::vector<double> weights;  // [Tk]
  double sink_weight = 0;       // the share of the sink in the softmax
  std::vector<double> out;      // [dv]
  double lse = 0;

  // What float32 can know about this row, for tolerances.
  double max_abs_value = 0;  // max|v| over visible keys
  // the largest magnitude that summing a score that matters can pass through, in any order
  double max_partial_score = 0;
  // finite inputs, but Σ|scale·q·k| or a later step of a visible pair is not finite in float32
  bool overflows_float = false;
};
Row ForwardRow(const Problem& problem, int64_t b, int64_t h, int64_t i);

// The contract's precision of an f32 computation of this row: |error of out| ≤ t·max|v| and |error
// of lse| ≤ t (plus the rounding of lse itself), t = max(1e-5, 8·2⁻²⁴·max|partial score|); infinite
// where the scores overflow float32 and nothing is promised. Of a score function it is assumed that
// it makes no error of its argument larger.
double RelativeTolerance(const Row& row);

// What the precision of out becomes where the product with V takes rounded weights: |error of out|
// ≤ (t + WeightTolerance)·max|v|. 0 for f32.
//
// Weights w that are rounded by relative errors |δ| ≤ u and divided by their own sum move out by Σ
// w·δ·(v − out) / (1 + Σ w·δ), and no weighted mean of |v − out| is above max|v|: u / (1 − u),
// where u = 2⁻⁸ is half a unit in the last of bf16's eight bits, just above a power of two.
double WeightTolerance(Product product);

// What Problem::scores holds at a stage, [B, Hq, Tq, Tk], and how well float32 can know it: |error|
// ≤ tolerance, by the rule of RelativeTolerance for each pair; infinite where the score overflows
// float32, 0 for the weight of a removed pair.
struct StageResult {
  std::vector<double> scores;
  std::vector<double> tolerance;
};
StageResult ScoresAt(const Problem& problem, ScoreStage stage);

struct ForwardResult {
  // [B, Hq, Tq, dv]; packed [1, Hq, rows, dv], NaN in rows outside of every sequence, where nothing
  // is written
  std::vector<double> out;
  std::vector<double> lse;      // [B, Hq, Tq]; packed [1, Hq, rows], likewise
  std::vector<double> weights;  // [B, Hq, Tq, Tk]
  // [B, Hq, Tq, Tk] after softcap, ALiBi, bias and function; −inf where removed
  std::vector<double> scores;
  std::vector<bool> visible;  // [B, Hq, Tq, Tk]
  // ScoresAt(problem.score_stage); empty where problem.scores is absent
  StageResult stage;

  std::vector<double> relative_tolerance;  // as lse: t of RelativeTolerance
  std::vector<double> max_abs_value;       // as lse
};
ForwardResult Forward(const Problem& problem);

// The gradients of Σ out·dout (dout: as out, any strides and float type). Rows, keys and values
// without part in it get 0. Not of problems with a score function, whose derivative is not known.
struct GradientResult {
  std::vector<double> dq;  // as q: [B, Hq, Tq, dk]
  std::vector<double> dk;  // as k: [B, Hkv, Tk, dk]
  std::vector<double> dv;  // as v: [B, Hkv, Tk, dv]
  // [B, Hq, Tq, Tk]: of every score before it is broadcast; 0 for removed pairs
  std::vector<double> dbias;
  std::vector<double> dsinks;        // [Hq], 0 without sinks
  std::vector<double> dhead_scales;  // [Hq], where they are absent of head scales of 1
};
// Of Σ out·dout + Σ lse·dlse; without dlse of the first sum alone.
GradientResult Gradients(const Problem& problem, const TensorView& dout,
                         const TensorView& dlse = {});

// The state over the union of `count` disjoint key sets (fovea/merge.h).
struct MergeResult {
  std::vector<double> out;  // [B, Hq, Tq, dv]
  std::vector<double> lse;  // [B, Hq, Tq]
};
MergeResult Merge(const PartialState* parts, int64_t count);

}  // namespace fovea::reference

#endif  // FOVEA_REFERENCE_REFERENCE_H_
