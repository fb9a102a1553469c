// What position (causal, window, lengths), the maps of mask and bias, the block map and the tree
// leave of a block, and removing pairs by position. Knows nothing of where the intervals come from.
#if defined(FOVEA_SRC_KERNELS_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MASK_INL_H_
#undef FOVEA_SRC_KERNELS_MASK_INL_H_
#else
#define FOVEA_SRC_KERNELS_MASK_INL_H_
#endif

#include "kernels/tree-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Which of the keys [first, end) some row of the tile may see, and whether all rows see all of
// those.
struct Seen {
  int64_t first;
  int64_t end;
  bool all;
  void Add(int64_t from, int64_t to) { first = std::min(first, from), end = std::max(end, to); }
};

// The query heads and queries that the tile's rows are of: first ≤ h < end, first ≤ i ≤ last.
struct TileQueries {
  KeyRange heads;
  int64_t first, last;
};
HWY_INLINE TileQueries TileQueriesOf(const Job& job, const Tile& tile) {
  const int64_t group = job.g.group, h = job.item.kv_head * group;
  const int64_t last =
      std::min((tile.first_row + tile.count - 1) / group, job.sequence.q_length - 1);
  return {{h, h + group}, tile.first_row / group, last};
}

// What the map of score.mask or score.bias leaves of the keys, which are columns of it.
inline HWY_NOINLINE Seen SeenThroughMap(const Job& job, const MaskMap& map,
                                        const TileQueries& queries, const KeyRange& keys) {
  Seen seen = {keys.end, keys.first, true};
  const int64_t h_end = map.layout.heads == 1 ? queries.heads.first + 1 : queries.heads.end;
  for (int64_t h = queries.heads.first; h < h_end; ++h) {
    for (int64_t i = queries.first; i <= queries.last; i = (i / kMapQueries + 1) * kMapQueries) {
      const MaskMapEntry* row = map.Row(job.item.sequence, h, i);
      for (int64_t g = keys.first / kMapKeys; g * kMapKeys < keys.end; ++g) {
        const MaskMapEntry& entry = row[g];
        seen.all = seen.all && entry.full != 0;
        if (entry.end > entry.first) seen.Add(g * kMapKeys + entry.first, g * kMapKeys + entry.end);
      }
    }
  }
  return seen;
}

// What score.block_map leaves of the keys, likewise.
inline HWY_NOINLINE Seen SeenThroughBlockMap(const Job& job, const TileQueries& queries,
                                             const KeyRange& keys) {
  const BlockMap& map = job.call.problem->score.block_map;
  const Broadcast visible = BroadcastView(map.visible);
  Seen seen = {keys.end, keys.first, true};
  const int64_t h_end = visible.stride[1] == 0 ? queries.heads.first + 1 : queries.heads.end;
  for (int64_t h = queries.heads.first; h < h_end; ++h) {
    for (int64_t i = queries.first; i <= queries.last; i = (i / map.queries + 1) * map.queries) {
      const char* row = visible.Row(job.item.sequence, h, i / map.queries);
      for (int64_t g = keys.first / map.keys; g * map.keys < keys.end; ++g) {
        if (ValueAt(visible, row, g) == 0.0f) {
          seen.Add(g * map.keys, (g + 1) * map.keys);
        } else {
          seen.all = false;
        }
      }
    }
  }
  return seen;
}

// What the rows' own intervals leave of the keys: between those of two rows there may be a hole.
inline HWY_NOINLINE KeyRange SeenByRows(const Tile& tile, const KeyRange& keys) {
  KeyRange seen = {keys.end, keys.first};
  for (int r = 0; r < tile.count; ++r) {
    const KeyRange row = Intersection(keys, tile.visible[r]);
    if (row.first == row.end) continue;
    seen = {std::min(seen.first, row.first), std::max(seen.end, row.end)};
  }
  return seen;
}

// The part of the block that the tile computes. Its end is cut to what some row sees; its start
// too, in steps that keep the order of sums.
template <class Lanes>
HWY_INLINE Span SpanOf(const Job& job, const Tile& tile, const Block& block) {
  constexpr int64_t kStep = kFirstKeyStep<Lanes>;
  const KernelCall& call = job.call;
  const Score& score = call.problem->score;
  KeyRange keys = {std::max(tile.any.first, block.first),
                   std::min(tile.any.end, block.first + block.n)};
  Span span = {0, 0, false, false, false, false};
  if (keys.first >= keys.end) return span;
  if (call.stage >= ScoreStage::kMasked) {
    if (score.key_ranges.present()) {
      keys = SeenByRows(tile, keys);
      if (keys.first >= keys.end) return span;
    }
    const bool has_map = call.mask_map.entries != nullptr;
    const bool has_bias_map = call.bias_map.entries != nullptr;
    span.masked = score.mask.present() && !has_map;
    // A scale that is infinite makes NaN of zeros.
    span.biased = score.bias.present() && (!has_bias_map || score.bias_scales.present());
    const bool in_tree = score.parents.present() && keys.end > job.sequence.offset;
    if (has_map || has_bias_map || score.block_map.visible.present() || in_tree) {
      const TileQueries queries = TileQueriesOf(job, tile);
      const KeyRange whole = keys, columns = {job.Column(keys.first), job.Column(keys.end)};
      const int64_t origin = job.sequence.keys.first;  // of columns
      const auto cut = [&](const Seen& seen) {
        span.masked = span.masked || !seen.all;
        keys = {std::max(keys.first, origin + seen.first),
                std::min(keys.end, origin + std::min(seen.end, columns.end))};
      };
      if (has_map) cut(SeenThroughMap(job, call.mask_map, queries, columns));
      if (has_bias_map) {
        const Seen seen = SeenThroughMap(job, call.bias_map, queries, columns);
        span.biased = span.biased || !seen.all;
        keys = Intersection(keys, {origin + seen.first, origin + seen.end});
      }
      if (score.block_map.visible.present()) cut(SeenThroughBlockMap(job, queries, columns));
      if (in_tree) {
        bool all;
        keys = Intersection(keys, SeenThroughTree(job, queries.first, queries.last, whole, &all));
        span.in_tree = !all;
      }
      if (keys.first >= keys.end) return {0, 0, false, false, false, false};
    }
  }
  span.first = (keys.first - block.first) / kStep * kStep;
  span.end = keys.end - block.first;
  span.partial = block.first + span.first < tile.all.first || block.first + span.end > tile.all.end;
  return span;
}

// S = −inf outside each row's interval.
template <class Lanes>
HWY_INLINE void MaskByPosition(const Job& job, const Part& part) {
  const Tile& tile = *part.tile;
  const Block& block = part.block;
  const int64_t lanes = job.g.tile_lanes;
  float* first = job.w.row_values;
  float* end = first + lanes;
  for (int r = 0; r < lanes; ++r) {
    const KeyRange& keys = tile.visible[r < tile.count ? r : 0];
    first[r] = static_cast<float>(std::clamp<int64_t>(keys.first - block.first, 0, block.n));
    end[r] = static_cast<float>(std::clamp<int64_t>(keys.end - block.first, 0, block.n));
  }
  ForEachScore<Lanes>(part, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VF j = Lanes::Keys(key);
    const auto visible =
        hn::And(hn::Ge(j, Lanes::PerRow(first, row)), hn::Lt(j, Lanes::PerRow(end, row)));
    return hn::IfThenElse(visible, score, MinusInfinity());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
