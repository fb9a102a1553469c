#include "mask_map.h"

#include <algorithm>
#include <cstring>

namespace fovea {
namespace {

// Bytes of a mask that a task reads at least, so that handing it out costs nothing beside.
constexpr int64_t kTaskBytes = int64_t{1} << 16;
// Keys below which a map would cost more than it saves.
constexpr int64_t kLeastKeys = 2 * kMapKeys;

int64_t CeilDiv(int64_t n, int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }

// The mask's axis that is `back` axes before its last one: size 1 and stride 0 where it lacks it.
struct MaskAxis {
  int64_t size;
  int64_t stride;
};
MaskAxis AxisOf(const TensorView& mask, int back) {
  if (!mask.present()) return {0, 0};
  const int axis = mask.rank - 1 - back;
  return axis < 0 ? MaskAxis{1, 0} : MaskAxis{mask.shape[axis], mask.stride[axis]};
}

// n booleans from key `first` of a row as bytes, 0 = false. The bytes are the caller's own where
// they lie side by side, else `copy`.
const uint8_t* ReadRow(const TensorView& mask, const char* row, int64_t first, int64_t n,
                       uint8_t* copy) {
  const int64_t stride = mask.stride[mask.rank - 1];
  if (mask.dtype == DType::kBit) {
    for (int64_t j = 0; j < n; ++j)
      copy[j] =
          static_cast<uint8_t>(static_cast<uint8_t>(row[(first + j) / 8]) >> ((first + j) % 8) & 1);
    return copy;
  }
  if (stride == 1) return reinterpret_cast<const uint8_t*>(row + first);
  for (int64_t j = 0; j < n; ++j) copy[j] = static_cast<uint8_t>(row[(first + j) * stride]);
  return copy;
}

// What some rows leave of up to 64 keys.
struct SeenKeys {
  uint8_t any[kMapKeys] = {};      // not 0: some query sees the key
  uint8_t changed[kMapKeys] = {};  // 1: some query does not, or its score changes

  MaskMapEntry Entry(int64_t n) const {
    int64_t begin = 0, end = n;
    while (begin < end && any[begin] == 0) ++begin;
    while (end > begin && any[end - 1] == 0) --end;
    if (begin == end) return {};
    const bool full = std::find(changed, changed + n, 1) == changed + n;
    return {static_cast<uint8_t>(begin), static_cast<uint8_t>(end), static_cast<uint8_t>(full)};
  }
};

// The part of a mask or bias that an entry is of.
struct Area {
  const char* rows;  // of the first query, from key 0 on
  int64_t row_stride;
  int64_t queries;
  int64_t first;  // key
  int64_t n;      // keys
};

MaskMapEntry EntryOfMask(const TensorView& mask, const Area& area) {
  SeenKeys seen;
  uint8_t copy[kMapKeys] = {};
  for (int64_t i = 0; i < area.queries; ++i) {
    const uint8_t* row = ReadRow(mask, area.rows + i * area.row_stride, area.first, area.n, copy);
    if (area.n == kMapKeys) {
      for (int64_t j = 0; j < kMapKeys; ++j) seen.any[j] |= row[j], seen.changed[j] |= row[j] == 0;
    } else {
      for (int64_t j = 0; j < area.n; ++j) seen.any[j] |= row[j], seen.changed[j] |= row[j] == 0;
    }
  }
  return seen.Entry(area.n);
}

// The bits of a float of a type: those of −inf, and all but the sign.
template <class Bits>
struct FloatBits {
  Bits minus_infinity;
  Bits magnitude;
};

template <class Bits>
MaskMapEntry EntryOfBias(const FloatBits<Bits>& of, int64_t stride, const Area& area) {
  const auto load = [](const char* p) {
    Bits x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  };
  const char* const corner = area.rows + area.first * stride;
  const Bits begin = load(corner);
  if (begin != of.minus_infinity && (begin & of.magnitude) != 0)
    return {0, static_cast<uint8_t>(area.n), 0};
  // Most areas are removed, or zero, as a whole.
  Bits not_removed = 0, not_zero = 0;
  for (int64_t i = 0; i < area.queries && (not_removed == 0 || not_zero == 0); ++i) {
    const char* const row = corner + i * area.row_stride;
    const auto look = [&](Bits x) {
      not_removed |= x ^ of.minus_infinity;
      not_zero |= x & of.magnitude;
    };
    constexpr int64_t kSize = sizeof(Bits);
    if (stride == kSize) {  // of which compilers make vectors
      for (int64_t j = 0; j < area.n; ++j) look(load(row + j * kSize));
    } else {
      for (int64_t j = 0; j < area.n; ++j) look(load(row + j * stride));
    }
  }
  if (not_removed == 0) return {};
  if (not_zero == 0) return {0, static_cast<uint8_t>(area.n), 1};
  SeenKeys seen;
  for (int64_t i = 0; i < area.queries; ++i) {
    const char* const row = corner + i * area.row_stride;
    for (int64_t j = 0; j < area.n; ++j) {
      const Bits x = load(row + j * stride);
      seen.any[j] |= x != of.minus_infinity;
      seen.changed[j] |= (x & of.magnitude) != 0;
    }
  }
  return seen.Entry(area.n);
}

MaskMapEntry EntryOf(const TensorView& view, const Area& area) {
  const int64_t stride = view.stride[view.rank - 1];
  switch (view.dtype) {
    case DType::kF32:
      return EntryOfBias<uint32_t>({0xff800000, 0x7fffffff}, stride, area);
    case DType::kF16:
      return EntryOfBias<uint16_t>({0xfc00, 0x7fff}, stride, area);
    case DType::kBF16:
      return EntryOfBias<uint16_t>({0xff80, 0x7fff}, stride, area);
    default:
      return EntryOfMask(view, area);
  }
}

}  // namespace

bool operator==(const MaskMapLayout& a, const MaskMapLayout& b) {
  return a.batches == b.batches && a.heads == b.heads && a.query_groups == b.query_groups &&
         a.key_groups == b.key_groups;
}

int64_t MaskMapLayout::groups_per_task() const {
  return std::max<int64_t>(kTaskBytes / (kMapQueries * kMapKeys) / key_groups, 1);
}

int64_t MaskMapLayout::tasks() const {
  return entries() == 0 ? 0 : CeilDiv(batches * heads * query_groups, groups_per_task());
}

MaskMapLayout LayoutOf(const TensorView& mask) {
  return LayoutWith(mask, AxisOf(mask, 1).size, AxisOf(mask, 0).size);
}

MaskMapLayout LayoutWith(const TensorView& mask, int64_t queries, int64_t keys) {
  if (!mask.present() || keys < kLeastKeys) return {};
  return {AxisOf(mask, 3).size, AxisOf(mask, 2).size, CeilDiv(queries, kMapQueries),
          CeilDiv(keys, kMapKeys)};
}

void FillMaskMap(const TensorView& mask, const MaskMapLayout& layout, int64_t task,
                 MaskMapEntry* entries) noexcept {
  const MaskAxis keys = AxisOf(mask, 0), queries = AxisOf(mask, 1), heads = AxisOf(mask, 2),
                 batches = AxisOf(mask, 3);
  const int64_t all = layout.batches * layout.heads * layout.query_groups;
  const int64_t end = std::min((task + 1) * layout.groups_per_task(), all);
  for (int64_t group = task * layout.groups_per_task(); group < end; ++group) {
    const int64_t i = group % layout.query_groups * kMapQueries;
    const int64_t h = group / layout.query_groups % layout.heads,
                  b = group / layout.query_groups / layout.heads;
    const char* rows = static_cast<const char*>(mask.data) + b * batches.stride + h * heads.stride +
                       i * queries.stride;
    for (int64_t g = 0; g < layout.key_groups; ++g) {
      entries[group * layout.key_groups + g] =
          EntryOf(mask, {rows, queries.stride, std::min(kMapQueries, queries.size - i),
                         g * kMapKeys, std::min(kMapKeys, keys.size - g * kMapKeys)});
    }
  }
}

}  // namespace fovea
