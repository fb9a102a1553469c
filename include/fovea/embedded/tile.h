// What is computed at once: a tile of query rows of one KV head, a block of its keys, and where the
// arrays of an item lie in scratch. Knows nothing of what is computed.
#ifndef FOVEA_EMBEDDED_TILE_H_
#define FOVEA_EMBEDDED_TILE_H_

#include "fovea/embedded/check.h"
#include "fovea/embedded/lanes.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// The segment of sums over keys (sums.h); S of a tile stays in L1.
constexpr int64_t kBlockKeys = 64;
constexpr int64_t kGroupKeys = 16 * kBlockKeys;
// Terms of q·k that are summed in one chain; longer heads are sums of such sums, since rounding
// grows with the chain.
constexpr int64_t kChain = 128;
// query rows that reuse a block of K and V, scratch permitting
constexpr int kItemRows = 128;
constexpr int64_t kStageColumns = 64;  // of rows on their way from or to another layout
// Rows of K or V that are multiples of this many bytes apart compete for one set of the L1 cache:
// copied.
constexpr int64_t kAliasing = 4096;
constexpr size_t kAlignment = 64;
constexpr int kMostTiles = kItemRows > 2 * kLanes ? kItemRows / (2 * kLanes) : 1;

// ---- head, block and tile

// One KV head of one sequence.
struct Head {
  const Problem* problem;
  Sequence sequence;
  int64_t b, kv_head, group;
  float scale;

  // What q·k of query head h is multiplied by.
  double ScaleOf(int64_t h) const {
    const double whole = static_cast<double>(scale);
    return problem->head_scales == nullptr ? whole
                                           : whole * static_cast<double>(problem->head_scales[h]);
  }
};

// Keys [first, first + n) in rows of K and V from `row` on; those behind the first `straight` of
// them in rows from 0 on, where a ring begins again.
struct Block {
  int64_t first, n, row, straight;
};

template <class Lanes>
struct Tile {
  Lanes lanes;
  int64_t first_row;  // stacked row r is query r / group of head r % group
  int count;
  float *q, *o, *o_total;            // o: of the group of keys at hand; o_total: of those before
  float *m, *l, *m_total, *l_total;  // per row
  float* exponent[2];                // per row: scores must be multiplied by both
  bool has_exponents = false;
  bool has_total = false;         // a group was joined
  bool has_open_group = false;    // o and l have changed since
  KeyRange any = {INT64_MAX, 0};  // every key that some row sees lies in here
  KeyRange all = {0, INT64_MAX};  // every row sees these

  static constexpr int kNumbersOfRow = 6;  // m, l, their totals and exponents
};

// ---- scratch

// Where the arrays of an item lie in scratch: offsets in bytes. The tiles themselves, q, o,
// o_total, of_rows and exponents hold all tiles one behind the other.
struct ScratchLayout {
  size_t tiles = 0, q = 0, o = 0, o_total = 0, of_rows = 0, alpha = 0, values = 0, s = 0, stage = 0,
         k = 0, v = 0, bytes = 0;
};

// Copied rows of K and V: whole vectors, and never a multiple of 1 KiB apart (kAliasing).
constexpr int64_t CopiedStride(int64_t d) {
  return RoundUp(d, 16) % 256 == 0 ? RoundUp(d, 16) + 16 : RoundUp(d, 16);
}

// Tiles of an item, where a KV head has `rows` rows.
template <class Lanes>
constexpr int64_t TilesOf(const Lanes& lanes, int64_t rows) {
  return Lanes::kKeyStep > 1
             ? 1
             : Between((Least(rows, kItemRows) + lanes.rows() - 1) / lanes.rows(), 1, kMostTiles);
}

template <class Lanes>
constexpr ScratchLayout LayOut(const Lanes& lanes, int64_t dk, int64_t dv, int64_t tiles) {
  ScratchLayout w;
  const int64_t tile_rows = lanes.rows();
  size_t used = 0;
  const auto take = [&](int64_t floats) {
    const size_t at = used;
    used +=
        (static_cast<size_t>(floats) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  w.tiles = take(tiles * static_cast<int64_t>(sizeof(Tile<Lanes>) / sizeof(float)));
  w.q = take(tiles * lanes.Floats(dk));
  w.o = take(tiles * lanes.Floats(dv));
  w.o_total = take(tiles * lanes.Floats(dv));
  w.of_rows = take(tiles * Tile<Lanes>::kNumbersOfRow * tile_rows);
  w.alpha = take(tile_rows);
  w.values = take(2 * tile_rows);
  w.s = take(lanes.Floats(kBlockKeys));
  w.stage = take(tile_rows * kStageColumns);
  // One tile is through with K before it takes V.
  w.k = take(kBlockKeys * CopiedStride(Lanes::kKeyStep > 1 ? Most(dk, dv) : dk));
  w.v = Lanes::kKeyStep > 1 ? w.k : take(kBlockKeys * CopiedStride(dv));
  w.bytes = used;
  return w;
}

// ---- what they are made of

// f(r, h, i) for the tile's rows: query i of head h.
template <class Lanes, class F>
void ForEachRow(const Head& head, const Tile<Lanes>& tile, const F& f) {
  int64_t i = tile.first_row / head.group, g = tile.first_row % head.group;
  for (int r = 0; r < tile.count; ++r) {
    f(r, head.kv_head * head.group + g, i);
    if (++g == head.group) g = 0, ++i;
  }
}

template <class View>
auto* Address(const View& view, int64_t b, int64_t h, int64_t row) {
  using Char = decltype(ByteOf(view.data));
  return static_cast<Char>(view.data) + b * view.stride[0] + h * view.stride[1] +
         row * view.stride[2];
}

// Number `side` (0: begin, 1: end) of the interval of query i.
inline int64_t RangeAt(const KeyRanges& ranges, int64_t b, int64_t i, int side) {
  const char* const at = static_cast<const char*>(ranges.data) + b * ranges.stride[0] +
                         i * ranges.stride[1] + side * ranges.stride[2];
  int64_t wide;
  int32_t narrow;
  if (ranges.is_64_bit) {
    __builtin_memcpy(&wide, at, sizeof(wide));
    return wide;
  }
  __builtin_memcpy(&narrow, at, sizeof(narrow));
  return narrow;
}

// The keys that query i may see by position.
inline KeyRange VisibleKeys(const Head& head, int64_t i) {
  const Problem& p = *head.problem;
  const KeyRange keys = fovea::VisibleKeys(i + head.sequence.offset, head.sequence.kv_length,
                                           p.causal, {p.window_left, p.window_right});
  if (p.key_ranges.data == nullptr) return keys;
  const int64_t first = head.sequence.first;
  return Intersection(keys, {SaturatingAdd(RangeAt(p.key_ranges, head.b, i, 0), -first),
                             SaturatingAdd(RangeAt(p.key_ranges, head.b, i, 1), -first)});
}

// s = f(s, row, key) for every vector of scores of the tile and keys [first, end).
template <class Lanes, class F>
void ForEachScore(const Tile<Lanes>& tile, int64_t first, int64_t end, float* s, const F& f) {
  for (int row = 0; row < tile.count; row += Lanes::kRowStep) {
    for (int64_t key = first; key < end; key += Lanes::kKeyStep) {
      float* p = s + tile.lanes.Index(row, key, kBlockKeys);
      Store(f(Load(p), row, key), p);
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_TILE_H_
