// Removing pairs by position (causal, window, lengths) from a block that is partly visible, and
// keeping what a removed pair's V holds out of the sums. Knows nothing of where the intervals come
// from.
#if defined(FOVEA_SRC_KERNELS_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MASK_INL_H_
#undef FOVEA_SRC_KERNELS_MASK_INL_H_
#else
#define FOVEA_SRC_KERNELS_MASK_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// A bias, mask or map aligned at the right to [B, Hq, Tq, Tk]: byte strides, 0 where it broadcasts.
struct Broadcast {
  const char* data;
  DType dtype;
  int64_t stride[4];

  const char* Row(int64_t b, int64_t h, int64_t i) const {
    return data + b * stride[0] + h * stride[1] + i * stride[2];
  }
};

HWY_INLINE Broadcast BroadcastView(const TensorView& view) {
  Broadcast b{static_cast<const char*>(view.data), view.dtype, {0, 0, 0, 0}};
  for (int a = 0; a < view.rank; ++a)
    b.stride[4 - view.rank + a] = view.shape[a] == 1 ? 0 : view.stride[a];
  return b;
}

// Element j of a row of it: 0 or −inf for booleans.
HWY_INLINE float ElementOf(const Broadcast& view, const char* row, int64_t j) {
  float x;
  LoadRow({row, view.dtype, view.stride[3]}, j, 1, &x);
  return x;
}

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
HWY_INLINE TileQueries QueriesOf(const KernelCall& call, const Item& item, const Tile& tile) {
  const int64_t group = call.geometry.group, h = item.kv_head * group;
  const int64_t last =
      std::min((tile.first_row + tile.count - 1) / group, call.lengths[item.sequence].q_length - 1);
  return {{h, h + group}, tile.first_row / group, last};
}

// What the map of score.mask leaves of the keys.
inline HWY_NOINLINE Seen SeenThroughMask(const KernelCall& call, const Item& item,
                                         const TileQueries& queries, const KeyRange& keys) {
  const MaskMap& map = call.mask_map;
  Seen seen = {keys.end, keys.first, true};
  const int64_t h_end = map.layout.heads == 1 ? queries.heads.first + 1 : queries.heads.end;
  for (int64_t h = queries.heads.first; h < h_end; ++h) {
    for (int64_t i = queries.first; i <= queries.last; i = (i / kMapQueries + 1) * kMapQueries) {
      const MaskMapEntry* row = map.Row(item.sequence, h, i);
      for (int64_t g = keys.first / kMapKeys; g * kMapKeys < keys.end; ++g) {
        const MaskMapEntry& entry = row[g];
        seen.all = seen.all && entry.full != 0;
        if (entry.end > entry.first) seen.Add(g * kMapKeys + entry.first, g * kMapKeys + entry.end);
      }
    }
  }
  return seen;
}

// What score.block_map leaves of the keys.
inline HWY_NOINLINE Seen SeenThroughBlockMap(const KernelCall& call, const Item& item,
                                             const TileQueries& queries, const KeyRange& keys) {
  const BlockMap& map = call.problem->score.block_map;
  const Broadcast visible = BroadcastView(map.visible);
  Seen seen = {keys.end, keys.first, true};
  const int64_t h_end = visible.stride[1] == 0 ? queries.heads.first + 1 : queries.heads.end;
  for (int64_t h = queries.heads.first; h < h_end; ++h) {
    for (int64_t i = queries.first; i <= queries.last; i = (i / map.queries + 1) * map.queries) {
      const char* row = visible.Row(item.sequence, h, i / map.queries);
      for (int64_t g = keys.first / map.keys; g * map.keys < keys.end; ++g) {
        if (ElementOf(visible, row, g) == 0.0f) {
          seen.Add(g * map.keys, (g + 1) * map.keys);
        } else {
          seen.all = false;
        }
      }
    }
  }
  return seen;
}

// The part of the block that the tile computes. Its end is cut to what some row sees; its start
// too, in steps that keep the order of sums.
template <class Lanes>
HWY_INLINE Span SpanOf(const KernelCall& call, const Item& item, const Tile& tile,
                       const Block& block) {
  constexpr int64_t kStep = kFirstKeyStep<Lanes>;
  const Score& score = call.problem->score;
  KeyRange keys = {std::max(tile.any.first, block.first),
                   std::min(tile.any.end, block.first + block.n)};
  Span span = {0, 0, false, false, false};
  if (keys.first >= keys.end) return span;
  if (call.stage >= ScoreStage::kMasked) {
    const bool has_map = call.mask_map.entries != nullptr;
    span.masked = score.mask.present() && !has_map;
    span.in_tree = score.parents.present() && keys.end > call.lengths[item.sequence].offset;
    if (has_map || score.block_map.visible.present()) {
      const TileQueries queries = QueriesOf(call, item, tile);
      const KeyRange whole = keys;
      const auto cut = [&](const Seen& seen) {
        span.masked = span.masked || !seen.all;
        keys = {std::max(keys.first, seen.first), std::min(keys.end, seen.end)};
      };
      if (has_map) cut(SeenThroughMask(call, item, queries, whole));
      if (score.block_map.visible.present()) cut(SeenThroughBlockMap(call, item, queries, whole));
      if (keys.first >= keys.end) return {0, 0, false, false, false};
    }
  }
  span.first = (keys.first - block.first) / kStep * kStep;
  span.end = keys.end - block.first;
  span.partial = block.first + span.first < tile.all.first || block.first + span.end > tile.all.end;
  return span;
}

// S = −inf outside each row's interval. `row_values` holds 2 · tile_lanes floats.
template <class Lanes>
HWY_INLINE void MaskByPosition(const Tile& tile, const Block& block, const Span& span,
                               int64_t block_keys, float* row_values, int64_t lanes, float* s) {
  float* first = row_values;
  float* end = row_values + lanes;
  for (int r = 0; r < lanes; ++r) {
    const KeyRange& keys = tile.visible[r < tile.count ? r : 0];
    first[r] = static_cast<float>(std::clamp<int64_t>(keys.first - block.first, 0, block.n));
    end[r] = static_cast<float>(std::clamp<int64_t>(keys.end - block.first, 0, block.n));
  }
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VF j = Lanes::Keys(key);
    const auto visible =
        hn::And(hn::Ge(j, Lanes::PerRow(first, row)), hn::Lt(j, Lanes::PerRow(end, row)));
    return hn::IfThenElse(visible, score, MinusInfinity());
  });
}

// Whether any of n rows of d floats holds a NaN or an infinity: then 0·x is NaN.
template <class T>
HWY_INLINE bool HasNonFiniteOf(const Rows& rows, int64_t n, int64_t d) {
  const DF df;
  const VF zero = hn::Zero(df);
  VF sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
  for (int64_t j = 0; j < n; ++j) {
    const T* p = rows.Row<T>(j);
    int64_t c = 0;
    for (; c + 4 * kLanes <= d; c += 4 * kLanes) {
      sum0 = hn::MulAdd(LoadAsF32(p + c), zero, sum0);
      sum1 = hn::MulAdd(LoadAsF32(p + c + kLanes), zero, sum1);
      sum2 = hn::MulAdd(LoadAsF32(p + c + 2 * kLanes), zero, sum2);
      sum3 = hn::MulAdd(LoadAsF32(p + c + 3 * kLanes), zero, sum3);
    }
    for (; c + kLanes <= d; c += kLanes) sum0 = hn::MulAdd(LoadAsF32(p + c), zero, sum0);
    if (c < d) sum1 = hn::MulAdd(LoadAsF32(p + c, d - c), zero, sum1);
  }
  return !hn::AllTrue(df, hn::Eq(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)), zero));
}

inline HWY_NOINLINE bool HasNonFinite(const Rows& rows, int64_t n, int64_t d) {
  return WithVectorType(
      rows.dtype, [&](auto zero) HWY_ATTR { return HasNonFiniteOf<decltype(zero)>(rows, n, d); });
}

// Copies n rows to `to` (which may be the rows themselves), f32, with non-finite elements zeroed,
// and notes the rows that had any. Rows of `to` have room for whole vectors.
template <class T>
HWY_INLINE void IsolateNonFiniteOf(const Rows& rows, int64_t n, int64_t d, float* to,
                                   int64_t to_stride, uint64_t* poisoned) {
  const DF df;
  const VF zero = hn::Zero(df);
  for (int64_t j = 0; j < n; ++j) {
    if (j % 64 == 0) poisoned[j / 64] = 0;
    bool finite = true;
    for (int64_t c = 0; c < d; c += kLanes) {
      const VF x = LoadAsF32(rows.Row<T>(j) + c, std::min<int64_t>(d - c, kLanes));
      const auto is_finite = hn::Eq(hn::Mul(x, zero), zero);
      finite = finite && hn::AllTrue(df, is_finite);
      hn::StoreU(hn::IfThenElseZero(is_finite, x), df, to + j * to_stride + c);
    }
    if (!finite) poisoned[j / 64] |= uint64_t{1} << (j % 64);
  }
}

inline HWY_NOINLINE void IsolateNonFinite(const Rows& rows, int64_t n, int64_t d, float* to,
                                          int64_t to_stride, uint64_t* poisoned) {
  WithVectorType(rows.dtype, [&](auto zero) HWY_ATTR {
    IsolateNonFiniteOf<decltype(zero)>(rows, n, d, to, to_stride, poisoned);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
