// THE ALGORITHM: streaming attention of an item (a few query tiles of one KV head over a range of
// its keys), for any engine.
//
// S = scale·Q·Kᵀ for a tile and a block of keys, softmax of the tile with a running maximum and
// denominator, O = alpha·O + P·V; at the end O / l (Dao et al. 2022, "FlashAttention", §3.1).
// Nothing of size Tq × Tk exists. In which order sums run: sums-inl.h.
#if defined(FOVEA_SRC_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#undef FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#else
#define FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#endif

#include <cmath>
#include <limits>
#include <new>

#include "kernels/blocks-inl.h"
#include "kernels/modifiers-inl.h"
#include "kernels/nonfinite-inl.h"
#include "kernels/output-inl.h"
#include "kernels/pipeline-inl.h"
#include "kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// f(r, sink) for the rows that have one in this item.
template <class F>
HWY_INLINE void ForEachSink(const Job& job, const Tile& tile, const F& f) {
  const TensorView& sinks = job.call.problem->score.sinks;
  if (!sinks.present() || !job.item.takes_sink) return;
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
    const float sink = PerHeadAt(sinks, h);
    if (i < job.sequence.q_length && sink != MinusInfinityScalar()) f(r, sink);
  });
}

// m = −inf, l = 0, O = 0; or m = sink, l = 1 where a sink takes part.
template <class Engine>
HWY_INLINE void BeginTile(const Job& job, const Tile& tile, bool with_output) {
  const Geometry& g = job.g;
  std::fill_n(tile.state.m, g.tile_lanes, MinusInfinityScalar());
  std::fill_n(tile.state.l, g.tile_lanes, 0.0f);
  std::fill_n(tile.state.l_rest, g.tile_lanes, 0.0f);
  ForEachSink(job, tile, [&](int r, float sink) {
    if (!std::isfinite(sink)) return;
    tile.state.m[r] = sink;
    tile.state.l[r] = 1.0f;
  });
  if (!with_output) return;
  Engine::BeginOutput(tile, g);
  BeginGroups<Engine>(tile, g);
}

// What remains to be done when all keys have been seen. A sink that is infinite or NaN makes rows
// NaN that see a key, as the formula does, and is the lse of the others.
template <class Engine>
HWY_INLINE void EndTile(const Job& job, const Tile& tile, bool with_output) {
  const Geometry& g = job.g;
  if (with_output && g.has_groups) EndGroups<Engine>(tile, g);
  EndDenominators(tile, g);
  ForEachSink(job, tile, [&](int r, float sink) {
    if (std::isfinite(sink)) return;
    const bool sees_none = tile.state.l[r] == 0.0f;
    if (sees_none) tile.state.m[r] = sink;
    tile.state.l[r] = sees_none ? 1.0f : std::numeric_limits<float>::quiet_NaN();
    if (with_output) Engine::Denominators(tile, g)[r] = tile.state.l[r];
  });
}

// Packs the item's tiles; returns how many.
template <class Engine>
HWY_INLINE int BeginTiles(const Job& job, bool with_output, Tile* tiles) {
  const Item& item = job.item;
  const Geometry& g = job.g;
  int count = 0;
  for (int64_t row = 0; row < item.rows; row += g.tile_rows, ++count) {
    Tile& tile = *new (tiles + count) Tile(MakeTile<Engine>(job.w, g, count));
    tile.first_row = item.first_row + row;
    tile.count = static_cast<int>(std::min<int64_t>(g.tile_rows, item.rows - row));
    FindVisibleKeys(job, tile);
    if (tile.any.first < tile.any.end) Engine::PackQueries(job, tile);
    BeginTile<Engine>(job, tile, with_output);
  }
  job.w.header->executed_target = HWY_TARGET;
  return count;
}

// Scores of the walk's n-th part, as far as call.stage, in its `s`.
template <class Engine>
HWY_INLINE void ScorePart(const Job& job, const BlockWalk<Engine>& walk, int n,
                          const typename Engine::Keys& k, typename Engine::Pipeline& pipeline,
                          Ahead& ahead) {
  using Lanes = typename Engine::Lanes;
  const Part& part = walk.part(n);
  pipeline.Scores(part, walk.part_behind(n), k, ahead);
  Engine::Seal(part);  // modifiers see padding, too
  Modify<Lanes>(job, part);
  if (part.span.partial) MaskByPosition<Lanes>(job, part);
  Engine::Seal(part);  // and may have changed it
}

template <class Engine>
SumFaults AttendOnce(const Job& job) {
  using Lanes = typename Engine::Lanes;
  // 1. Pack scale·Q of every tile; m = −inf, l = 0, O = 0.
  Tiles tiles;
  const int count = BeginTiles<Engine>(job, true, tiles);
  {
    typename Engine::Pipeline pipeline;
    Ahead ahead;
    RemovedByFunction removed;
    BlockWalk<Engine> walk(job, tiles, count);
    int64_t group = job.item.keys.first / job.g.group_keys;
    while (walk.Next()) {
      if (const int64_t next = walk.block().first / job.g.group_keys; next != group) {
        for (int t = 0; t < count; ++t) EndGroup<Engine>(tiles[t], job.g);
        group = next;
      }
      // 2. Take K and V of a block once for all tiles: in place, widened or copied.
      const auto k = Engine::TakeKeys(job, walk.block());
      const auto v = Engine::TakeValues(job, walk.block(), walk.removes());
      ahead.Plan<Engine>(job, walk.block(), walk.behind(), walk.parts(), true);
      for (int n = 0; n < walk.parts(); ++n) {
        const Part& part = walk.part(n);
        ScorePart<Engine>(job, walk, n, k, pipeline, ahead);  // 3. S = scale·Q·Kᵀ, modified, masked
        if (v.poisoned != nullptr) removed.Note<Lanes>(job, part, v.poisoned);
        pipeline.Softmax(part);               // 4. S → P, m, l, alpha
        pipeline.Accumulate(part, v, ahead);  // 5. O = alpha·O + P·V
        if (v.poisoned == nullptr) continue;
        pipeline.Complete();
        AddPoisoned<Engine>(job, part, v.poisoned, removed);
      }
      pipeline.Complete();
    }
  }
  // 6. Store O / l and lse, or a partial state.
  SumFaults faults;
  for (int t = 0; t < count; ++t) {
    EndTile<Engine>(job, tiles[t], true);
    faults |= StoreOutput<Engine>(job, tiles[t]);
  }
  return faults;
}

template <class Engine>
void Attend(const KernelCall& call, const Item& item, char* scratch) {
  const auto attend = [&](float value_scale) {
    return AttendOnce<Engine>(BeginJob<Engine>(call, item, scratch, value_scale));
  };
  const SumFaults faults = attend(1.0f);
  if (faults.too_large) attend(kScaleDown);
  if (faults.too_small) attend(kScaleUp);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
