// Which keys a query sees by its position: causal, window and lengths as one interval. Shared by
// the library and its header-only edition; includes nothing of either.
#ifndef FOVEA_POSITIONS_H_
#define FOVEA_POSITIONS_H_

#include <cstdint>

namespace fovea {

// Whether queries see the keys behind their own position. Where Score gives an offset, both kinds
// mean j ≤ i + offset.
enum class Causal : int32_t {
  kNone = 0,     // every query sees every key
  kTopLeft = 1,  // query i sees keys j ≤ i
  // query i sees keys j ≤ i + kv_length − q_length of its sequence: the last query sees every key
  kBottomRight = 2,
};

// Query i sees keys i + offset − left … i + offset + right, both inclusive; −1 leaves that side
// open.
struct Window {
  int64_t left = -1;   // −1 or greater
  int64_t right = -1;  // −1 or greater
};

// Keys first ≤ j < end; none where first ≥ end.
struct KeyRange {
  int64_t first = 0;  // the first key
  int64_t end = 0;    // behind the last key
};

// The functions are always inlined: a program may hold units that are compiled for different
// instruction sets, and of any other inline function the linker would keep one for all of them.

// The sum, or the end of int64 that it lies beyond.
[[gnu::always_inline]] constexpr int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return !__builtin_add_overflow(a, b, &sum) ? sum : a < 0 ? INT64_MIN : INT64_MAX;
}

// The keys, 0 … length of them, that a query at `position` (i + offset) sees; 0 ≤ first ≤ end.
[[gnu::always_inline]] constexpr KeyRange VisibleKeys(int64_t position, int64_t length,
                                                      Causal causal, const Window& window) {
  int64_t end = length;
  if (causal != Causal::kNone) {
    const int64_t behind = SaturatingAdd(position, 1);
    end = behind < end ? behind : end;
  }
  if (window.right >= 0) {
    const int64_t behind = SaturatingAdd(SaturatingAdd(position, window.right), 1);
    end = behind < end ? behind : end;
  }
  if (end < 0) end = 0;
  int64_t first = 0;
  if (window.left >= 0) {
    first = SaturatingAdd(position, -window.left);
    first = first < 0 ? 0 : first > end ? end : first;
  }
  return {first, end};
}

// Those of `keys` (first ≤ end) that lie in `others` too; within `keys`, and first ≤ end.
[[gnu::always_inline]] constexpr KeyRange Intersection(const KeyRange& keys,
                                                       const KeyRange& others) {
  const int64_t end = others.end < keys.end ? others.end : keys.end;
  const int64_t first = others.first > keys.first ? others.first : keys.first;
  return first < end ? KeyRange{first, end} : KeyRange{keys.first, keys.first};
}

}  // namespace fovea

#endif  // FOVEA_POSITIONS_H_
