// What happens to a score between q·k and the mask, in the contract's order: 2^exponent, softcap, ALiBi, then bias and boolean mask together. Each is a
// pass over the tile in L1.
#if defined(FOVEA_SRC_KERNELS_MODIFIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#undef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#else
#define FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#endif

#include "kernels/mask-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// One float of each row's query head, for the tile's lanes.
HWY_INLINE void PerHead(const TensorView& per_head, const Tile& tile, const Item& item, int64_t group, int64_t lanes, float* values) {
  ForEachRow(tile, item, group, [&](int r, int64_t h, int64_t) {
    values[r] = ReadAs<float>(static_cast<const char*>(per_head.data) + h * per_head.stride[0]);
  });
  for (int64_t r = tile.count; r < lanes; ++r) values[r] = 0.0f;
}

// n elements from key j of a row on.
HWY_INLINE void LoadKeys(const Broadcast& from, const char* row, int64_t j, int64_t n, float* to) {
  if (from.dtype != DType::kBit) return LoadRow(from.dtype, row + j * from.stride[3], from.stride[3], n, to);
  if (from.stride[3] == 0) return std::fill_n(to, n, ElementOf(from, row, 0)), void();
  LoadBits(row, j, n, to);
}

// Keys of the span of every row, as f32, in the tile's layout in `to`. `row_of[r]` tells rows apart: those with the same one repeat, and are loaded
// once. load(row, key, n, to) gives n elements from `key` of the block on; `stage` holds tile_lanes · kStageColumns floats.
template <class Lanes, class RowId, class Load>
HWY_INLINE void TakeTile(const RowId* row_of, const Tile& tile, const Geometry& g, const Span& span, float* HWY_RESTRICT stage,
                         float* HWY_RESTRICT to, const Load& load) {
  const float* rows[kMaxTileLanes];
  for (int64_t key = span.first; key < span.end; key += kStageColumns) {
    const int64_t n = std::min(span.end - key, kStageColumns);
    for (int r = 0; r < g.tile_lanes; ++r) {
      if (r >= tile.count) {
        rows[r] = rows[0];
      } else if (r > 0 && row_of[r] == row_of[r - 1]) {
        rows[r] = rows[r - 1];
      } else {
        rows[r] = load(row_of[r], key, n, stage + r * kStageColumns);
      }
    }
    Lanes::FromRows(rows, tile.count, n, g.block_keys, to + Lanes::Index(0, key, g.block_keys));
  }
}

// The rows of a bias or mask that belong to the span's keys, as a tile of f32 in `to`.
template <class Lanes>
inline HWY_NOINLINE void TakeBias(const Broadcast& from, const Tile& tile, const Item& item, const Geometry& g, const Block& block,
                                  const Span& span, float* HWY_RESTRICT stage, float* HWY_RESTRICT to) {
  const char* row_of[kMaxTileLanes];
  bool in_place = true;
  ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
    row_of[r] = from.Row(item.sequence, h, i);
    in_place = in_place && IsPlainF32(from.dtype, from.stride[3], 0, row_of[r]);
  });
  TakeTile<Lanes>(row_of, tile, g, span, stage, to, [&](const char* row, int64_t key, int64_t n, float* staged) HWY_ATTR -> const float* {
    if (in_place) return reinterpret_cast<const float*>(row) + block.first + key;
    LoadKeys(from, row, block.first + key, n, staged);
    return staged;
  });
}

// The same for a block map: 0 or −inf for each of the keys.
template <class Lanes>
inline HWY_NOINLINE void TakeBlockMap(const BlockMap& map, const Tile& tile, const Item& item, const Geometry& g, const Block& block,
                                      const Span& span, float* HWY_RESTRICT stage, float* HWY_RESTRICT to) {
  const Broadcast visible = BroadcastView(map.visible);
  const char* row_of[kMaxTileLanes];
  ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) { row_of[r] = visible.Row(item.sequence, h, i / map.queries); });
  TakeTile<Lanes>(row_of, tile, g, span, stage, to, [&](const char* row, int64_t key, int64_t n, float* staged) -> const float* {
    for (int64_t j = block.first + key, end = j + n; j < end;) {
      const int64_t next = std::min((j / map.keys + 1) * map.keys, end);
      std::fill(staged + (j - block.first - key), staged + (next - block.first - key), ElementOf(visible, row, j / map.keys));
      j = next;
    }
    return staged;
  });
}

HWY_INLINE int64_t ParentOf(const TensorView& parents, int64_t b, int64_t i) {
  const char* p = static_cast<const char*>(parents.data) + b * parents.stride[0] + i * parents.stride[1];
  return parents.dtype == DType::kI32 ? ReadAs<int32_t>(p) : ReadAs<int64_t>(p);
}

// The same for a tree of queries: of the keys from the sequence's offset on, each query sees those of itself and its ancestors.
template <class Lanes>
inline HWY_NOINLINE void TakeTree(const KernelCall& call, const Tile& tile, const Item& item, const Block& block, const Span& span,
                                  float* HWY_RESTRICT stage, float* HWY_RESTRICT to) {
  const Geometry& g = call.geometry;
  const TensorView& parents = call.problem->score.parents;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  int64_t row_of[kMaxTileLanes];  // the query; for padding rows the last one
  ForEachRow(tile, item, g.group, [&](int r, int64_t, int64_t i) { row_of[r] = std::min(i, sequence.q_length - 1); });
  TakeTile<Lanes>(row_of, tile, g, span, stage, to, [&](int64_t query, int64_t key, int64_t n, float* staged) -> const float* {
    const int64_t first = block.first + key - sequence.offset;  // node of the first key; negative before the tree
    const int64_t before = std::clamp<int64_t>(-first, 0, n);
    std::fill_n(staged, before, 0.0f);
    std::fill_n(staged + before, n - before, MinusInfinityScalar());
    for (int64_t node = query; node >= 0 && node >= first; node = ParentOf(parents, item.sequence, node)) {
      if (node - first < n) staged[node - first] = 0.0f;
    }
    return staged;
  });
}

// S = bias = −inf ? −inf : S + bias, whatever S is.
template <class Lanes>
HWY_INLINE void AddBias(const float* HWY_RESTRICT bias, const Tile& tile, const Span& span, int64_t block_keys, float* HWY_RESTRICT s) {
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VF b = hn::Load(DF(), bias + Lanes::Index(row, key, block_keys));
    return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(score, b));
  });
}

// The same with a bias or mask whose row is that of every row of the tile: no tile of it is made. `row` has room for whole vectors.
template <class Lanes>
HWY_INLINE void AddKeyBias(const Broadcast& from, const char* from_row, const Tile& tile, const Block& block, const Span& span,
                           int64_t block_keys, float* HWY_RESTRICT row, float* HWY_RESTRICT s) {
  LoadKeys(from, from_row, block.first + span.first, span.end - span.first, row + span.first);
  for (int64_t key = span.end; key % Lanes::kKeyStep != 0; ++key) row[key] = 0.0f;
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t, int64_t key) HWY_ATTR {
    const VF b = Lanes::PerKey(row, key);
    return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(score, b));
  });
}

// S += view, which removes where it is −inf or false.
template <class Lanes>
HWY_INLINE void AddView(const TensorView& view, const KernelCall& call, const Item& item, const Tile& tile, const Block& block,
                        const Span& span, Scratch& w) {
  const Geometry& g = call.geometry;
  const Broadcast from = BroadcastView(view);
  if (from.stride[2] == 0 && (from.stride[1] == 0 || g.group == 1)) {
    AddKeyBias<Lanes>(from, from.Row(item.sequence, item.kv_head * g.group, 0), tile, block, span, g.block_keys, w.bias, w.s);
    return;
  }
  TakeBias<Lanes>(from, tile, item, g, block, span, w.stage, w.bias);
  AddBias<Lanes>(w.bias, tile, span, g.block_keys, w.s);
}

// Whether query i of head h does not see a key that it sees by position.
inline HWY_NOINLINE bool IsRemoved(const KernelCall& call, const Item& item, int64_t h, int64_t i, int64_t j) {
  const Score& score = call.problem->score;
  for (const TensorView* view : {&score.bias, &score.mask}) {
    if (!view->present()) continue;
    const Broadcast from = BroadcastView(*view);
    if (ElementOf(from, from.Row(item.sequence, h, i), j) == MinusInfinityScalar()) return true;
  }
  const BlockMap& map = score.block_map;
  if (map.visible.present()) {
    const Broadcast visible = BroadcastView(map.visible);
    if (ElementOf(visible, visible.Row(item.sequence, h, i / map.queries), j / map.keys) != 0.0f) return true;
  }
  const int64_t node = j - call.lengths[item.sequence].offset;
  if (!score.parents.present() || node < 0) return false;
  while (i > node) i = ParentOf(score.parents, item.sequence, i);
  return i != node;
}

// Natural scores in; out come those after the steps up to call.stage, but for what position removes.
template <class Lanes>
HWY_NOINLINE void Modify(const KernelCall& call, const Item& item, const Tile& tile, const Block& block, const Span& span, Scratch& w) {
  const DF df;
  const Score& score = call.problem->score;
  const Geometry& g = call.geometry;
  if (tile.has_exponents) {
    ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t) HWY_ATTR {
      return hn::Mul(hn::Mul(s, Lanes::PerRow(tile.exponent[0], row)), Lanes::PerRow(tile.exponent[1], row));
    });
  }
  if (call.stage == ScoreStage::kScaled) return;
  if (score.softcap > 0) {
    const VF cap = hn::Set(df, score.softcap);
    ForEachScore<Lanes>(w.s, tile, span, g.block_keys,
                        [&](VF s, int64_t, int64_t) HWY_ATTR { return hn::Mul(cap, TanhOrNaN(df, hn::Div(s, cap))); });
  }
  if (call.stage == ScoreStage::kSoftcapped) return;
  if (score.alibi_slopes.present()) {
    float* slope = w.row_values;
    float* position = w.row_values + g.tile_lanes;  // relative to the block
    PerHead(score.alibi_slopes, tile, item, g.group, g.tile_lanes, slope);
    const double origin = static_cast<double>(call.lengths[item.sequence].offset) - static_cast<double>(block.first);
    for (int64_t r = tile.count; r < g.tile_lanes; ++r) position[r] = 0.0f;
    ForEachRow(tile, item, g.group, [&](int r, int64_t, int64_t i) { position[r] = static_cast<float>(static_cast<double>(i) + origin); });
    ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t key) HWY_ATTR {
      const VF distance = hn::Abs(hn::Sub(Lanes::PerRow(position, row), Lanes::Keys(key)));
      return hn::NegMulAdd(Lanes::PerRow(slope, row), distance, s);
    });
  }
  if (score.bias.present()) AddView<Lanes>(score.bias, call, item, tile, block, span, w);
  if (span.masked && score.mask.present()) AddView<Lanes>(score.mask, call, item, tile, block, span, w);
  if (span.masked && score.block_map.visible.present()) {
    TakeBlockMap<Lanes>(score.block_map, tile, item, g, block, span, w.stage, w.bias);
    AddBias<Lanes>(w.bias, tile, span, g.block_keys, w.s);
  }
  if (span.in_tree) {
    TakeTree<Lanes>(call, tile, item, block, span, w.stage, w.bias);
    AddBias<Lanes>(w.bias, tile, span, g.block_keys, w.s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
