// What can be wrong with a cache, with new tokens and with where they go. Everything is checked
// before anything is written.
#include <cinttypes>

#include "append.h"
#include "quantised.h"

namespace fovea {
namespace {

// K or V of a cache, and of the new tokens, by their names in messages.
struct Names {
  const char *codes, *scale, *zero, *scale_fixed, *group_stride, *tokens;
};
constexpr Names kK = {
    "cache.k", "cache.k_scale", "cache.k_zero", "cache.k_scale_fixed", "cache.k_group_stride",
    "tokens.k"};
constexpr Names kV = {
    "cache.v", "cache.v_scale", "cache.v_zero", "cache.v_scale_fixed", "cache.v_group_stride",
    "tokens.v"};

struct Stored {
  const Names& names;
  const MutableTensorView &codes, &scale, &zero;
  bool fixed;
  int64_t group_stride;

  DType type() const { return codes.dtype; }
};

// ---- what the cache holds ----

Status CheckCodes(const Stored& s) {
  const TensorFacts t = Facts(s.names.codes, s.codes);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));
  if (!MayBeCached(t.dtype)) {
    return Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), kFloatsOrCodes.words);
  }
  if (kOnlyRead.Has(t.dtype))
    return Unsupported("%s.dtype = %s, expected a type that is written too", t.name, Name(t.dtype));
  if (t.shape[3] < 1) return Invalid("%s.shape[3] = 0, expected 1 or greater", t.name);
  if (IsQuantised(t.dtype)) FOVEA_RETURN_IF_ERROR(CheckUnits(t));
  return CheckNotNull(t);
}

// The same for all tokens.
bool IsShared(const TensorFacts& t, int axis) { return t.shape[axis] == 1 || t.stride[axis] == 0; }

// A scale, or a zero, of which every group of every row has its own.
Status CheckWritten(const Stored& s, const TensorFacts& t) {
  if (t.rank == 0) {
    return Invalid("%s is absent, expected f32 [pages, Hkv, P, groups] (%s)", t.name,
                   Name(s.type()));
  }
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));
  if (t.dtype != DType::kF32) {
    return Unsupported("%s.dtype = %s, expected f32 (other scales are only read)", t.name,
                       Name(t.dtype));
  }
  for (int axis : {0, 1, 2}) {
    const int64_t size = s.codes.shape[axis];
    if (t.shape[axis] == size && (size <= 1 || t.stride[axis] != 0)) continue;
    if (t.shape[axis] <= size) {
      return Unsupported("%s.shape[%d] = %" PRId64 " (stride %" PRId64 "), expected %" PRId64
                         " of their own: what several rows share is only read",
                         t.name, axis, t.shape[axis], t.stride[axis], size);
    }
    FOVEA_RETURN_IF_ERROR(CheckShape(t, axis, size, s.names.codes));
  }
  return CheckNotNull(t);
}

// Scales that are the caller's.
Status CheckFixed(const Stored& s) {
  const TensorFacts t = Facts(s.names.scale, s.scale);
  if (s.zero.present())
    return Unsupported(
        "%s is given, expected none: codes with a zero and fixed scales are only read",
        s.names.zero);
  if (t.rank == 0) {
    if (IsF8(s.type())) return Status();
    return Invalid("%s is absent, expected the fixed scales of %s", t.name, Name(s.type()));
  }
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));
  if (!kFloats.Has(t.dtype)) {
    return (t.dtype == DType::kF32Z4 ? Unsupported : Invalid)("%s.dtype = %s, expected %s", t.name,
                                                              Name(t.dtype), kFloats.words);
  }
  for (int axis : {0, 2}) {
    if (t.shape[axis] >= 1 && IsShared(t, axis)) continue;
    return Unsupported("%s.shape[%d] = %" PRId64
                       ", expected 1: fixed scales are those of all tokens",
                       t.name, axis, t.shape[axis]);
  }
  return CheckNotNull(t);
}

// Axes that may have fewer elements, each of which then serves several.
Status CheckGroups(const Stored& s, const TensorFacts& t) {
  for (int axis : {1, 3}) {
    if (t.rank == 0 || (t.shape[axis] >= 1 && t.shape[axis] <= s.codes.shape[axis])) continue;
    if (axis == 1 && t.shape[axis] == 0 && s.codes.shape[axis] == 0) continue;
    return Invalid("%s.shape[%d] = %" PRId64 ", expected 1 to %" PRId64 " (%s.shape[%d])", t.name,
                   axis, t.shape[axis], s.codes.shape[axis], s.names.codes, axis);
  }
  return Status();
}

// Groups of channels that lie apart, scales between them: as long as each other, and whole units.
Status CheckGroupStride(const Stored& s) {
  constexpr int64_t kMost = int64_t{1} << 40;  // as attention has it
  const int64_t d = s.codes.shape[3], groups = s.scale.shape[3], stride = s.group_stride;
  if (stride == 0) return Status();
  if (!HasScaleViews(s.type()))
    return Invalid("%s = %" PRId64 ", expected 0 (%s.dtype = %s)", s.names.group_stride, stride,
                   s.names.codes, Name(s.type()));
  if (stride < -kMost || stride > kMost)
    return Invalid("%s = %" PRId64 ", expected -2^40 to 2^40", s.names.group_stride, stride);
  if (s.fixed || IsF8(s.type()))
    return Unsupported("%s = %" PRId64
                       ", expected 0: groups apart under fixed scales are only read",
                       s.names.group_stride, stride);
  if (d % groups == 0 && d / groups % UnitElements(s.type()) == 0) return Status();
  return Unsupported("%s = %" PRId64 " with %" PRId64
                     " groups, expected equal groups of whole units of %s.shape[3] = %" PRId64,
                     s.names.group_stride, stride, groups, s.names.codes, d);
}

Status CheckScales(const Stored& s) {
  const TensorFacts scale = Facts(s.names.scale, s.scale), zero = Facts(s.names.zero, s.zero);
  if (!HasScaleViews(s.type())) {
    for (const TensorFacts& t : {scale, zero}) {
      if (t.rank != 0)
        return Invalid("%s is given, expected none (%s.dtype = %s)", t.name, s.names.codes,
                       Name(s.type()));
    }
    if (s.fixed)
      return Invalid("%s = true, expected false (%s.dtype = %s)", s.names.scale_fixed,
                     s.names.codes, Name(s.type()));
    return Status();
  }
  if (s.fixed || IsF8(s.type())) {
    if (!IsF8(s.type()) && !MayHaveFixedScale(s.type())) {
      return Unsupported("%s = true, expected false: %s under fixed scales is only read",
                         s.names.scale_fixed, Name(s.type()));
    }
    FOVEA_RETURN_IF_ERROR(CheckFixed(s));
    return CheckGroups(s, scale);
  }
  if (!HasWrittenScale(s.type())) {
    return Unsupported("%s.dtype = %s, expected %s, or %s = true", s.names.codes, Name(s.type()),
                       kWithScale.words, s.names.scale_fixed);
  }
  if (!HasWrittenZero(s.type()) && zero.rank != 0)
    return Unsupported("%s is given, expected none: %s with a zero is only read", zero.name,
                       Name(s.type()));
  FOVEA_RETURN_IF_ERROR(CheckWritten(s, scale));
  FOVEA_RETURN_IF_ERROR(CheckGroups(s, scale));
  if (!HasWrittenZero(s.type())) return Status();
  FOVEA_RETURN_IF_ERROR(CheckWritten(s, zero));
  return CheckShape(zero, 3, scale.shape[3], scale.name);
}

Status CheckStored(const Stored& s) {
  FOVEA_RETURN_IF_ERROR(CheckCodes(s));
  FOVEA_RETURN_IF_ERROR(CheckScales(s));
  return CheckGroupStride(s);
}

Status CheckCache(const KVCache& cache) {
  FOVEA_RETURN_IF_ERROR(CheckStored(
      {kK, cache.k, cache.k_scale, cache.k_zero, cache.k_scale_fixed, cache.k_group_stride}));
  const Stored v = {
      kV, cache.v, cache.v_scale, cache.v_zero, cache.v_scale_fixed, cache.v_group_stride};
  if (!cache.v.present()) {
    if (cache.v_scale.present() || cache.v_zero.present())
      return Invalid("cache.v_scale or cache.v_zero is given, expected none (cache.v is absent)");
    return Status();
  }
  FOVEA_RETURN_IF_ERROR(CheckStored(v));
  for (int axis : {0, 1, 2})
    FOVEA_RETURN_IF_ERROR(
        CheckShape(Facts(kV.codes, cache.v), axis, cache.k.shape[axis], kK.codes));
  return Status();
}

// ---- what is new ----

Status CheckNew(const Names& names, const TensorView& view, const MutableTensorView& codes) {
  const TensorFacts t = Facts(names.tokens, view);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, 4));
  if (!kFloats.Has(t.dtype))
    return Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), kFloats.words);
  FOVEA_RETURN_IF_ERROR(CheckShape(t, 1, codes.shape[1], names.codes));
  FOVEA_RETURN_IF_ERROR(CheckShape(t, 3, codes.shape[3], names.codes));
  return CheckNotNull(t);
}

Status CheckIntegers(const char* name, const TensorView& view, int rank, int64_t size) {
  const TensorFacts t = Facts(name, view);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, rank));
  if (!kIntegers.Has(t.dtype))
    return Invalid("%s.dtype = %s, expected %s", name, Name(t.dtype), kIntegers.words);
  if (size >= 0) FOVEA_RETURN_IF_ERROR(CheckShape(t, 0, size, "of the new tokens"));
  return CheckNotNull(t);
}

// Where something begins, and at last where it ends: rising, from 0 to `most`.
Status CheckRising(const char* name, const TensorView& view, int64_t most) {
  int64_t before = 0;
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    const int64_t x = ReadInteger(view, b);
    if (x < before || x > most) {
      return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected %" PRId64 " to %" PRId64, name, b, x,
                     before, most);
    }
    before = x;
  }
  return Status();
}

Status CheckTokens(const KVCache& cache, const NewTokens& tokens) {
  FOVEA_RETURN_IF_ERROR(CheckNew(kK, tokens.k, cache.k));
  if (tokens.v.present() != cache.v.present()) {
    return Invalid("tokens.v is %s, expected %s (as cache.v)",
                   tokens.v.present() ? "given" : "absent",
                   cache.v.present() ? "new values" : "none");
  }
  if (tokens.v.present()) {
    FOVEA_RETURN_IF_ERROR(CheckNew(kV, tokens.v, cache.v));
    for (int axis : {0, 2})
      FOVEA_RETURN_IF_ERROR(
          CheckShape(Facts(kV.tokens, tokens.v), axis, tokens.k.shape[axis], kK.tokens));
  }
  if (tokens.cu_seqlens.present()) {
    FOVEA_RETURN_IF_ERROR(CheckShape(Facts(kK.tokens, tokens.k), 0, 1, "the tokens are packed"));
    FOVEA_RETURN_IF_ERROR(CheckIntegers("tokens.cu_seqlens", tokens.cu_seqlens, 1, -1));
    if (tokens.cu_seqlens.shape[0] < 1)
      return Invalid("tokens.cu_seqlens.shape[0] = 0, expected 1 or greater (B + 1)");
    FOVEA_RETURN_IF_ERROR(CheckRising("tokens.cu_seqlens", tokens.cu_seqlens, tokens.k.shape[2]));
  }
  const int64_t B = SequencesOf(tokens);
  if (tokens.past_lengths.present())
    FOVEA_RETURN_IF_ERROR(CheckIntegers("tokens.past_lengths", tokens.past_lengths, 1, B));
  if (!tokens.lengths.present()) return Status();
  FOVEA_RETURN_IF_ERROR(CheckIntegers("tokens.lengths", tokens.lengths, 1, B));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = ReadInteger(tokens.lengths, b), most = SpanOf(tokens, b).n;
    if (n < 0 || n > most)
      return Invalid("tokens.lengths[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64, b, n,
                     most);
  }
  return Status();
}

// ---- where it goes ----

Status CheckSlots(const KVCache& cache, const NewTokens& tokens) {
  const bool packed = tokens.cu_seqlens.present();
  const TensorFacts t = Facts("tokens.slots", tokens.slots);
  FOVEA_RETURN_IF_ERROR(CheckIntegers(t.name, tokens.slots, packed ? 1 : 2, -1));
  for (int axis = 0; axis < t.rank; ++axis)
    FOVEA_RETURN_IF_ERROR(
        CheckShape(t, axis, tokens.k.shape[packed || axis == 1 ? 2 : 0], kK.tokens));
  if (tokens.past_lengths.present() || tokens.pages.present())
    return Invalid("tokens.slots is given, expected no tokens.past_lengths and tokens.pages then");
  const int64_t rows = cache.k.shape[0] * cache.k.shape[2];
  for (int64_t b = 0; b < SequencesOf(tokens); ++b) {
    const TokenSpan span = SpanOf(tokens, b);
    for (int64_t i = 0; i < LengthOf(tokens, span, b); ++i) {
      const int64_t slot = SlotOf(tokens, span, b, i);
      if (slot < rows) continue;
      return Invalid("tokens.slots[%" PRId64 ", %" PRId64 "] = %" PRId64
                     ", expected less than %" PRId64 " (rows of the cache)",
                     b, i, slot, rows);
    }
  }
  return Status();
}

Status CheckTable(const KVCache& cache, const NewTokens& tokens) {
  const PageTable& pages = tokens.pages;
  const bool sparse = pages.begins.present();
  const int64_t B = SequencesOf(tokens);
  FOVEA_RETURN_IF_ERROR(
      CheckIntegers("tokens.pages.table", pages.table, sparse ? 1 : 2, sparse ? -1 : B));
  if (sparse) {
    FOVEA_RETURN_IF_ERROR(CheckIntegers("tokens.pages.begins", pages.begins, 1, B + 1));
    FOVEA_RETURN_IF_ERROR(CheckRising("tokens.pages.begins", pages.begins, pages.table.shape[0]));
  }
  if (pages.keys < 0)
    return Invalid("tokens.pages.keys = %" PRId64 ", expected 0 or greater", pages.keys);
  if (cache.ring) return Invalid("tokens.pages is given, expected none (cache.ring = true)");
  return Status();
}

// Keys that sequence b has room for.
int64_t RoomOf(const KVCache& cache, const NewTokens& tokens, int64_t b) {
  const PageTable& pages = tokens.pages;
  const int64_t P = cache.k.shape[2];
  if (cache.ring) return INT64_MAX;
  if (!pages.present()) return P;
  const int64_t numbers = pages.begins.present()
                              ? ReadInteger(pages.begins, b + 1) - ReadInteger(pages.begins, b)
                              : pages.table.shape[1];
  int64_t room;
  if (__builtin_mul_overflow(numbers, P, &room)) room = INT64_MAX;
  return pages.keys == 0 ? room : std::min(room, pages.keys);
}

Status CheckPositions(const KVCache& cache, const NewTokens& tokens) {
  constexpr int64_t kMostPast = int64_t{1} << 62;
  const int64_t B = SequencesOf(tokens), P = cache.k.shape[2];
  if (tokens.pages.present()) {
    FOVEA_RETURN_IF_ERROR(CheckTable(cache, tokens));
  } else if (tokens.pages.begins.present()) {
    return Invalid("tokens.pages.begins is given, expected tokens.pages.table then");
  } else {
    FOVEA_RETURN_IF_ERROR(
        CheckShape(Facts(kK.codes, cache.k), 0, B, "sequences of the new tokens"));
  }
  for (int64_t b = 0; b < B; ++b) {
    const int64_t past = PastOf(tokens, b), n = LengthOf(tokens, SpanOf(tokens, b), b);
    const int64_t room = RoomOf(cache, tokens, b);
    if (past < 0 || past > kMostPast)
      return Invalid("tokens.past_lengths[%" PRId64 "] = %" PRId64 ", expected 0 to 2^62", b, past);
    if (n == 0) continue;
    if (P == 0 || past + n > room) {
      return Invalid("tokens.past_lengths[%" PRId64 "] = %" PRId64 " with %" PRId64
                     " new tokens, expected at most %" PRId64 " together (room of the cache)",
                     b, past, n, P == 0 ? 0 : room);
    }
    if (!tokens.pages.present()) continue;
    for (int64_t page = past / P; page <= (past + n - 1) / P; ++page) {
      const int64_t number = PageOf(tokens.pages, b, page);
      if (number >= 0 && number < cache.k.shape[0]) continue;
      return Invalid("tokens.pages.table: page %" PRId64 " of sequence %" PRId64 " = %" PRId64
                     ", expected 0 to %" PRId64 " (cache.k.shape[0])",
                     page, b, number, cache.k.shape[0] - 1);
    }
  }
  return Status();
}

}  // namespace

Status CheckAppend(const KVCache& cache, const NewTokens& tokens, int64_t* count) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckCache(cache));
  FOVEA_RETURN_IF_ERROR(CheckTokens(cache, tokens));
  FOVEA_RETURN_IF_ERROR(tokens.slots.present() ? CheckSlots(cache, tokens)
                                               : CheckPositions(cache, tokens));
  *count = tokens.cu_seqlens.present() ? tokens.k.shape[2] : tokens.k.shape[0] * tokens.k.shape[2];
  return Status();
}

}  // namespace fovea
