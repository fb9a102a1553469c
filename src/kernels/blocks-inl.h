// The walk over the blocks of keys that an item's tiles see.
#if defined(FOVEA_SRC_KERNELS_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_BLOCKS_INL_H_
#undef FOVEA_SRC_KERNELS_BLOCKS_INL_H_
#else
#define FOVEA_SRC_KERNELS_BLOCKS_INL_H_
#endif

#include "kernels/mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int kMaxTiles = 64;

// The positions between the first and the last block of which some tile sees any key; the first is
// the start of its block.
template <class Engine>
HWY_INLINE KeyRange VisibleBlocks(const Job& job, const Tile* tiles, int count) {
  const Item& item = job.item;
  const int64_t block_keys = job.g.block_keys;
  KeyRange keys = {item.keys.end, item.keys.first};
  for (int t = 0; t < count; ++t)
    keys = {std::min(keys.first, tiles[t].any.first), std::max(keys.end, tiles[t].any.end)};
  keys.first = std::max(keys.first, item.keys.first) / block_keys * block_keys;
  const auto is_seen = [&](int64_t first) {
    const Block block = BlockAt(item, block_keys, first);
    for (int t = 0; t < count; ++t) {
      const Span span = SpanOf<typename Engine::Lanes>(job, tiles[t], block);
      if (span.first < span.end) return true;
    }
    return false;
  };
  while (keys.first < keys.end && !is_seen(keys.first)) keys.first += block_keys;
  while (keys.first < keys.end) {
    const int64_t last = keys.first + (keys.end - 1 - keys.first) / block_keys * block_keys;
    if (is_seen(last)) break;
    keys.end = last;
  }
  return keys;
}

// Goes from block to block, in ascending order, and leaves out those that no tile sees.
template <class Engine>
class BlockWalk {
  static_assert(Engine::kBlockKeys <= kMostBlockKeys);
  static_assert(Engine::kBlockKeys % Engine::kSegmentKeys == 0);

 public:
  HWY_INLINE BlockWalk(const Job& job, const Tile* tiles, int count)
      : job_(job),
        tiles_(tiles),
        count_(count),
        keys_(VisibleBlocks<Engine>(job, tiles, count)),
        next_(keys_.first) {}

  // To the next block; false behind the last one.
  HWY_INLINE bool Next() {
    const Score& score = job_.call.problem->score;
    const int64_t block_keys = job_.g.block_keys;
    for (; next_ < keys_.end;) {
      block_ = BlockAt(job_.item, block_keys, next_);
      next_ += block_keys;
      removes_ = score.function.present();
      parts_ = 0;
      for (int t = 0; t < count_; ++t) {
        const Span span = SpanOf<typename Engine::Lanes>(job_, tiles_[t], block_);
        if (span.first == span.end) continue;
        float* const s = job_.w.s[parts_ % Engine::Pipeline::kScoreTiles];
        part_[parts_++] = {&job_.g, &tiles_[t], block_, span, s};
        removes_ = removes_ || span.partial || span.masked || span.in_tree || span.biased;
      }
      if (parts_ > 0) return true;
    }
    return false;
  }

  const Block& block() const { return block_; }
  // Whether some tile may remove pairs of the block.
  bool removes() const { return removes_; }
  // Keys behind the block that are still to come; may be negative.
  int64_t behind() const { return keys_.end - next_; }
  // What tiles see of the block.
  int parts() const { return parts_; }
  const Part& part(int n) const { return part_[n]; }
  const Part* part_behind(int n) const { return n + 1 < parts_ ? &part_[n + 1] : nullptr; }

 private:
  const Job& job_;
  const Tile* const tiles_;
  const int count_;
  const KeyRange keys_;
  int64_t next_;
  Block block_;
  bool removes_;
  int parts_;
  Part part_[kMaxTiles];
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
