#include "positions.h"

#include <algorithm>
#include <limits>

namespace fovea {
namespace {

// −a that saturates.
int64_t Negated(int64_t a) {
  return a == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : -a;
}

// Σ over begin ≤ i < end of clamp(i + shift, 0, limit): a ramp between two flat parts, in closed
// form.
double SumOfRamp(int64_t begin, int64_t end, int64_t shift, int64_t limit) {
  // from here i + shift ≥ 1
  const int64_t rise = std::clamp(SaturatingAdd(1, Negated(shift)), begin, end);
  // from here i + shift ≥ limit
  const int64_t flat = std::clamp(SaturatingAdd(limit, Negated(shift)), rise, end);
  const double n = static_cast<double>(flat - rise);
  double sum = static_cast<double>(end - flat) * static_cast<double>(limit);
  if (flat > rise)
    sum += n * (static_cast<double>(rise) + static_cast<double>(shift)) + n * (n - 1) / 2;
  return sum;
}

}  // namespace

KeyRange VisibleKeys(const SequenceLengths& lengths, Causal causal, const Window& window,
                     int64_t i) noexcept {
  const KeyRange& resident = lengths.keys;
  if (i >= lengths.q_length) return {resident.first, resident.first};
  const KeyRange keys = VisibleKeys(SaturatingAdd(i, lengths.offset), resident.end, causal, window);
  return {std::max(keys.first, resident.first), std::max(keys.end, resident.first)};
}

double VisiblePairs(const SequenceLengths& lengths, Causal causal, const Window& window,
                    int64_t begin, int64_t end) noexcept {
  end = std::min(end, lengths.q_length);
  if (begin >= end) return 0;
  // Counted from the first resident key, first = clamp(position − left, 0, kv) and end =
  // clamp(position + reach, 0, kv) are ramps in i, and first ≤ end since −left ≤ reach: the sum of
  // the lengths is the difference of two sums.
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const int64_t kv = lengths.kv_length();
  const int64_t offset = SaturatingAdd(lengths.offset, -lengths.keys.first);
  int64_t reach = causal != Causal::kNone ? 1 : kUnlimited;
  if (window.right >= 0) reach = std::min(reach, SaturatingAdd(window.right, 1));
  double pairs = reach == kUnlimited ? static_cast<double>(end - begin) * static_cast<double>(kv)
                                     : SumOfRamp(begin, end, SaturatingAdd(offset, reach), kv);
  if (window.left >= 0) pairs -= SumOfRamp(begin, end, SaturatingAdd(offset, -window.left), kv);
  return pairs;
}

}  // namespace fovea
