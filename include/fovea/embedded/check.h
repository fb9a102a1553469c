// Every check of a call, once: behind it nothing can fail.
#ifndef FOVEA_EMBEDDED_CHECK_H_
#define FOVEA_EMBEDDED_CHECK_H_

#include "fovea/embedded/load.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

inline const char* ByteOf(const void* p) { return static_cast<const char*>(p); }
inline char* ByteOf(void* p) { return static_cast<char*>(p); }

// The keys and queries of one sequence. Here and in all that follows keys are counted from the
// oldest one, which has position `first`, and so is `offset`. Key j lies in row first_row + j, or
// that minus `rows`.
struct Sequence {
  int64_t q_length, kv_length, offset, first, first_row, rows;
};

inline Sequence SequenceOf(const Problem& p, int64_t b) {
  Sequence s;
  s.q_length = p.q_lengths != nullptr ? p.q_lengths[b] : p.Tq;
  s.kv_length = p.rings != nullptr        ? p.rings[b].count()
                : p.kv_lengths != nullptr ? p.kv_lengths[b]
                                          : p.Tk;
  s.first = p.rings != nullptr ? p.rings[b].first() : 0;
  s.first_row = s.first > 0 && p.Tk > 0 ? s.first % p.Tk : 0;
  s.rows = p.Tk;
  if (p.query_offsets != nullptr) {
    s.offset = p.query_offsets[b];
  } else if (p.query_offset != kNoOffset) {
    s.offset = p.query_offset;
  } else {
    s.offset = p.causal == Causal::kBottomRight ? s.first + s.kv_length - s.q_length : 0;
  }
  s.offset -= s.first;
  return s;
}

inline bool IsType(Type type) { return type == Type::kF32 || type == Type::kF16; }
inline bool IsOffset(int64_t offset) { return offset >= -kMostOffset && offset <= kMostOffset; }

// Whether all sizes multiply and all strides reach to less than 2⁶³ bytes.
template <class View>
bool IsCountable(const View& view, int64_t heads, int64_t rows, int64_t channels, int64_t B) {
  const int64_t shape[4] = {B, heads, rows, channels};
  int64_t below = 0, above = 4, elements = 1;
  for (int a = 0; a < 4; ++a) {
    if (shape[a] == 0) return true;
  }
  for (int a = 0; a < 4; ++a) {
    int64_t reach;
    if (__builtin_mul_overflow(shape[a] - 1, view.stride[a], &reach) ||
        __builtin_mul_overflow(elements, shape[a], &elements))
      return false;
    int64_t& side = reach < 0 ? below : above;
    if (__builtin_add_overflow(side, reach, &side)) return false;
  }
  return true;
}

inline Error CheckSequences(const Problem& p) {
  for (int64_t b = 0; b < p.B; ++b) {
    if (p.query_offsets != nullptr && !IsOffset(p.query_offsets[b])) return Error::kOffset;
    if (p.q_lengths != nullptr && (p.q_lengths[b] < 0 || p.q_lengths[b] > p.Tq))
      return Error::kLength;
    if (p.kv_lengths != nullptr && (p.kv_lengths[b] < 0 || p.kv_lengths[b] > p.Tk))
      return Error::kLength;
    if (p.rings == nullptr) continue;
    const Ring& ring = p.rings[b];
    if (ring.capacity != p.Tk || ring.length < 0 || ring.length > kMostOffset) return Error::kRing;
  }
  return Error::kOk;
}

inline Error Check(const Problem& p) {
  for (const int64_t size : {p.B, p.Hq, p.Hkv, p.Tq, p.Tk}) {
    if (size < 0) return Error::kSize;
  }
  if (p.dk < 1 || p.dv < 1) return Error::kSize;
  if (p.B > 0 && p.Tq > 0 && (p.Hq == 0 || p.Hkv == 0)) return Error::kSize;
  if (p.Hkv > 0 && p.Hq % p.Hkv != 0) return Error::kHeads;
  if (p.dk > kMostChannels || p.dv > kMostChannels) return Error::kUnsupported;
  if (!IsType(p.q.type) || !IsType(p.k.type) || !IsType(p.v.type) || !IsType(p.out.type))
    return Error::kType;
  if (p.lse.data != nullptr && p.lse.type != Type::kF32) return Error::kType;
  if (p.bias.data != nullptr && !IsType(p.bias.type)) return Error::kType;
  if (!IsCountable(p.q, p.Hq, p.Tq, p.dk, p.B) || !IsCountable(p.k, p.Hkv, p.Tk, p.dk, p.B) ||
      !IsCountable(p.v, p.Hkv, p.Tk, p.dv, p.B) || !IsCountable(p.out, p.Hq, p.Tq, p.dv, p.B) ||
      (p.lse.data != nullptr && !IsCountable(p.lse, p.Hq, p.Tq, 1, p.B)) ||
      (p.bias.data != nullptr && !IsCountable(p.bias, p.Hq, p.Tq, p.Tk, p.B))) {
    return Error::kStride;
  }
  if (p.key_ranges.data != nullptr) {
    const int64_t* const stride = p.key_ranges.stride;
    const Tensor ranges = {p.key_ranges.data, Type::kF32, {stride[0], 0, stride[1], stride[2]}};
    if (!IsCountable(ranges, 1, p.Tq, 2, p.B)) return Error::kStride;
  }
  if (p.has_scale && !IsFinite(static_cast<double>(p.scale))) return Error::kScale;
  if (p.causal < Causal::kNone || p.causal > Causal::kBottomRight) return Error::kCausal;
  if (p.window_left < -1 || p.window_right < -1) return Error::kWindow;
  if (p.query_offset != kNoOffset && (!IsOffset(p.query_offset) || p.query_offsets != nullptr))
    return Error::kOffset;
  if (p.rings != nullptr && p.kv_lengths != nullptr) return Error::kRing;
  if (const Error error = CheckSequences(p); error != Error::kOk) return error;
  if (p.B == 0 || p.Hq == 0) return Error::kOk;
  if (p.Tq > 0 && (p.q.data == nullptr || p.out.data == nullptr)) return Error::kNullData;
  if (p.Tk > 0 && (p.k.data == nullptr || p.v.data == nullptr)) return Error::kNullData;
  return Error::kOk;
}

// Gives axes of at most one element a stride of 0, the last one that of dense elements: nothing
// lies at their strides, so that any number is legal, but a step of it may leave the address space.
inline void PutStridesIntoMemory(Problem& p) {
  const auto settle = [&p](auto& view, int64_t heads, int64_t rows, int64_t channels) {
    const int64_t shape[4] = {p.B, heads, rows, channels};
    for (int a = 0; a < 4; ++a) {
      if (shape[a] <= 1) view.stride[a] = a == 3 ? SizeOf(view.type) : 0;
    }
  };
  settle(p.q, p.Hq, p.Tq, p.dk);
  settle(p.k, p.Hkv, p.Tk, p.dk);
  settle(p.v, p.Hkv, p.Tk, p.dv);
  settle(p.out, p.Hq, p.Tq, p.dv);
  if (p.bias.data != nullptr) settle(p.bias, p.Hq, p.Tq, p.Tk);
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_CHECK_H_
