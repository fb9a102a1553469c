#include "validate.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "cache.h"
#include "quantised.h"
#include "tree.h"

namespace fovea {
namespace {

// Of dk and dv: scratch for a tile of such heads is still a number of bytes.
constexpr int64_t kMostHeadSize = int64_t{1} << 24;

constexpr uint32_t kInfinityBits = 0x7f800000;

uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

bool IsOffset(int64_t offset) { return offset >= -kMostPosition && offset <= kMostPosition; }

// The sequences of a packed batch: their number, and the rows of the longest.
Status CheckPacked(const TensorFacts& t, const TensorView& cu_seqlens, int64_t rows,
                   const char* rows_name, int64_t* sequences, int64_t* longest) {
  if (t.shape[0] < 1)
    return Invalid("%s.shape[0] = %" PRId64 ", expected 1 or greater (B + 1)", t.name, t.shape[0]);
  FOVEA_RETURN_IF_ERROR(CheckNotNull(t));
  int64_t before = 0;
  *sequences = t.shape[0] - 1;
  *longest = 0;
  for (int64_t b = 0; b <= *sequences; ++b) {
    const int64_t start = ReadInteger(cu_seqlens, b);
    if (start < before || start > rows) {
      return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected %" PRId64 " (%s) to %" PRId64 " (%s)",
                     t.name, b, start, before, b == 0 ? "none before" : "the one before", rows,
                     rows_name);
    }
    if (b > 0) *longest = std::max(*longest, start - before);
    before = start;
  }
  return Status();
}

// q, k, v, cu_seqlens and pages, which say all sizes.
Status CheckSizes(const Problem& problem, ProblemSizes* sizes) {
  const TensorFacts q = Facts("q", problem.q), k = Facts("k", problem.k), v = Facts("v", problem.v);
  const bool packed_q = problem.cu_seqlens_q.present(), packed_k = problem.cu_seqlens_k.present();
  ProblemSizes s = {q.shape[0], q.shape[1], k.shape[1], q.shape[2],
                    k.shape[2], q.shape[3], v.shape[3], 0};
  FOVEA_RETURN_IF_ERROR(CheckCache(problem));
  if (packed_q) {
    FOVEA_RETURN_IF_ERROR(CheckShape(q, 0, 1, "the batch is packed"));
    FOVEA_RETURN_IF_ERROR(CheckPacked(Facts("cu_seqlens_q", problem.cu_seqlens_q),
                                      problem.cu_seqlens_q, q.shape[2], "q.shape[2]", &s.B, &s.Tq));
  }
  if (packed_k) {
    int64_t sequences = 0;
    FOVEA_RETURN_IF_ERROR(CheckPacked(Facts("cu_seqlens_k", problem.cu_seqlens_k),
                                      problem.cu_seqlens_k, k.shape[2], "k.shape[2]", &sequences,
                                      &s.Tk));
    if (sequences != s.B) {
      return Invalid("cu_seqlens_k.shape[0] = %" PRId64 ", expected %" PRId64 " (B + 1)",
                     sequences + 1, s.B + 1);
    }
  }
  if (problem.pages.present()) {
    FOVEA_RETURN_IF_ERROR(CheckPages(problem, s.B, &s.page, &s.Tk));
    FOVEA_RETURN_IF_ERROR(CheckShape(v, 0, k.shape[0], "k.shape[0]"));
  } else {
    const int64_t kv_batch = packed_k ? 1 : s.B;
    const char* const kv_batch_name = packed_k   ? "the batch is packed"
                                      : packed_q ? "B, the sequences of cu_seqlens_q"
                                                 : "q.shape[0]; a shared batch is stride 0";
    FOVEA_RETURN_IF_ERROR(CheckShape(k, 0, kv_batch, kv_batch_name));
    FOVEA_RETURN_IF_ERROR(CheckShape(v, 0, kv_batch, kv_batch_name));
  }
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 1, s.Hkv, "k.shape[1]"));
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 2, k.shape[2], "k.shape[2]"));
  FOVEA_RETURN_IF_ERROR(CheckShape(k, 3, s.dk, "q.shape[3]"));
  if (s.dk < 1) return Invalid("q.shape[3] = %" PRId64 ", expected 1 or greater", s.dk);
  if (s.dv < 1) return Invalid("v.shape[3] = %" PRId64 ", expected 1 or greater", s.dv);
  if (s.dk > kMostHeadSize)
    return Unsupported("q.shape[3] = %" PRId64 ", expected at most 2^24", s.dk);
  if (s.dv > kMostHeadSize)
    return Unsupported("v.shape[3] = %" PRId64 ", expected at most 2^24", s.dv);
  if (s.B > 0 && s.Tq > 0) {
    if (s.Hq < 1)
      return Invalid("q.shape[1] = %" PRId64 ", expected 1 or greater (q.shape[2] = %" PRId64
                     " queries)",
                     s.Hq, s.Tq);
    if (s.Hkv < 1)
      return Invalid("k.shape[1] = %" PRId64 ", expected 1 or greater (q.shape[1] = %" PRId64 ")",
                     s.Hkv, s.Hq);
  }
  if (s.Hkv > 0 && s.Hq % s.Hkv != 0)
    return Invalid("q.shape[1] = %" PRId64 ", expected a multiple of %" PRId64 " (k.shape[1])",
                   s.Hq, s.Hkv);
  *sizes = s;
  return Status();
}

struct AxisSize {
  int64_t size;
  const char* name;
};

// By Axis.
struct AxisSizes {
  AxisSize of[kAxes];
};

void FillAxes(const Problem& problem, const ProblemSizes& s, AxisSizes* axes) {
  const auto blocks = [](int64_t n, int64_t size) {
    return size == 0 ? 0 : n / size + (n % size != 0 ? 1 : 0);
  };
  const BlockMap& map = problem.score.block_map;
  const auto set = [axes](Axis axis, int64_t size, const char* name) {
    axes->of[static_cast<int>(axis)] = {size, name};
  };
  set(Axis::kB, s.B, "B");
  set(Axis::kHq, s.Hq, "Hq");
  set(Axis::kTq, s.Tq, "Tq");
  set(Axis::kTk, s.Tk, "Tk");
  set(Axis::kBatchOfQ, problem.q.shape[0], "q.shape[0]");
  set(Axis::kHeadsOfQ, s.Hq, "q.shape[1]");
  set(Axis::kRowsOfQ, problem.q.shape[2], "q.shape[2]");
  set(Axis::kSizeOfV, s.dv, "v.shape[3]");
  set(Axis::kQueryBlocks, blocks(s.Tq, map.queries), "Tq / block_map.queries, rounded up");
  set(Axis::kKeyBlocks, blocks(s.Tk, map.keys), "Tk / block_map.keys, rounded up");
  set(Axis::kEnds, 2, "begin and end");
}

Status CheckAxes(const Shape& shape, const TensorFacts& t, const AxisSizes& axes) {
  for (int a = 0; a < t.rank; ++a) {
    const int full = shape.rank - t.rank + a;
    if (shape.axes[full] == Axis::kAny) continue;
    const auto [size, name] = axes.of[static_cast<int>(shape.axes[full])];
    if (t.shape[a] == size || (shape.MayBeOne(full) && t.shape[a] == 1)) continue;
    if (!shape.MayBeOne(full)) return CheckShape(t, a, size, name);
    return Invalid("%s.shape[%d] = %" PRId64 ", expected 1 or %" PRId64 " (%s)", t.name, a,
                   t.shape[a], size, name);
  }
  return Status();
}

Status CheckBlockSizes(const BlockMap& map) {
  if (!map.visible.present()) {
    if (map.queries == 0 && map.keys == 0) return Status();
    return Invalid("block_map.visible is absent, expected a map (block_map.queries = %" PRId64
                   ", block_map.keys = %" PRId64 ")",
                   map.queries, map.keys);
  }
  if (map.queries < 1)
    return Invalid("block_map.queries = %" PRId64 ", expected 1 or greater", map.queries);
  if (map.keys < 1) return Invalid("block_map.keys = %" PRId64 ", expected 1 or greater", map.keys);
  return Status();
}

// What of the score is no tensor.
Status CheckScore(const Score& score) {
  if (score.scale.has_value() && !IsScale(*score.scale))
    return Invalid("scale = %g, expected a finite number", static_cast<double>(*score.scale));
  if (!IsSoftcap(score.softcap)) {
    return Invalid("softcap = %g, expected a finite number, 0 or greater",
                   static_cast<double>(score.softcap));
  }
  if (score.causal < Causal::kNone || score.causal > Causal::kBottomRight) {
    return Invalid("causal = %d, expected 0 (none), 1 (top-left) or 2 (bottom-right)",
                   static_cast<int>(score.causal));
  }
  if (score.window.left < -1)
    return Invalid("window.left = %" PRId64 ", expected -1 (unlimited) or greater",
                   score.window.left);
  if (score.window.right < -1)
    return Invalid("window.right = %" PRId64 ", expected -1 (unlimited) or greater",
                   score.window.right);
  if (score.query_offset.has_value() && score.query_offsets.present()) {
    return Invalid("query_offset = %" PRId64
                   " and query_offsets (rank %d) are both given, expected one of them",
                   *score.query_offset, score.query_offsets.rank);
  }
  if (score.query_offset.has_value() && !IsOffset(*score.query_offset)) {
    return Invalid("query_offset = %" PRId64 ", expected -2^62 to 2^62", *score.query_offset);
  }
  if (score.parents.present() && score.parents.shape[1] > kMostNodes) {
    return Unsupported("parents.shape[1] = %" PRId64 ", expected fewer than 2^31 queries of a tree",
                       score.parents.shape[1]);
  }
  return CheckBlockSizes(score.block_map);
}

Status ReadQueries(const TensorView& q_lengths, int64_t b, int64_t most, const char* most_name,
                   int64_t* length) {
  *length = most;
  if (!q_lengths.present()) return Status();
  const int64_t given = ReadInteger(q_lengths, b);
  if (given < 0 || given > most) {
    return Invalid("q_lengths[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64 " (%s)", b, given,
                   most, most_name);
  }
  *length = given;
  return Status();
}

}  // namespace

Status CheckForm(const TensorRow& row, const TensorFacts& t) noexcept {
  const Shape& shape = row.shape;
  if (shape.least_rank < shape.rank && (t.rank < shape.least_rank || t.rank > shape.rank))
    return Invalid("%s.rank = %d, expected %d to %d", t.name, t.rank, shape.least_rank, shape.rank);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, shape.least_rank < shape.rank ? t.rank : shape.rank));
  if (!row.types.Has(t.dtype))
    return Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), row.types.words);
  if (t.dtype == DType::kBit && t.stride[t.rank - 1] != 1) {
    return Invalid("%s.stride[%d] = %" PRId64
                   ", expected 1 (the bytes of packed booleans are dense)",
                   t.name, t.rank - 1, t.stride[t.rank - 1]);
  }
  return IsQuantised(t.dtype) && row.types.set == kFloatsOrCodes.set ? CheckUnits(t) : Status();
}

void SettleStrides(DType dtype, int rank, const int64_t* shape, int64_t* stride) noexcept {
  bool empty = false;
  for (int a = 0; a < rank; ++a) empty |= shape[a] == 0;
  for (int a = 0; a < rank; ++a) {
    if (!empty && shape[a] > (a == rank - 1 ? UnitElements(dtype) : 1)) continue;
    stride[a] = a == rank - 1 ? UnitBytes(dtype) : 0;
  }
}

void GivenTensors::Collect(const Problem& problem) noexcept {
  int index = 0;
  count_ = 0;
  ForEachTensor(
      [&](const TensorRow& row, const auto& view) {
        if (row.required || view.present())
          entries_[count_++] = {index, &row, Facts(row.name, view)};
        ++index;
      },
      problem);
}

Status Validate(const Problem& problem, ValidProblem* valid) noexcept {
  valid->problem_ = &problem;
  valid->tensors_.Collect(problem);
  for (const GivenTensors::Entry& t : valid->tensors_)
    FOVEA_RETURN_IF_ERROR(CheckForm(*t.row, t.facts));
  FOVEA_RETURN_IF_ERROR(CheckSizes(problem, &valid->sizes_));
  FOVEA_RETURN_IF_ERROR(CheckQuantised(problem));
  FOVEA_RETURN_IF_ERROR(CheckScore(problem.score));
  if (problem.score_stage < ScoreStage::kScaled || problem.score_stage > ScoreStage::kWeights) {
    return Invalid(
        "score_stage = %d, expected 0 (scaled), 1 (softcapped), 2 (masked) or 3 (weights)",
        static_cast<int>(problem.score_stage));
  }
  AxisSizes axes;
  FillAxes(problem, valid->sizes_, &axes);
  for (const GivenTensors::Entry& t : valid->tensors_) {
    FOVEA_RETURN_IF_ERROR(CheckAxes(t.row->shape, t.facts, axes));
    if (t.row->by_plans) FOVEA_RETURN_IF_ERROR(CheckNotNull(t.facts));
  }
  return Status();
}

Status ReadLengths(const ValidProblem& valid, int64_t b, SequenceLengths* lengths) noexcept {
  const Problem& problem = *valid;
  const ProblemSizes& sizes = valid.sizes();
  const Score& score = problem.score;
  int64_t queries = sizes.Tq, keys = sizes.Tk;
  const char* queries_name = "q.shape[2]";
  const char* keys_name = problem.pages.present() ? "Tk" : "k.shape[2]";
  lengths->q_batch = lengths->kv_batch = b;
  lengths->q_first = lengths->kv_first = 0;
  if (problem.cu_seqlens_q.present()) {
    lengths->q_batch = 0;
    lengths->q_first = ReadInteger(problem.cu_seqlens_q, b);
    queries = ReadInteger(problem.cu_seqlens_q, b + 1) - lengths->q_first;
    queries_name = "its rows in cu_seqlens_q";
  }
  if (problem.cu_seqlens_k.present()) {
    lengths->kv_batch = 0;
    lengths->kv_first = ReadInteger(problem.cu_seqlens_k, b);
    keys = ReadInteger(problem.cu_seqlens_k, b + 1) - lengths->kv_first;
    keys_name = "its rows in cu_seqlens_k";
  }
  lengths->queries = queries;
  FOVEA_RETURN_IF_ERROR(ReadQueries(score.q_lengths, b, queries, queries_name, &lengths->q_length));
  FOVEA_RETURN_IF_ERROR(ReadKeys(problem, b, keys, keys_name, &lengths->keys));
  if (score.query_offset.has_value()) {
    lengths->offset = *score.query_offset;
  } else if (score.query_offsets.present()) {
    lengths->offset = ReadInteger(score.query_offsets, b);
    if (!IsOffset(lengths->offset))
      return Invalid("query_offsets[%" PRId64 "] = %" PRId64 ", expected -2^62 to 2^62", b,
                     lengths->offset);
  } else {
    lengths->offset =
        score.causal == Causal::kBottomRight ? lengths->keys.end - lengths->q_length : 0;
  }
  return Status();
}

Status CheckData(const ValidProblem& problem, const SequenceLengths* lengths) noexcept {
  for (const GivenTensors::Entry& t : problem.tensors())
    FOVEA_RETURN_IF_ERROR(CheckNotNull(t.facts));
  const TensorView& parents = problem->score.parents;
  if (!parents.present()) return Status();
  for (int64_t b = 0; b < problem.sizes().B; ++b) {
    for (int64_t i = 0; i < lengths[b].q_length; ++i) {
      const int64_t parent = ReadInteger(parents, b, i);
      if (parent < -1 || parent >= i) {
        return Invalid("parents[%" PRId64 ",%" PRId64 "] = %" PRId64
                       ", expected -1 (a root) to %" PRId64 " (a query before it)",
                       b, i, parent, i - 1);
      }
    }
  }
  return Status();
}

bool IsScale(float scale) noexcept { return (BitsOf(scale) & kInfinityBits) != kInfinityBits; }

bool IsSoftcap(float softcap) noexcept {
  return BitsOf(softcap) < kInfinityBits || BitsOf(softcap) == 0x80000000;  // −0
}

bool IsSettled(const TensorFacts& t) noexcept {
  const int64_t n = t.shape[t.rank - 1];
  return IsPlain(t) && (n > 1 || t.stride[t.rank - 1] == std::max<int64_t>(SizeOf(t.dtype), 1));
}

bool IsSettled(const ValidProblem& problem) noexcept {
  for (const GivenTensors::Entry& t : problem.tensors()) {
    if (t.row->walked && !IsSettled(t.facts)) return false;
  }
  return true;
}

Status CheckTable(const ValidProblem& problem, const SequenceLengths* lengths) noexcept {
  if (!problem->pages.present()) return Status();
  for (int64_t b = 0; b < problem.sizes().B; ++b)
    FOVEA_RETURN_IF_ERROR(CheckNumbers(*problem, b, lengths[b].kv_length()));
  return Status();
}

void Settle(Problem* problem) noexcept {
  ForEachTensor(
      [](const TensorRow& row, auto& view) {
        if (row.walked && view.present())
          SettleStrides(view.dtype, view.rank, view.shape, view.stride);
      },
      *problem);
}

}  // namespace fovea
