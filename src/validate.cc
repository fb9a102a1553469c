#include "validate.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace fovea {
namespace {

Status Formatted(StatusCode code, const char* format, va_list arguments) {
  char message[Status::kMaxMessage];
  std::vsnprintf(message, sizeof(message), format, arguments);
  return Status(code, message);
}

bool IsKnown(DType dtype) { return dtype >= DType::kF32 && dtype <= DType::kBit; }

// q, k, v and out hold floats.
Status CheckFloats(const TensorFacts& t) {
  if (t.dtype == DType::kF32 || t.dtype == DType::kF16 || t.dtype == DType::kBF16) return Status();
  return Invalid("%s.dtype = %s, expected f32, f16 or bf16", t.name, Name(t.dtype));
}

// The axes that bias, mask and block map broadcast to.
struct FullAxes {
  int64_t size[kMaxRank];
  const char* name[kMaxRank];
};

FullAxes ScoreAxes(const Sizes& s) { return {{s.B, s.Hq, s.Tq, s.Tk}, {"B", "Hq", "Tq", "Tk"}}; }

// Each axis 1 or full, aligned at the right.
Status CheckBroadcast(const TensorFacts& t, const FullAxes& full) {
  if (t.rank < 1 || t.rank > kMaxRank)
    return Invalid("%s.rank = %d, expected 1 to 4", t.name, t.rank);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, t.rank));
  for (int a = 0; a < t.rank; ++a) {
    const int axis = kMaxRank - t.rank + a;
    if (t.shape[a] != 1 && t.shape[a] != full.size[axis]) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected 1 or %" PRId64 " (%s)", t.name, a,
                     t.shape[a], full.size[axis], full.name[axis]);
    }
  }
  return Status();
}

// Booleans, one a byte or packed.
Status CheckBooleans(const TensorFacts& t) {
  if (t.dtype != DType::kBool && t.dtype != DType::kBit)
    return Invalid("%s.dtype = %s, expected bool or bit", t.name, Name(t.dtype));
  if (t.dtype == DType::kBit && t.stride[t.rank - 1] != 1) {
    return Invalid("%s.stride[%d] = %" PRId64
                   ", expected 1 (the bytes of packed booleans are dense)",
                   t.name, t.rank - 1, t.stride[t.rank - 1]);
  }
  return Status();
}

Status CheckIntegers(const TensorFacts& t) {
  if (t.dtype == DType::kI32 || t.dtype == DType::kI64) return Status();
  return Invalid("%s.dtype = %s, expected i32 or i64", t.name, Name(t.dtype));
}

Status CheckBlockMap(const BlockMap& map, const Sizes& s) {
  if (!map.visible.present()) {
    if (map.queries != 0 || map.keys != 0) {
      return Invalid("block_map.visible is absent, expected a map (block_map.queries = %" PRId64
                     ", block_map.keys = %" PRId64 ")",
                     map.queries, map.keys);
    }
    return Status();
  }
  if (map.queries < 1)
    return Invalid("block_map.queries = %" PRId64 ", expected 1 or greater", map.queries);
  if (map.keys < 1) return Invalid("block_map.keys = %" PRId64 ", expected 1 or greater", map.keys);
  const TensorFacts t = Facts("block_map.visible", map.visible);
  const auto blocks = [](int64_t n, int64_t size) { return n / size + (n % size != 0 ? 1 : 0); };
  const FullAxes full = {
      {s.B, s.Hq, blocks(s.Tq, map.queries), blocks(s.Tk, map.keys)},
      {"B", "Hq", "Tq / block_map.queries, rounded up", "Tk / block_map.keys, rounded up"}};
  FOVEA_RETURN_IF_ERROR(CheckBroadcast(t, full));
  return CheckBooleans(t);
}

Status CheckParents(const TensorFacts& t, const Sizes& s) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 2));
  FOVEA_RETURN_IF_ERROR(CheckIntegers(t));
  FOVEA_RETURN_IF_ERROR(CheckShape(t, 0, s.B, "B"));
  return CheckShape(t, 1, s.Tq, "Tq");
}

Status CheckPerHead(const TensorFacts& t, const Sizes& s) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 1));
  FOVEA_RETURN_IF_ERROR(CheckType(t, DType::kF32));
  return CheckShape(t, 0, s.Hq, "q.shape[1]");
}

Status CheckPerSequence(const TensorFacts& t, const Sizes& s) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 1));
  FOVEA_RETURN_IF_ERROR(CheckIntegers(t));
  FOVEA_RETURN_IF_ERROR(CheckShape(t, 0, s.B, "B"));
  return CheckNotNull(t);  // read while planning
}

int64_t ReadInteger(const TensorView& view, int64_t index, int64_t second = 0) {
  const char* p =
      static_cast<const char*>(view.data) + index * view.stride[0] + second * view.stride[1];
  if (view.dtype == DType::kI32) {
    int32_t x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  int64_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

// The sequences of a packed batch: their number, and the rows of the longest.
Status CheckPacked(const TensorFacts& t, const TensorView& cu_seqlens, int64_t rows,
                   const char* rows_name, int64_t* sequences, int64_t* longest) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 1));
  FOVEA_RETURN_IF_ERROR(CheckIntegers(t));
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

Status ReadLength(const char* name, const TensorView& view, int64_t b, int64_t most,
                  const char* most_name, int64_t* length) {
  *length = most;
  if (!view.present()) return Status();
  const int64_t given = ReadInteger(view, b);
  if (given < 0 || given > most) {
    return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64 " (%s)", name, b, given,
                   most, most_name);
  }
  *length = given;
  return Status();
}

// Of dk and dv: scratch for a tile of such heads is still a number of bytes.
constexpr int64_t kMostHeadSize = int64_t{1} << 24;

// Far beyond any key, and small enough for i + offset not to overflow.
constexpr int64_t kMostOffset = int64_t{1} << 62;

bool IsOffset(int64_t offset) { return offset >= -kMostOffset && offset <= kMostOffset; }

Status CheckScore(const Score& score, const Sizes& s) {
  if (score.scale.has_value() && !std::isfinite(*score.scale))
    return Invalid("scale = %g, expected a finite number", static_cast<double>(*score.scale));
  if (!(score.softcap >= 0.0f) || !std::isfinite(score.softcap)) {
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
  if (score.query_offsets.present())
    FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("query_offsets", score.query_offsets), s));
  if (score.q_lengths.present())
    FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("q_lengths", score.q_lengths), s));
  if (score.kv_lengths.present())
    FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("kv_lengths", score.kv_lengths), s));
  if (score.alibi_slopes.present())
    FOVEA_RETURN_IF_ERROR(CheckPerHead(Facts("alibi_slopes", score.alibi_slopes), s));
  if (score.sinks.present()) FOVEA_RETURN_IF_ERROR(CheckPerHead(Facts("sinks", score.sinks), s));
  if (score.bias.present()) {
    FOVEA_RETURN_IF_ERROR(CheckBroadcast(Facts("bias", score.bias), ScoreAxes(s)));
    if (score.bias.dtype != DType::kF32 && score.bias.dtype != DType::kF16 &&
        score.bias.dtype != DType::kBF16) {
      return Invalid("bias.dtype = %s, expected f32, f16 or bf16", Name(score.bias.dtype));
    }
  }
  if (score.mask.present()) {
    FOVEA_RETURN_IF_ERROR(CheckBroadcast(Facts("mask", score.mask), ScoreAxes(s)));
    FOVEA_RETURN_IF_ERROR(CheckBooleans(Facts("mask", score.mask)));
  }
  FOVEA_RETURN_IF_ERROR(CheckBlockMap(score.block_map, s));
  if (score.parents.present())
    FOVEA_RETURN_IF_ERROR(CheckParents(Facts("parents", score.parents), s));
  return Status();
}

}  // namespace

Status Invalid(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kInvalidArgument, format, arguments);
  va_end(arguments);
  return status;
}

Status Unsupported(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kUnsupported, format, arguments);
  va_end(arguments);
  return status;
}

Status TooSmall(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kOutOfMemory, format, arguments);
  va_end(arguments);
  return status;
}

Status CheckTensor(const TensorFacts& t, int rank) noexcept {
  if (t.rank != rank) return Invalid("%s.rank = %d, expected %d", t.name, t.rank, rank);
  if (!IsKnown(t.dtype))
    return Invalid("%s.dtype = %d, expected a known type (1 to 7)", t.name,
                   static_cast<int>(t.dtype));
  bool empty = false;
  for (int a = 0; a < rank; ++a) {
    if (t.shape[a] < 0)
      return Invalid("%s.shape[%d] = %" PRId64 ", expected 0 or greater", t.name, a, t.shape[a]);
    empty = empty || t.shape[a] == 0;
  }
  if (empty) return Status();
  // The bytes from the lowest to the highest element, and the elements, must both be countable.
  int64_t below = 0, above = std::max<int64_t>(SizeOf(t.dtype), 1), elements = 1;
  for (int a = 0; a < rank; ++a) {
    int64_t reach;
    if (__builtin_mul_overflow(t.shape[a] - 1, t.stride[a], &reach) ||
        __builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above)) {
      return Invalid("%s.stride[%d] = %" PRId64 " with %s.shape[%d] = %" PRId64
                     " overflows, expected a tensor of less than 2^63 bytes",
                     t.name, a, t.stride[a], t.name, a, t.shape[a]);
    }
    if (__builtin_mul_overflow(elements, t.shape[a], &elements)) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected fewer than 2^63 elements in all", t.name,
                     a, t.shape[a]);
    }
  }
  return Status();
}

Status CheckNotNull(const TensorFacts& t) noexcept {
  if (t.data != nullptr) return Status();
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] == 0) return Status();
  }
  return t.rank == 0
             ? Status()
             : Invalid(
                   "%s.data = null, expected the address of its elements (%s.shape[0] = %" PRId64
                   ")",
                   t.name, t.name, t.shape[0]);
}

Status CheckType(const TensorFacts& t, DType expected) noexcept {
  return t.dtype == expected
             ? Status()
             : Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), Name(expected));
}

Status CheckShape(const TensorFacts& t, int axis, int64_t expected, const char* source) noexcept {
  if (t.shape[axis] == expected) return Status();
  return Invalid("%s.shape[%d] = %" PRId64 ", expected %" PRId64 " (%s)", t.name, axis,
                 t.shape[axis], expected, source);
}

Status CheckProblem(const Problem& problem, Sizes* sizes) noexcept {
  const TensorFacts q = Facts("q", problem.q), k = Facts("k", problem.k), v = Facts("v", problem.v),
                    out = Facts("out", problem.out);
  for (const TensorFacts& t : {q, k, v, out}) FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));

  const bool packed_q = problem.cu_seqlens_q.present(), packed_k = problem.cu_seqlens_k.present();
  Sizes s = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
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
  const int64_t kv_batch = packed_k ? 1 : s.B;
  const char* const kv_batch_name = packed_k   ? "the batch is packed"
                                    : packed_q ? "B, the sequences of cu_seqlens_q"
                                               : "q.shape[0]; a shared batch is stride 0";
  FOVEA_RETURN_IF_ERROR(CheckShape(k, 0, kv_batch, kv_batch_name));
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 0, kv_batch, kv_batch_name));
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
  const int64_t out_shape[4] = {q.shape[0], s.Hq, q.shape[2], s.dv};
  static constexpr const char* kOutSource[4] = {"q.shape[0]", "q.shape[1]", "q.shape[2]",
                                                "v.shape[3]"};
  for (int a = 0; a < 4; ++a)
    FOVEA_RETURN_IF_ERROR(CheckShape(out, a, out_shape[a], kOutSource[a]));

  if (problem.lse.present()) {
    const TensorFacts lse = Facts("lse", problem.lse);
    FOVEA_RETURN_IF_ERROR(CheckTensor(lse, 3));
    FOVEA_RETURN_IF_ERROR(CheckType(lse, DType::kF32));
    for (int a = 0; a < 3; ++a)
      FOVEA_RETURN_IF_ERROR(CheckShape(lse, a, out_shape[a], kOutSource[a]));
  }
  for (const TensorFacts& matrix :
       {Facts("weights", problem.weights), Facts("scores", problem.scores)}) {
    if (matrix.rank == 0) continue;
    FOVEA_RETURN_IF_ERROR(CheckTensor(matrix, 4));
    FOVEA_RETURN_IF_ERROR(CheckType(matrix, DType::kF32));
    const FullAxes full = ScoreAxes(s);
    for (int a = 0; a < 4; ++a)
      FOVEA_RETURN_IF_ERROR(CheckShape(matrix, a, full.size[a], full.name[a]));
  }
  if (problem.score_stage < ScoreStage::kScaled || problem.score_stage > ScoreStage::kWeights) {
    return Invalid(
        "score_stage = %d, expected 0 (scaled), 1 (softcapped), 2 (masked) or 3 (weights)",
        static_cast<int>(problem.score_stage));
  }
  FOVEA_RETURN_IF_ERROR(CheckScore(problem.score, s));
  for (const TensorFacts& t : {q, k, v, out}) FOVEA_RETURN_IF_ERROR(CheckFloats(t));
  *sizes = s;
  return Status();
}

Status ReadLengths(const Problem& problem, const Sizes& sizes, int64_t b,
                   SequenceLengths* lengths) noexcept {
  const Score& score = problem.score;
  int64_t queries = sizes.Tq, keys = sizes.Tk;
  const char *queries_name = "q.shape[2]", *keys_name = "k.shape[2]";
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
  FOVEA_RETURN_IF_ERROR(
      ReadLength("q_lengths", score.q_lengths, b, queries, queries_name, &lengths->q_length));
  FOVEA_RETURN_IF_ERROR(
      ReadLength("kv_lengths", score.kv_lengths, b, keys, keys_name, &lengths->kv_length));
  if (score.query_offset.has_value()) {
    lengths->offset = *score.query_offset;
  } else if (score.query_offsets.present()) {
    lengths->offset = ReadInteger(score.query_offsets, b);
    if (!IsOffset(lengths->offset))
      return Invalid("query_offsets[%" PRId64 "] = %" PRId64 ", expected -2^62 to 2^62", b,
                     lengths->offset);
  } else {
    lengths->offset =
        score.causal == Causal::kBottomRight ? lengths->kv_length - lengths->q_length : 0;
  }
  return Status();
}

Status CheckData(const Problem& problem, const Sizes& sizes) noexcept {
  const Score& s = problem.score;
  for (const TensorFacts& t :
       {Facts("q", problem.q), Facts("k", problem.k), Facts("v", problem.v),
        Facts("out", problem.out), Facts("lse", problem.lse), Facts("weights", problem.weights),
        Facts("scores", problem.scores), Facts("bias", s.bias), Facts("mask", s.mask),
        Facts("block_map.visible", s.block_map.visible), Facts("parents", s.parents),
        Facts("alibi_slopes", s.alibi_slopes), Facts("sinks", s.sinks)}) {
    FOVEA_RETURN_IF_ERROR(CheckNotNull(t));
  }
  if (!s.parents.present()) return Status();
  for (int64_t b = 0; b < sizes.B; ++b) {
    SequenceLengths lengths;
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, sizes, b, &lengths));
    for (int64_t i = 0; i < lengths.q_length; ++i) {
      const int64_t parent = ReadInteger(s.parents, b, i);
      if (parent < -1 || parent >= i) {
        return Invalid("parents[%" PRId64 ",%" PRId64 "] = %" PRId64
                       ", expected -1 (a root) to %" PRId64 " (a query before it)",
                       b, i, parent, i - 1);
      }
    }
  }
  return Status();
}

Problem WithStridesInMemory(const Problem& problem) noexcept {
  Problem p = problem;
  const auto settle = [](auto& view) {
    const bool empty = std::count(view.shape, view.shape + view.rank, 0) > 0;
    for (int a = 0; a < view.rank; ++a) {
      if (!empty && view.shape[a] > 1) continue;
      view.stride[a] = a == view.rank - 1 ? std::max<int64_t>(SizeOf(view.dtype), 1) : 0;
    }
  };
  for (TensorView* view : {&p.q, &p.k, &p.v, &p.score.bias, &p.score.mask}) settle(*view);
  for (MutableTensorView* view : {&p.out, &p.weights, &p.scores}) settle(*view);
  return p;
}

}  // namespace fovea
