#include "support/random_problem.h"

#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <vector>

namespace fovea::test {
namespace {

// Tq and Tk, or how many blocks of a block map they are.
std::vector<int64_t> Shape(Axes axes, const ProblemSpec& s, int64_t Tq, int64_t Tk) {
  switch (axes) {
    case Axes::kAbsent:
      break;
    case Axes::kK:
      return {Tk};
    case Axes::kQK:
      return {Tq, Tk};
    case Axes::kHQK:
      return {s.Hq, Tq, Tk};
    case Axes::kH1K:
      return {s.Hq, 1, Tk};
    case Axes::kB11K:
      return {s.B, 1, 1, Tk};
    case Axes::kB1Q1:
      return {s.B, 1, Tq, 1};
    case Axes::kBHQK:
      return {s.B, s.Hq, Tq, Tk};
    case Axes::k1:
      return {1};
  }
  return {};
}

int64_t Blocks(int64_t T, int64_t block) { return (T + block - 1) / block; }

const char* Name(Axes axes) {
  static const char* const kNames[] = {"absent",     "[Tk]",         "[Tq,Tk]",
                                       "[Hq,Tq,Tk]", "[Hq,1,Tk]",    "[B,1,1,Tk]",
                                       "[B,1,Tq,1]", "[B,Hq,Tq,Tk]", "[1]"};
  return kNames[static_cast<int>(axes)];
}

const char* Name(ScoreStage stage) {
  static const char* const kNames[] = {"scaled", "softcapped", "masked", "weights"};
  return kNames[static_cast<int>(stage)];
}

// Calls f with each row of a packed tensor that belongs to no sequence.
void ForEachSpareRow(const OwnedTensor& cu_seqlens, int64_t rows,
                     const std::function<void(int64_t row)>& f) {
  for (int64_t t = 0; t < rows; ++t) {
    // sequences leave no gap between them
    if (t < cu_seqlens.Get(0) || t >= cu_seqlens.Get(cu_seqlens.size() - 1)) f(t);
  }
}

// Where B sequences begin and end: one of T rows, the others empty or shorter, a few rows before
// and behind them. *rows counts them all.
OwnedTensor RandomSequences(DType dtype, int64_t B, int64_t T, Random& random, int64_t* rows) {
  OwnedTensor cu_seqlens(dtype, {B + 1});
  const int64_t longest = B == 0 ? 0 : random.Below(B);
  int64_t end = random.Between(0, 3);
  for (int64_t b = 0; b <= B; ++b) {
    cu_seqlens.Set(b, static_cast<double>(end));
    end += b == longest ? T : random.Chance(0.2) ? 0 : random.Between(0, T);
  }
  *rows = static_cast<int64_t>(cu_seqlens.Get(B)) + random.Between(0, 3);
  return cu_seqlens;
}

struct KeyRange {
  int64_t begin, end;
};
KeyRange RandomRange(int64_t Tk, Random& random) {
  const double kind = random.Uniform();
  const int64_t most = int64_t{1} << 30;  // an i32, and exact as a double
  if (kind < 0.1) return {-most, most};
  if (kind < 0.2) return {random.Between(-3, Tk), -most};  // nothing
  if (kind < 0.3) return {random.Between(0, Tk), most};
  const int64_t begin = random.Between(-3, Tk);
  return {begin, begin + random.Between(0, kind < 0.6 ? 8 : Tk + 3)};
}

void SetRow(OwnedTensor& tensor, int64_t batch, int64_t row, double value) {
  const TensorView view = tensor.view();
  for (int64_t h = 0; h < view.shape[1]; ++h) {
    for (int64_t c = 0; c < view.shape[3]; ++c) tensor.SetAt({batch, h, row, c}, value);
  }
}

}  // namespace

std::string ToString(const ProblemSpec& s) {
  std::ostringstream text;
  text << "B " << s.B << ", heads " << s.Hq << "/" << s.Hkv << ", T " << s.Tq << "x" << s.Tk
       << ", d " << s.dk << "/" << s.dv;
  if (s.scale) text << ", scale " << *s.scale;
  if (s.softcap != 0) text << ", softcap " << s.softcap;
  if (s.head_scales) text << ", head scales";
  if (s.alibi) text << ", alibi";
  if (s.sinks) text << ", sinks";
  if (s.bias != Axes::kAbsent)
    text << ", bias " << fovea::Name(s.bias_type) << Name(s.bias) << " removes " << s.bias_removes;
  if (s.bias_scales) text << ", bias scales";
  if (s.function) text << ", function removes " << s.function_removes;
  if (s.mask != Axes::kAbsent)
    text << ", mask " << fovea::Name(s.mask_type) << Name(s.mask) << " allows " << s.mask_allows;
  if (s.fixed_mask) text << ", fixed";
  if (s.block_map != Axes::kAbsent) {
    text << ", block map " << fovea::Name(s.block_map_type) << Name(s.block_map) << " of "
         << s.block_queries << "x" << s.block_keys << " allows " << s.block_map_allows;
  }
  if (s.parents != DType::kNone) text << ", tree " << fovea::Name(s.parents);
  if (s.causal != Causal::kNone)
    text << (s.causal == Causal::kTopLeft ? ", causal top-left" : ", causal bottom-right");
  if (s.window.left != -1 || s.window.right != -1)
    text << ", window " << s.window.left << "," << s.window.right;
  if (s.query_offset) text << ", offset " << *s.query_offset;
  if (s.query_offsets != DType::kNone) text << ", offsets " << fovea::Name(s.query_offsets);
  if (s.q_lengths != DType::kNone) text << ", q_lengths " << fovea::Name(s.q_lengths);
  if (s.kv_lengths != DType::kNone) text << ", kv_lengths " << fovea::Name(s.kv_lengths);
  if (s.key_ranges != DType::kNone)
    text << ", key ranges " << fovea::Name(s.key_ranges) << (s.one_key_ranges ? " of all" : "");
  if (s.cu_seqlens_q != DType::kNone) text << ", cu_seqlens_q " << fovea::Name(s.cu_seqlens_q);
  if (s.cu_seqlens_k != DType::kNone) text << ", cu_seqlens_k " << fovea::Name(s.cu_seqlens_k);
  text << (s.lse ? ", lse" : "") << (s.weights ? ", weights" : "");
  if (s.scores) text << ", scores " << Name(*s.scores);
  const auto tensor = [&](const char* name, DType type, const Storage& storage) {
    text << ", " << name << " " << fovea::Name(type) << " " << ToString(storage);
  };
  tensor("q", s.q_type, s.q);
  tensor("k", s.k_type, s.k);
  tensor("v", s.v_type, s.v);
  tensor("out", s.out_type, s.out);
  text << ", rest " << ToString(s.rest);
  return text.str();
}

ProblemSpec SmallSpec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 19, s.Tk = 70, s.dk = 20, s.dv = 18, s.weights = true;
  return s;
}

std::vector<ProblemSpec> VariedSpecs() {
  std::vector<ProblemSpec> specs(8);
  ProblemSpec& scores = specs[0];
  scores.B = 2, scores.Hq = 4, scores.Hkv = 2, scores.Tq = 40, scores.Tk = 90, scores.dk = 20,
  scores.dv = 24, scores.scale = -0.3f;
  scores.causal = Causal::kTopLeft, scores.window = {50, 3}, scores.softcap = 3,
  scores.alibi = true, scores.sinks = true;
  scores.bias = Axes::kBHQK, scores.bias_type = DType::kF16, scores.mask = Axes::kHQK,
  scores.weights = true;
  scores.q_lengths = DType::kI32, scores.kv_lengths = DType::kI64,
  scores.query_offsets = DType::kI32;
  scores.k.layout = Layout::kTransposed, scores.q.layout = Layout::kSwapped,
  scores.v.layout = Layout::kReversed;
  ProblemSpec& decode = specs[1];
  decode.B = 2, decode.Hq = 8, decode.Hkv = 2, decode.Tk = 3000, decode.dk = 64, decode.dv = 64,
  decode.kv_lengths = DType::kI32, decode.v.layout = Layout::kPage;
  specs[2].Tq = 3, specs[2].Tk = 0;
  ProblemSpec& removes = specs[3];
  removes.B = 2, removes.Hq = 4, removes.Hkv = 2, removes.Tq = 40, removes.Tk = 290,
  removes.dk = 20, removes.dv = 24, removes.causal = Causal::kBottomRight,
  removes.mask = Axes::kBHQK, removes.mask_type = DType::kBit, removes.block_map = Axes::kHQK,
  removes.block_queries = 6, removes.block_keys = 50, removes.parents = DType::kI64,
  removes.scores = ScoreStage::kSoftcapped;
  ProblemSpec& packed = specs[4];
  packed.B = 5, packed.Hq = 4, packed.Hkv = 2, packed.Tq = 40, packed.Tk = 290, packed.dk = 20,
  packed.dv = 24, packed.cu_seqlens_q = DType::kI32, packed.cu_seqlens_k = DType::kI64,
  packed.mask = Axes::kQK, packed.fixed_mask = true, packed.weights = true,
  packed.scores = ScoreStage::kWeights;
  ProblemSpec& halves = specs[5];
  halves.B = 1, halves.Hq = 3, halves.Hkv = 3, halves.Tq = 50, halves.Tk = 70, halves.dk = 64,
  halves.dv = 32, halves.query_offset = 15;
  halves.q_type = halves.k_type = halves.v_type = halves.out_type = DType::kBF16,
  halves.causal = Causal::kTopLeft;
  ProblemSpec& stages = specs[6];
  stages.Hq = 2, stages.Hkv = 1, stages.Tq = 20, stages.Tk = 33, stages.dk = 5, stages.dv = 6,
  stages.scores = ScoreStage::kScaled;
  stages.q_type = DType::kF16, stages.v_type = DType::kBF16, stages.lse = false;
  ProblemSpec& function = specs[7];
  function.B = 2, function.Hq = 4, function.Hkv = 2, function.Tq = 40, function.Tk = 90,
  function.dk = 20, function.dv = 24, function.head_scales = function.bias_scales = true;
  function.bias = Axes::kHQK, function.key_ranges = DType::kI64, function.function = true;
  return specs;
}

ProblemSpec WithTypes(ProblemSpec spec, DType type) {
  spec.q_type = spec.k_type = spec.v_type = spec.out_type = type;
  return spec;
}

RandomProblem::RandomProblem(const ProblemSpec& s, uint64_t seed) : spec(s) {
  Random random(seed);
  const auto normal = [&] { return random.Normal(); };
  int64_t q_rows = s.Tq, k_rows = s.Tk;
  const bool packed_q = s.cu_seqlens_q != DType::kNone, packed_k = s.cu_seqlens_k != DType::kNone;
  if (packed_q) cu_seqlens_q = RandomSequences(s.cu_seqlens_q, s.B, s.Tq, random, &q_rows);
  if (packed_k) cu_seqlens_k = RandomSequences(s.cu_seqlens_k, s.B, s.Tk, random, &k_rows);
  const int64_t q_batch = packed_q ? 1 : s.B, k_batch = packed_k ? 1 : s.B;
  q = OwnedTensor(s.q_type, {q_batch, s.Hq, q_rows, s.dk}, s.q);
  k = OwnedTensor(s.k_type, {k_batch, s.Hkv, k_rows, s.dk}, s.k);
  v = OwnedTensor(s.v_type, {k_batch, s.Hkv, k_rows, s.dv}, s.v);
  q.Fill(normal);
  k.Fill(normal);
  v.Fill(normal);
  if (s.alibi) {
    alibi_slopes = OwnedTensor(DType::kF32, {s.Hq});
    alibi_slopes.Fill([&] { return std::exp2(-8 * random.Uniform()); });
  }
  if (s.sinks) {
    sinks = OwnedTensor(DType::kF32, {s.Hq});
    sinks.Fill([&] { return 2 * random.Normal(); });
  }
  if (s.bias != Axes::kAbsent) {
    bias = OwnedTensor(s.bias_type, Shape(s.bias, s, s.Tq, s.Tk), s.rest);
    bias.Fill([&] {
      return random.Chance(s.bias_removes) ? -std::numeric_limits<double>::infinity()
                                           : random.Normal();
    });
  }
  if (s.mask != Axes::kAbsent) {
    mask = OwnedTensor(s.mask_type, Shape(s.mask, s, s.Tq, s.Tk), s.rest);
    mask.Fill([&] { return random.Chance(s.mask_allows) ? 1.0 : 0.0; });
  }
  if (s.q_lengths != DType::kNone) {
    q_lengths = OwnedTensor(s.q_lengths, {s.B});
    for (int64_t b = 0; b < s.B; ++b)
      q_lengths.Set(b, static_cast<double>(random.Between(0, QueriesOf(b).count)));
  }
  if (s.kv_lengths != DType::kNone) {
    kv_lengths = OwnedTensor(s.kv_lengths, {s.B});
    for (int64_t b = 0; b < s.B; ++b)
      kv_lengths.Set(b, static_cast<double>(random.Between(0, KeysOf(b).count)));
  }
  if (s.query_offsets != DType::kNone) {
    query_offsets = OwnedTensor(s.query_offsets, {s.B});
    query_offsets.Fill([&] { return static_cast<double>(random.Between(-s.Tq, s.Tk)); });
  }
  if (s.block_map != Axes::kAbsent) {
    block_map = OwnedTensor(
        s.block_map_type,
        Shape(s.block_map, s, Blocks(s.Tq, s.block_queries), Blocks(s.Tk, s.block_keys)), s.rest);
    block_map.Fill([&] { return random.Chance(s.block_map_allows) ? 1.0 : 0.0; });
  }
  if (s.parents != DType::kNone) {
    parents = OwnedTensor(s.parents, {s.B, s.Tq});
    for (int64_t n = 0; n < parents.size(); ++n) {
      const int64_t i = n % s.Tq;
      parents.Set(n, static_cast<double>(random.Chance(0.5) ? i - 1 : random.Between(-1, i - 1)));
    }
  }
  for (const bool of_bias : {false, true}) {
    if (of_bias ? !s.bias_scales : !s.head_scales) continue;
    OwnedTensor& scales = of_bias ? bias_scales : head_scales;
    scales = OwnedTensor(DType::kF32, {s.Hq});
    scales.Fill([&] {
      const double kind = random.Uniform();
      return kind < 0.1 ? 0.0 : kind < 0.2 ? 1.0 : random.Normal();
    });
  }
  if (s.key_ranges != DType::kNone) {
    key_ranges = OwnedTensor(s.key_ranges, {s.one_key_ranges ? 1 : s.B, s.Tq, 2}, s.rest);
    for (int64_t n = 0; n + 1 < key_ranges.size(); n += 2) {
      const KeyRange range = RandomRange(s.Tk, random);
      key_ranges.Set(n, static_cast<double>(range.begin));
      key_ranges.Set(n + 1, static_cast<double>(range.end));
    }
  }
  if (s.function)
    function = std::make_shared<const HashedBias>(HashedBias{random.Bits(), s.function_removes});
  SpoilWhatIsNotThere();
  out = OwnedTensor(s.out_type, {q_batch, s.Hq, q_rows, s.dv}, s.out);
  if (s.lse) lse = OwnedTensor(DType::kF32, {q_batch, s.Hq, q_rows}, s.rest);
  if (s.weights) weights = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.Tk}, s.rest);
  if (s.scores) scores = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.Tk}, s.rest);
  Refresh();
}

void RandomProblem::SpoilWhatIsNotThere() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (cu_seqlens_q.present()) {
    ForEachSpareRow(cu_seqlens_q, q.view().shape[2], [&](int64_t t) { SetRow(q, 0, t, nan); });
  }
  for (OwnedTensor* tensor : {&k, &v}) {
    // Only where every axis is stored: with a batch axis of stride 0 the longest sequence decides.
    if ((tensor == &k ? spec.k : spec.v).broadcast != 0) continue;
    if (cu_seqlens_k.present()) {
      ForEachSpareRow(cu_seqlens_k, k.view().shape[2],
                      [&](int64_t t) { SetRow(*tensor, 0, t, nan); });
    }
    for (int64_t b = 0; b < spec.B; ++b) {
      const Rows keys = KeysOf(b);
      for (int64_t j = KvLength(b); j < keys.count; ++j)
        SetRow(*tensor, keys.batch, keys.first + j, nan);
    }
  }
}

void RandomProblem::Refresh() {
  problem = Problem();
  problem.q = q.view();
  problem.k = k.view();
  problem.v = v.view();
  problem.out = out.mutable_view();
  problem.lse = lse.mutable_view();
  problem.weights = weights.mutable_view();
  problem.scores = scores.mutable_view();
  if (spec.scores) problem.score_stage = *spec.scores;
  problem.cu_seqlens_q = cu_seqlens_q.view();
  problem.cu_seqlens_k = cu_seqlens_k.view();
  Score& score = problem.score;
  score.scale = spec.scale;
  score.softcap = spec.softcap;
  score.causal = spec.causal;
  score.window = spec.window;
  score.query_offset = spec.query_offset;
  score.head_scales = head_scales.view();
  score.alibi_slopes = alibi_slopes.view();
  score.bias = bias.view();
  score.bias_scales = bias_scales.view();
  if (function != nullptr) score.function = EachScore(*function);
  score.mask = mask.view();
  if (block_map.present())
    score.block_map = {block_map.view(), spec.block_queries, spec.block_keys};
  score.parents = parents.view();
  score.key_ranges = key_ranges.view();
  score.query_offsets = query_offsets.view();
  score.q_lengths = q_lengths.view();
  score.kv_lengths = kv_lengths.view();
  score.sinks = sinks.view();
}

void RandomProblem::ResetOutputs() {
  out.Reset();
  lse.Reset();
  weights.Reset();
  scores.Reset();
}

bool RandomProblem::OutputsUntouched() const {
  return out.Untouched() && lse.Untouched() && weights.Untouched() && scores.Untouched();
}

bool RandomProblem::OutputPaddingUntouched() const {
  bool untouched = out.PaddingUntouched() && lse.PaddingUntouched() && weights.PaddingUntouched() &&
                   scores.PaddingUntouched();
  if (!cu_seqlens_q.present()) return untouched;
  ForEachSpareRow(cu_seqlens_q, out.view().shape[2], [&](int64_t t) {
    for (int64_t h = 0; h < spec.Hq; ++h) {
      for (int64_t c = 0; c < spec.dv; ++c)
        untouched = untouched && out.ElementUntouched(out.Number({0, h, t, c}));
      if (lse.present()) untouched = untouched && lse.ElementUntouched(lse.Number({0, h, t}));
    }
  });
  return untouched;
}

RandomProblem::Rows RandomProblem::RowsOf(const OwnedTensor& cu_seqlens, int64_t b, int64_t T) {
  if (!cu_seqlens.present()) return {b, 0, T};
  const int64_t first = static_cast<int64_t>(cu_seqlens.Get(b));
  return {0, first, static_cast<int64_t>(cu_seqlens.Get(b + 1)) - first};
}

int64_t RandomProblem::Offset(int64_t b) const {
  if (spec.query_offset) return *spec.query_offset;
  if (query_offsets.present()) return static_cast<int64_t>(query_offsets.Get(b));
  return spec.causal == Causal::kBottomRight ? KvLength(b) - QLength(b) : 0;
}

bool RandomProblem::InBand(int64_t b, int64_t i, int64_t j) const {
  if (i >= QLength(b) || j >= KvLength(b)) return false;
  const int64_t position = i + Offset(b);
  if (spec.causal != Causal::kNone && j > position) return false;
  if (spec.window.left != -1 && j < position - spec.window.left) return false;
  if (spec.window.right != -1 && j > position + spec.window.right) return false;
  return true;
}

bool RandomProblem::Visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (!InBand(b, i, j)) return false;
  if (key_ranges.present()) {
    const int64_t of = spec.one_key_ranges ? 0 : b;
    const double key = static_cast<double>(j);
    if (key < key_ranges.At({of, i, 0}) || key >= key_ranges.At({of, i, 1})) return false;
  }
  if (function != nullptr && std::isinf(function->Added(b, h, i + Offset(b), j))) return false;
  if (block_map.present() &&
      Broadcast(block_map, b, h, i / spec.block_queries, j / spec.block_keys) == 0)
    return false;
  if (parents.present() && j >= Offset(b)) {
    int64_t node = i;
    while (node > j - Offset(b)) node = static_cast<int64_t>(parents.At({b, node}));
    if (node != j - Offset(b)) return false;
  }
  if (mask.present() && Broadcast(mask, b, h, i, j) == 0) return false;
  return !(bias.present() &&
           Broadcast(bias, b, h, i, j) == -std::numeric_limits<double>::infinity());
}

double RandomProblem::Broadcast(const OwnedTensor& tensor, int64_t b, int64_t h, int64_t i,
                                int64_t j) {
  const TensorView view = tensor.view();
  const int64_t index[] = {b, h, i, j};
  int64_t number = 0;
  for (int a = 0; a < view.rank; ++a)
    number = number * view.shape[a] + (view.shape[a] == 1 ? 0 : index[4 - view.rank + a]);
  return tensor.Get(number);
}

}  // namespace fovea::test
