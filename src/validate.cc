#include "validate.h"

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

bool IsKnown(DType dtype) { return dtype >= DType::kF32 && dtype <= DType::kI64; }

// q, k, v and out hold floats; those narrower than f32 are legal but have no kernels yet.
Status CheckFloats(const TensorFacts& t) {
  switch (t.dtype) {
    case DType::kF32:
      return Status();
    case DType::kF16:
    case DType::kBF16:
      return Unsupported("%s.dtype = %s, this build computes f32", t.name, Name(t.dtype));
    default:
      return Invalid("%s.dtype = %s, expected f32, f16 or bf16", t.name, Name(t.dtype));
  }
}

// bias and mask: each axis 1 or full, aligned at the right.
Status CheckBroadcast(const TensorFacts& t, const Sizes& s) {
  if (t.rank < 1 || t.rank > kMaxRank) return Invalid("%s.rank = %d, expected 1 to 4", t.name, t.rank);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, t.rank));
  const int64_t full[kMaxRank] = {s.B, s.Hq, s.Tq, s.Tk};
  static constexpr const char* kNames[kMaxRank] = {"B", "Hq", "Tq", "Tk"};
  for (int a = 0; a < t.rank; ++a) {
    const int axis = kMaxRank - t.rank + a;
    if (t.shape[a] != 1 && t.shape[a] != full[axis]) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected 1 or %" PRId64 " (%s)", t.name, a, t.shape[a], full[axis], kNames[axis]);
    }
  }
  return Status();
}

Status CheckPerHead(const TensorFacts& t, const Sizes& s) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 1));
  FOVEA_RETURN_IF_ERROR(CheckType(t, DType::kF32));
  return CheckShape(t, 0, s.Hq, "q.shape[1]");
}

Status CheckPerSequence(const TensorFacts& t, const Sizes& s) {
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 1));
  if (t.dtype != DType::kI32 && t.dtype != DType::kI64) return Invalid("%s.dtype = %s, expected i32 or i64", t.name, Name(t.dtype));
  FOVEA_RETURN_IF_ERROR(CheckShape(t, 0, s.B, "q.shape[0]"));
  return CheckNotNull(t);  // read while planning
}

int64_t ReadInteger(const TensorView& view, int64_t index) {
  const char* p = static_cast<const char*>(view.data) + index * view.stride[0];
  if (view.dtype == DType::kI32) {
    int32_t x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  int64_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

Status ReadLength(const char* name, const TensorView& view, int64_t b, int64_t most, const char* most_name, int64_t* length) {
  *length = most;
  if (!view.present()) return Status();
  const int64_t given = ReadInteger(view, b);
  if (given < 0 || given > most) {
    return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64 " (%s)", name, b, given, most, most_name);
  }
  *length = given;
  return Status();
}

// Far beyond any key, and small enough for i + offset not to overflow.
constexpr int64_t kMostOffset = int64_t{1} << 62;

bool IsOffset(int64_t offset) { return offset >= -kMostOffset && offset <= kMostOffset; }

Status CheckScore(const Score& score, const Sizes& s) {
  if (score.scale.has_value() && !std::isfinite(*score.scale))
    return Invalid("scale = %g, expected a finite number", static_cast<double>(*score.scale));
  if (!(score.softcap >= 0.0f) || !std::isfinite(score.softcap)) {
    return Invalid("softcap = %g, expected a finite number, 0 or greater", static_cast<double>(score.softcap));
  }
  if (score.causal < Causal::kNone || score.causal > Causal::kBottomRight) {
    return Invalid("causal = %d, expected 0 (none), 1 (top-left) or 2 (bottom-right)", static_cast<int>(score.causal));
  }
  if (score.window.left < -1) return Invalid("window.left = %" PRId64 ", expected -1 (unlimited) or greater", score.window.left);
  if (score.window.right < -1) return Invalid("window.right = %" PRId64 ", expected -1 (unlimited) or greater", score.window.right);
  if (score.query_offset.has_value() && score.query_offsets.present()) {
    return Invalid("query_offset = %" PRId64 " and query_offsets (rank %d) are both given, expected one of them", *score.query_offset,
                   score.query_offsets.rank);
  }
  if (score.query_offset.has_value() && !IsOffset(*score.query_offset)) {
    return Invalid("query_offset = %" PRId64 ", expected -2^62 to 2^62", *score.query_offset);
  }
  if (score.query_offsets.present()) FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("query_offsets", score.query_offsets), s));
  if (score.q_lengths.present()) FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("q_lengths", score.q_lengths), s));
  if (score.kv_lengths.present()) FOVEA_RETURN_IF_ERROR(CheckPerSequence(Facts("kv_lengths", score.kv_lengths), s));
  if (score.alibi_slopes.present()) FOVEA_RETURN_IF_ERROR(CheckPerHead(Facts("alibi_slopes", score.alibi_slopes), s));
  if (score.sinks.present()) FOVEA_RETURN_IF_ERROR(CheckPerHead(Facts("sinks", score.sinks), s));
  if (score.bias.present()) {
    FOVEA_RETURN_IF_ERROR(CheckBroadcast(Facts("bias", score.bias), s));
    if (score.bias.dtype != DType::kF32 && score.bias.dtype != DType::kF16 && score.bias.dtype != DType::kBF16) {
      return Invalid("bias.dtype = %s, expected f32, f16 or bf16", Name(score.bias.dtype));
    }
  }
  if (score.mask.present()) {
    FOVEA_RETURN_IF_ERROR(CheckBroadcast(Facts("mask", score.mask), s));
    FOVEA_RETURN_IF_ERROR(CheckType(Facts("mask", score.mask), DType::kBool));
  }
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
  if (!IsKnown(t.dtype)) return Invalid("%s.dtype = %d, expected a known type (1 to 6)", t.name, static_cast<int>(t.dtype));
  bool empty = false;
  for (int a = 0; a < rank; ++a) {
    if (t.shape[a] < 0) return Invalid("%s.shape[%d] = %" PRId64 ", expected 0 or greater", t.name, a, t.shape[a]);
    empty = empty || t.shape[a] == 0;
  }
  if (empty) return Status();
  // The bytes from the lowest to the highest element, and the elements, must both be countable.
  int64_t below = 0, above = SizeOf(t.dtype), elements = 1;
  for (int a = 0; a < rank; ++a) {
    int64_t reach;
    if (__builtin_mul_overflow(t.shape[a] - 1, t.stride[a], &reach) ||
        __builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above)) {
      return Invalid("%s.stride[%d] = %" PRId64 " with %s.shape[%d] = %" PRId64 " overflows, expected a tensor of less than 2^63 bytes",
                     t.name, a, t.stride[a], t.name, a, t.shape[a]);
    }
    if (__builtin_mul_overflow(elements, t.shape[a], &elements)) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected fewer than 2^63 elements in all", t.name, a, t.shape[a]);
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
             : Invalid("%s.data = null, expected the address of its elements (%s.shape[0] = %" PRId64 ")", t.name, t.name, t.shape[0]);
}

Status CheckType(const TensorFacts& t, DType expected) noexcept {
  return t.dtype == expected ? Status() : Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), Name(expected));
}

Status CheckShape(const TensorFacts& t, int axis, int64_t expected, const char* source) noexcept {
  if (t.shape[axis] == expected) return Status();
  return Invalid("%s.shape[%d] = %" PRId64 ", expected %" PRId64 " (%s)", t.name, axis, t.shape[axis], expected, source);
}

Status CheckProblem(const Problem& problem, Sizes* sizes) noexcept {
  const TensorFacts q = Facts("q", problem.q), k = Facts("k", problem.k), v = Facts("v", problem.v), out = Facts("out", problem.out);
  for (const TensorFacts& t : {q, k, v, out}) FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));

  const Sizes s = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  FOVEA_RETURN_IF_ERROR(CheckShape(k, 0, s.B, "q.shape[0]; a shared batch is stride 0"));
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 0, s.B, "q.shape[0]; a shared batch is stride 0"));
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 1, s.Hkv, "k.shape[1]"));
  FOVEA_RETURN_IF_ERROR(CheckShape(v, 2, s.Tk, "k.shape[2]"));
  FOVEA_RETURN_IF_ERROR(CheckShape(k, 3, s.dk, "q.shape[3]"));
  if (s.dk < 1) return Invalid("q.shape[3] = %" PRId64 ", expected 1 or greater", s.dk);
  if (s.dv < 1) return Invalid("v.shape[3] = %" PRId64 ", expected 1 or greater", s.dv);
  if (s.B > 0 && s.Tq > 0) {
    if (s.Hq < 1) return Invalid("q.shape[1] = %" PRId64 ", expected 1 or greater (q.shape[2] = %" PRId64 " queries)", s.Hq, s.Tq);
    if (s.Hkv < 1) return Invalid("k.shape[1] = %" PRId64 ", expected 1 or greater (q.shape[1] = %" PRId64 ")", s.Hkv, s.Hq);
  }
  if (s.Hkv > 0 && s.Hq % s.Hkv != 0)
    return Invalid("q.shape[1] = %" PRId64 ", expected a multiple of %" PRId64 " (k.shape[1])", s.Hq, s.Hkv);
  const int64_t out_shape[4] = {s.B, s.Hq, s.Tq, s.dv};
  static constexpr const char* kOutSource[4] = {"q.shape[0]", "q.shape[1]", "q.shape[2]", "v.shape[3]"};
  for (int a = 0; a < 4; ++a) FOVEA_RETURN_IF_ERROR(CheckShape(out, a, out_shape[a], kOutSource[a]));

  if (problem.lse.present()) {
    const TensorFacts lse = Facts("lse", problem.lse);
    FOVEA_RETURN_IF_ERROR(CheckTensor(lse, 3));
    FOVEA_RETURN_IF_ERROR(CheckType(lse, DType::kF32));
    for (int a = 0; a < 3; ++a) FOVEA_RETURN_IF_ERROR(CheckShape(lse, a, out_shape[a], kOutSource[a]));
  }
  if (problem.weights.present()) {
    const TensorFacts weights = Facts("weights", problem.weights);
    FOVEA_RETURN_IF_ERROR(CheckTensor(weights, 4));
    FOVEA_RETURN_IF_ERROR(CheckType(weights, DType::kF32));
    for (int a = 0; a < 3; ++a) FOVEA_RETURN_IF_ERROR(CheckShape(weights, a, out_shape[a], kOutSource[a]));
    FOVEA_RETURN_IF_ERROR(CheckShape(weights, 3, s.Tk, "k.shape[2]"));
  }
  FOVEA_RETURN_IF_ERROR(CheckScore(problem.score, s));
  // Last, so that a problem that is wrong in itself is never called unsupported.
  for (const TensorFacts& t : {q, k, v, out}) {
    if (Status status = CheckFloats(t); !status.ok() && status.code() == StatusCode::kInvalidArgument) return status;
  }
  for (const TensorFacts& t : {q, k, v, out}) FOVEA_RETURN_IF_ERROR(CheckFloats(t));
  *sizes = s;
  return Status();
}

Status ReadLengths(const Problem& problem, const Sizes& sizes, int64_t b, SequenceLengths* lengths) noexcept {
  const Score& score = problem.score;
  FOVEA_RETURN_IF_ERROR(ReadLength("q_lengths", score.q_lengths, b, sizes.Tq, "q.shape[2]", &lengths->q_length));
  FOVEA_RETURN_IF_ERROR(ReadLength("kv_lengths", score.kv_lengths, b, sizes.Tk, "k.shape[2]", &lengths->kv_length));
  if (score.query_offset.has_value()) {
    lengths->offset = *score.query_offset;
  } else if (score.query_offsets.present()) {
    lengths->offset = ReadInteger(score.query_offsets, b);
    if (!IsOffset(lengths->offset)) return Invalid("query_offsets[%" PRId64 "] = %" PRId64 ", expected -2^62 to 2^62", b, lengths->offset);
  } else {
    lengths->offset = score.causal == Causal::kBottomRight ? lengths->kv_length - lengths->q_length : 0;
  }
  return Status();
}

Status CheckData(const Problem& problem) noexcept {
  const Score& s = problem.score;
  for (const TensorFacts& t : {Facts("q", problem.q), Facts("k", problem.k), Facts("v", problem.v), Facts("out", problem.out),
                               Facts("lse", problem.lse), Facts("weights", problem.weights), Facts("bias", s.bias), Facts("mask", s.mask),
                               Facts("alibi_slopes", s.alibi_slopes), Facts("sinks", s.sinks)}) {
    FOVEA_RETURN_IF_ERROR(CheckNotNull(t));
  }
  return Status();
}

}  // namespace fovea
