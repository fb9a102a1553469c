#include "support/random_problem.h"

#include <cmath>
#include <functional>
#include <limits>
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

// Pages that a sequence of Tk keys has.
int64_t PagesOf(const ProblemSpec& s) { return Blocks(s.Tk, s.page); }

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

RandomProblem::RandomProblem(const ProblemSpec& s, uint64_t seed) : spec(s) {
  Random random(seed);
  const auto normal = [&] { return random.Normal(); };
  int64_t q_rows = s.Tq, k_rows = s.Tk;
  const bool packed_q = s.cu_seqlens_q != DType::kNone, packed_k = s.cu_seqlens_k != DType::kNone;
  if (packed_q) cu_seqlens_q = RandomSequences(s.cu_seqlens_q, s.B, s.Tq, random, &q_rows);
  if (packed_k) cu_seqlens_k = RandomSequences(s.cu_seqlens_k, s.B, s.Tk, random, &k_rows);
  const int64_t q_batch = packed_q ? 1 : s.B;
  int64_t k_batch = packed_k ? 1 : s.B;
  if (s.page_table != DType::kNone) {
    k_rows = s.page;
    k_batch = s.B * PagesOf(s) + 2;  // two of nobody
  }
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
    for (int64_t b = 0; b < s.B; ++b) {
      const int64_t most = s.ring ? 3 * s.Tk : KeysOf(b).count;
      kv_lengths.Set(b, static_cast<double>(random.Between(0, most)));
    }
  }
  if (s.key_offsets != DType::kNone) {
    key_offsets = OwnedTensor(s.key_offsets, {s.B});
    key_offsets.Fill([&] { return static_cast<double>(random.Between(0, 2 * s.Tk)); });
  }
  if (s.page_table != DType::kNone) MakePages(random);
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

void RandomProblem::MakePages(Random& random) {
  const int64_t pages = k.view().shape[0], width = PagesOf(spec);
  std::vector<int64_t> order(static_cast<size_t>(pages));
  for (int64_t n = 0; n < pages; ++n) order[static_cast<size_t>(n)] = n;
  for (int64_t n = pages - 1; n > 0; --n)
    std::swap(order[static_cast<size_t>(n)], order[static_cast<size_t>(random.Between(0, n))]);
  const double anything[] = {-1, static_cast<double>(pages), INT32_MAX, INT32_MIN, 0};
  std::vector<double> numbers;
  if (spec.page_begins) page_begins = OwnedTensor(DType::kI32, {spec.B + 1});
  if (spec.page_begins) numbers.push_back(anything[0]), page_begins.Set(0, 1);
  size_t next = 0, before = 0;  // where the numbers of the last sequence begin
  for (int64_t b = 0; b < spec.B; ++b) {
    const size_t first = numbers.size();
    const int64_t needed = (KvLength(b) + spec.page - 1) / spec.page;
    const int64_t shared = b > 0 && random.Chance(0.5) ? random.Between(0, needed) : 0;
    const int64_t before_needed = b > 0 ? (KvLength(b - 1) + spec.page - 1) / spec.page : 0;
    const int64_t all = spec.page_begins ? std::min(width, needed + random.Between(0, 2)) : width;
    for (int64_t x = 0; x < all; ++x) {
      if (x >= needed) {
        numbers.push_back(anything[random.Below(5)]);
      } else if (x < shared && x < before_needed) {
        numbers.push_back(numbers[before + static_cast<size_t>(x)]);
      } else {
        numbers.push_back(static_cast<double>(order[next++]));
      }
    }
    before = first;
    if (spec.page_begins) page_begins.Set(b + 1, static_cast<double>(numbers.size()));
  }
  if (spec.page_begins) numbers.push_back(anything[1]);
  const int64_t count = static_cast<int64_t>(numbers.size());
  page_table = spec.page_begins ? OwnedTensor(spec.page_table, {count})
                                : OwnedTensor(spec.page_table, {spec.B, width});
  for (int64_t n = 0; n < count; ++n) page_table.Set(n, numbers[static_cast<size_t>(n)]);
}

RandomProblem::Place RandomProblem::PlaceOf(int64_t b, int64_t j) const {
  if (page_table.present()) {
    const int64_t first = page_begins.present() ? static_cast<int64_t>(page_begins.Get(b))
                                                : b * page_table.view().shape[1];
    return {static_cast<int64_t>(page_table.Get(first + j / spec.page)), j % spec.page};
  }
  if (spec.ring) return {b, (FirstPosition(b) + j) % spec.Tk};
  return {KeysOf(b).batch, KeysOf(b).first + j};
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
    if (page_table.present()) {
      const int64_t pages = k.view().shape[0];
      std::vector<bool> used(static_cast<size_t>(pages * spec.page));
      for (int64_t b = 0; b < spec.B; ++b) {
        for (int64_t j = 0; j < KvLength(b); ++j) {
          const Place place = PlaceOf(b, j);
          used[static_cast<size_t>(place.batch * spec.page + place.row)] = true;
        }
      }
      for (int64_t n = 0; n < pages * spec.page; ++n) {
        if (!used[static_cast<size_t>(n)]) SetRow(*tensor, n / spec.page, n % spec.page, nan);
      }
      continue;
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
  if (page_table.present()) {
    problem.pages.table = page_table.view();
    problem.pages.begins = page_begins.view();
    if (spec.page_begins || spec.Tk % spec.page != 0) problem.pages.keys = spec.Tk;
  }
  problem.ring = spec.ring;
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
  score.key_offsets = key_offsets.view();
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
  return spec.causal == Causal::kBottomRight ? FirstPosition(b) + KvLength(b) - QLength(b) : 0;
}

bool RandomProblem::InBand(int64_t b, int64_t i, int64_t j) const {
  if (i >= QLength(b) || j >= KvLength(b)) return false;
  const int64_t position = i + Offset(b), key = FirstPosition(b) + j;
  if (spec.causal != Causal::kNone && key > position) return false;
  if (spec.window.left != -1 && key < position - spec.window.left) return false;
  if (spec.window.right != -1 && key > position + spec.window.right) return false;
  return true;
}

bool RandomProblem::Visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (!InBand(b, i, j)) return false;
  const int64_t position = FirstPosition(b) + j;
  if (key_ranges.present()) {
    const int64_t of = spec.one_key_ranges ? 0 : b;
    const double key = static_cast<double>(position);
    if (key < key_ranges.At({of, i, 0}) || key >= key_ranges.At({of, i, 1})) return false;
  }
  if (function != nullptr && std::isinf(function->Added(b, h, i + Offset(b), position)))
    return false;
  if (block_map.present() &&
      Broadcast(block_map, b, h, i / spec.block_queries, j / spec.block_keys) == 0)
    return false;
  if (parents.present() && position >= Offset(b)) {
    const int64_t of_key = position - Offset(b);
    int64_t node = i;
    while (node > of_key) node = static_cast<int64_t>(parents.At({b, node}));
    if (node != of_key) return false;
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
