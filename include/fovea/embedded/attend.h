// The algorithm: streaming attention of an item (a few query tiles of one KV head over all of its
// keys), for either layout of a tile.
//
// S = scale·Q·Kᵀ for a tile and a block of keys, softmax with a running maximum and denominator, O
// = alpha·O + P·V; at the end O / l (Dao et al. 2022, "FlashAttention", §3.1). Nothing of size Tq ×
// Tk exists. In which order sums run is told in sums.h.
#ifndef FOVEA_EMBEDDED_ATTEND_H_
#define FOVEA_EMBEDDED_ATTEND_H_

#include <new>

#include "fovea/embedded/finish.h"
#include "fovea/embedded/fp_state.h"
#include "fovea/embedded/mask.h"
#include "fovea/embedded/modifiers.h"
#include "fovea/embedded/row_f32.h"
#include "fovea/embedded/softmax.h"
#include "fovea/embedded/tile_f32.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// With V times `factor`; adds to `faults` as Finish does.
template <class Engine>
FOVEA_EMBEDDED_KERNEL void AttendItem(const typename Engine::Lanes& lanes, const Head& head,
                                      int64_t first_row, int64_t rows, float factor,
                                      const ScratchLayout& layout, char* scratch,
                                      SumFaults& faults) {
  using Lanes = typename Engine::Lanes;
  const Problem& p = *head.problem;
  const auto floats = [&](size_t at) { return reinterpret_cast<float*>(scratch + at); };
  float *s = floats(layout.s), *alpha = floats(layout.alpha), *values = floats(layout.values),
        *stage = floats(layout.stage);

  auto* const tiles = reinterpret_cast<Tile<Lanes>*>(scratch + layout.tiles);
  int count = 0;
  KeyRange keys = {INT64_MAX, 0};
  for (int64_t row = 0; row < rows; row += lanes.rows(), ++count) {
    Tile<Lanes>& tile = *new (tiles + count) Tile<Lanes>;
    tile.first_row = first_row + row;
    tile.count = static_cast<int>(Least(rows - row, lanes.rows()));
    tile.lanes = lanes.For(tile.count);
    tile.q = floats(layout.q) + count * lanes.Floats(p.dk);
    tile.o = floats(layout.o) + count * lanes.Floats(p.dv);
    tile.o_total = floats(layout.o_total) + count * lanes.Floats(p.dv);
    float* of_rows = floats(layout.of_rows) + count * Tile<Lanes>::kNumbersOfRow * lanes.rows();
    for (float** numbers :
         {&tile.m, &tile.l, &tile.m_total, &tile.l_total, &tile.exponent[0], &tile.exponent[1]}) {
      *numbers = of_rows;
      of_rows += lanes.rows();
    }
    ForEachRow(head, tile, [&](int, int64_t, int64_t i) {
      const KeyRange visible = VisibleKeys(head, i);
      tile.all = {Most(tile.all.first, visible.first), Least(tile.all.end, visible.end)};
      if (visible.first < visible.end)
        tile.any = {Least(tile.any.first, visible.first), Most(tile.any.end, visible.end)};
    });
    for (int r = 0; r < tile.lanes.rows(); ++r) tile.m[r] = -kInfinity, tile.l[r] = 0;
    for (int64_t x = 0; x < tile.lanes.Floats(p.dv); x += kLanes) Store(V(0.0f), tile.o + x);
    if (tile.any.first < tile.any.end) PackQueries(head, stage, tile);
    keys = {Least(keys.first, tile.any.first), Most(keys.end, tile.any.end)};
  }

  for (int64_t at = keys.first / kBlockKeys * kBlockKeys; at < keys.end;) {
    const Block block = NextBlock(head, at, keys.end);
    at += block.n;
    const Matrix k = Take<Engine>(head, p.k, block, p.dk, 1, floats(layout.k));
    Matrix v = {};
    Ahead ahead;
    if (at < keys.end) {
      const Block next = NextBlock(head, at, keys.end);
      ahead.run[0] = RowsAhead(head, p.k, next, p.dk);
      ahead.run[1] = RowsAhead(head, p.v, next, p.dv);
      ahead.rows_per_step = 2 * next.n / (count * Engine::Calls(block.n, p.dv) + 1) + 1;
    }
    int is_finite = -1;  // not known yet
    for (int t = 0; t < count; ++t) {
      Tile<Lanes>& tile = tiles[t];
      const int64_t end = Least(tile.any.end - block.first, block.n);
      const int64_t first =
          Most(tile.any.first - block.first, 0) / Lanes::kKeyStep * Lanes::kKeyStep;
      if (first >= end) continue;
      const bool partial = block.first + first < tile.all.first || block.first + end > tile.all.end;
      Engine::Scores(tile, k, first, end, p.dk, s, floats(layout.run), floats(layout.lost), ahead);
      if (tile.has_exponents) ApplyExponents(tile, first, end, s);
      const bool has_bias = p.bias.data != nullptr, has_function = p.score_function != nullptr;
      if (has_bias) AddBias(head, tile, block, BiasStep::kAdd, first, end, stage, s);
      if (has_function) ApplyFunction(head, tile, block, first, end, s);
      if (has_function && has_bias)
        AddBias(head, tile, block, BiasStep::kRemove, first, end, stage, s);
      if (partial) MaskByPosition(head, tile, block, first, end, values, s);
      if (v.data == nullptr) v = Take<Engine>(head, p.v, block, p.dv, factor, floats(layout.v));
      const bool removes = partial || has_bias || has_function;
      if (removes && is_finite < 0) is_finite = !HasNonFinite(v, 0, block.n, p.dv);
      // of its own keys: no other tile changes its bits
      const bool isolates = removes && is_finite == 0 && HasNonFinite(v, first, end, p.dv);
      uint64_t seen[Lanes::kMostRows];
      if (isolates) FindSeen(head, tile, block, first, end, s, seen);
      Softmax(tile, first, end, alpha, s);
      if (isolates) {
        AccumulateSeen(tile, v, first, end, p.dv, seen, s, alpha);
      } else {
        Engine::Accumulate(tile, v, first, end, p.dv, s, alpha, ahead);
      }
      tile.has_open_group = true;
    }
    if (at % kGroupKeys != 0) continue;
    for (int t = 0; t < count; ++t) {
      if (tiles[t].has_open_group) JoinGroup(tiles[t], p.dv);
    }
  }
  for (int t = 0; t < count; ++t) {
    Tile<Lanes>& tile = tiles[t];
    if (tile.has_total && tile.has_open_group) JoinGroup(tile, p.dv);
    Finish(head, tile, factor, values, stage, s, faults);
  }
}

// All query rows of a KV head. Only those that exist share tiles: what a sequence gives does not
// depend on how many there might have been.
template <class Engine>
FOVEA_EMBEDDED_KERNEL void AttendHead(const typename Engine::Lanes& lanes, const Head& head,
                                      char* scratch, size_t scratch_bytes) {
  const Problem& p = *head.problem;
  const int64_t rows = head.sequence.q_length * head.group;
  int64_t tiles = TilesOf(lanes, rows);
  while (tiles > 1 && LayOut(lanes, p.dk, p.dv, tiles).bytes > scratch_bytes) --tiles;
  const ScratchLayout layout = LayOut(lanes, p.dk, p.dv, tiles);
  const int64_t item_rows = tiles * lanes.rows();
  for (int64_t row = 0; row < rows; row += item_rows) {
    // what is not finite although it might be, and what is too small for its bits, once more
    SumFaults faults;
    for (const float factor : {1.0f, kScaleDown, kScaleUp}) {
      if (factor < 1 && !faults.too_large) continue;
      if (factor > 1 && (!faults.too_small || p.out.type == Type::kF16)) continue;  // those are 0
      AttendItem<Engine>(lanes, head, row, Least(rows - row, item_rows), factor, layout, scratch,
                         faults);
    }
  }
  FinishAbsent(head);
}

// Of a validated problem. Few query rows are computed with lanes along the head dimension; by
// sequence, so that batches change no bits. A function of its own: no arithmetic leaves it for
// another floating-point state.
FOVEA_EMBEDDED_KERNEL void Run(const Problem& p, void* memory, size_t bytes) {
  const size_t skipped =
      (kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment) % kAlignment;
  char* const scratch = static_cast<char*>(memory) + skipped;
  bytes -= skipped;
  Head head;
  head.problem = &p;
  head.group = p.Hq / p.Hkv;
  head.scale = p.has_scale ? p.scale : 1 / xsimd::sqrt(V(static_cast<float>(p.dk))).get(0);
  for (head.b = 0; head.b < p.B; ++head.b) {
    head.sequence = SequenceOf(p, head.b);
    const int64_t rows = head.sequence.q_length * head.group;
    for (head.kv_head = 0; head.kv_head < p.Hkv; ++head.kv_head) {
      if (rows <= kFewRows) {
        AttendHead<RowF32>(LanesAreKeys(), head, scratch, bytes);
      } else {
        AttendHead<TileF32>(LanesAreQueries{rows <= kLanes ? 1 : 2}, head, scratch, bytes);
      }
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_ATTEND_H_
