// Where a boolean mask or an additive bias removes pairs, coarsely: for 16 queries × 64 keys the
// first and last key that any of the queries may see, and whether it changes no score there. It is
// read once for that; kernels then skip what is removed and do not look at it where it changes
// nothing. Knows no tile.
#ifndef FOVEA_SRC_MASK_MAP_H_
#define FOVEA_SRC_MASK_MAP_H_

#include <cstdint>

#include "fovea/tensor.h"

namespace fovea {

constexpr int64_t kMapQueries = 16;
constexpr int64_t kMapKeys = 64;

struct MaskMapEntry {
  // keys first ≤ key < end of the 64 are seen by some query; none where both are 0
  uint8_t first = 0;
  uint8_t end = 0;
  uint8_t full = 0;  // 1: nothing there is removed, and nothing of a bias but zeros
};

// How the entries of a mask or bias lie: [B or 1][Hq or 1][⌈Tq/16⌉ or 1][⌈Tk/64⌉], as the mask
// broadcasts. All zero where there is no mask, or none whose key axis is worth a map.
struct MaskMapLayout {
  int64_t batches = 0, heads = 0, query_groups = 0, key_groups = 0;

  int64_t entries() const { return batches * heads * query_groups * key_groups; }
  // A task reads some rows of groups: enough to be worth handing out.
  int64_t groups_per_task() const;
  int64_t tasks() const;
};
bool operator==(const MaskMapLayout& a, const MaskMapLayout& b);

MaskMapLayout LayoutOf(const TensorView& mask);
// Of the same mask with that many queries and keys.
MaskMapLayout LayoutWith(const TensorView& mask, int64_t queries, int64_t keys);

struct MaskMap {
  MaskMapLayout layout;
  const MaskMapEntry* entries = nullptr;  // null: no map

  // The entries of a row of groups, from key 0 on, for query i.
  const MaskMapEntry* Row(int64_t b, int64_t h, int64_t i) const {
    const int64_t group = layout.query_groups == 1 ? 0 : i / kMapQueries;
    return entries + (((layout.batches == 1 ? 0 : b) * layout.heads + (layout.heads == 1 ? 0 : h)) *
                          layout.query_groups +
                      group) *
                         layout.key_groups;
  }
};

// Fills the entries of one task, 0 ≤ task < layout.tasks(). A bias is read where it begins with a
// zero or −inf: where it does not, it is taken to remove nothing and to change scores.
void FillMaskMap(const TensorView& mask, const MaskMapLayout& layout, int64_t task,
                 MaskMapEntry* entries) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_MASK_MAP_H_
