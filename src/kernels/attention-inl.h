// THE ALGORITHM: streaming attention of an item (a few query tiles of one KV head over a range of
// its keys), for any engine.
//
// S = scale·Q·Kᵀ for a tile and a block of keys, softmax of the tile with a running maximum and
// denominator, O = alpha·O + P·V; at the end O / l (Dao et al. 2022, "FlashAttention", §3.1).
// Nothing of size Tq × Tk exists.
#if defined(FOVEA_SRC_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#undef FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#else
#define FOVEA_SRC_KERNELS_ATTENTION_INL_H_
#endif

#include "kernels/ahead-inl.h"
#include "kernels/modifiers-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int kMaxTiles = 64;
constexpr int64_t kBlocksOfItsEnd = 3;  // behind which an item prepares for the next one

// How Scores and Accumulate of an engine run: at once.
template <class Engine, bool runs_along = Engine::kRunsAlong>
struct Work {
  HWY_INLINE void Scores(const Tile& tile, const typename Engine::KeyRows& k, const Span& span,
                         const Geometry& g, float* s, Ahead& ahead) {
    Engine::Scores(tile, k, span, g, s, ahead);
  }
  HWY_INLINE void Accumulate(const Tile& tile, const typename Engine::ValueRows& v,
                             const Span& span, const Geometry& g, float* p, Ahead& ahead) {
    Engine::Accumulate(tile, v, span, g, p, ahead);
  }
  void SpreadOver(int64_t) {}
  void Step() {}
  void FinishScores() {}
  void Finish() {}
};
// Or, where the engine says so, in pieces, in the steps of another tile's softmax: O of a tile and
// S of the next one.
template <class Engine>
struct Work<Engine, true> : Engine::Work {};

// m = −inf, l = 0, O = 0; or m = sink, l = 1 where a sink takes part.
template <class Engine>
HWY_INLINE void BeginTile(const KernelCall& call, const Item& item, const Tile& tile,
                          bool with_output) {
  const Geometry& g = call.geometry;
  const TensorView& sinks = call.problem->score.sinks;
  const int64_t q_length = call.lengths[item.sequence].q_length;
  std::fill_n(tile.state.m, g.tile_lanes, MinusInfinityScalar());
  std::fill_n(tile.state.l, g.tile_lanes, 0.0f);
  if (sinks.present() && item.takes_sink) {
    ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
      const float sink = ReadAs<float>(static_cast<const char*>(sinks.data) + h * sinks.stride[0]);
      if (i >= q_length || sink == MinusInfinityScalar()) return;
      tile.state.m[r] = sink;
      tile.state.l[r] = 1.0f;
    });
  }
  if (with_output) Engine::BeginOutput(tile, g);
}

// Adds p·v for the non-finite elements of V that TakeValues left out, in the rows that do see them.
template <class Engine>
inline HWY_NOINLINE void AddPoisoned(const KernelCall& call, const Item& item, const Tile& tile,
                                     const Block& block, const Span& span, const uint64_t* poisoned,
                                     const Scratch& w) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  const TensorView& v = call.problem->v;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const Removals removals(call, item, tile);
  for (int64_t j = span.first; j < span.end; ++j) {
    if ((poisoned[j / 64] >> (j % 64) & 1) == 0) continue;
    const int64_t key = block.first + j;
    bool loaded = false;
    ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
      if (key < tile.visible[r].first || key >= tile.visible[r].end || removals.Has(r, h, i, key))
        return;
      if (!loaded)
        LoadRow({RowOf(v, sequence.kv_batch, item.kv_head, sequence.kv_first + key), v.dtype,
                 v.stride[3]},
                0, g.dv, w.v_row);
      loaded = true;
      const float p = Engine::Weights::template At<Lanes>(w.s, r, j, g.block_keys);
      for (int64_t c = 0; c < g.dv; ++c) {
        if (w.v_row[c] - w.v_row[c] != 0.0f) tile.o[Lanes::Index(r, c, g.dv)] += p * w.v_row[c];
      }
    });
  }
}

// The keys between the first and the last block of which some tile sees any; the first is the start
// of its block.
template <class Engine>
HWY_INLINE KeyRange VisibleBlocks(const KernelCall& call, const Item& item, const Tile* tiles,
                                  int count) {
  const int64_t block_keys = call.geometry.block_keys;
  KeyRange keys = {item.keys.end, item.keys.first};
  for (int t = 0; t < count; ++t)
    keys = {std::min(keys.first, tiles[t].any.first), std::max(keys.end, tiles[t].any.end)};
  keys.first = item.keys.first +
               (std::max(keys.first, item.keys.first) - item.keys.first) / block_keys * block_keys;
  const auto is_seen = [&](int64_t first) {
    const Block block = {first, std::min(block_keys, item.keys.end - first)};
    for (int t = 0; t < count; ++t) {
      const Span span = SpanOf<typename Engine::Lanes>(call, item, tiles[t], block);
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

// Every block of keys that some tile sees, as scores: visit(tile, block, span, values, ahead, work)
// finds S of the tile in w.s.
template <class Engine, class Visit>
HWY_INLINE void ForEachScoredBlock(const KernelCall& call, const Item& item, Tile* tiles, int count,
                                   bool with_values, Scratch& w, const Visit& visit) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  const KeyRange keys = VisibleBlocks<Engine>(call, item, tiles, count);
  Ahead ahead;
  Work<Engine> work;
  Span spans[kMaxTiles];
  int seen_tiles[kMaxTiles];
  bool ends = false;
  for (int64_t first = keys.first; first < keys.end; first += g.block_keys) {
    const Block block = {first, std::min<int64_t>(g.block_keys, item.keys.end - first)};
    bool removes = call.problem->score.bias.present();
    int seen = 0;
    for (int t = 0; t < count; ++t) {
      spans[t] = SpanOf<Lanes>(call, item, tiles[t], block);
      if (spans[t].first == spans[t].end) continue;
      seen_tiles[seen++] = t;
      removes = removes || spans[t].partial || spans[t].masked || spans[t].in_tree;
    }
    if (seen == 0) continue;
    const typename Engine::KeyRows k = Engine::TakeKeys(call, item, block, w);
    typename Engine::ValueRows v = {};
    if (with_values) v = Engine::TakeValues(call, item, block, removes, w);
    ahead.block = PrefetchQueue();
    const int64_t left = keys.end - first - g.block_keys;  // keys behind this block
    if (left > 0) {
      const Block next = {first + g.block_keys, std::min<int64_t>(g.block_keys, left)};
      ahead.block.AddBlock(call, item, next);
      ahead.block.AddBias(call.problem->score.bias, call, item, next);
      ahead.block.AddBias(call.problem->score.mask, call, item, next);
    }
    ahead.block.SpreadOver(seen * Engine::MicroKernelCalls(block.n, g));
    if (!ends && left <= kBlocksOfItsEnd * g.block_keys) {
      ends = true;
      if (with_values) AddOutput(call, item, ahead.item);
      if (call.next != nullptr) AddItem(call, *call.next, ahead.item);
      ahead.item.SpreadOver(seen *
                            Engine::MicroKernelCalls(block.n + std::max<int64_t>(left, 0), g));
    }
    for (int n = 0; n < seen; ++n) {
      const Tile& tile = tiles[seen_tiles[n]];
      const Span& span = spans[seen_tiles[n]];
      if (!Engine::kRunsAlong || n == 0) work.Scores(tile, k, span, g, w.s, ahead);
      work.FinishScores();
      Modify<Lanes>(call, item, tile, block, span, w);
      if (span.partial)
        MaskByPosition<Lanes>(tile, block, span, g.block_keys, w.row_values, g.tile_lanes, w.s);
      Engine::Seal(tile, span, g.block_keys, w.s);
      if constexpr (Engine::kRunsAlong) {
        if (n + 1 < seen)
          work.Scores(tiles[seen_tiles[n + 1]], k, spans[seen_tiles[n + 1]], g, w.next_s, ahead);
      }
      visit(tile, block, span, v, ahead, work);
      if constexpr (Engine::kRunsAlong) std::swap(w.s, w.next_s);
    }
    work.Finish();
  }
}

template <class Engine>
HWY_INLINE void SoftmaxOf(const Tile& tile, const Span& span, const Geometry& g, float* s,
                          Work<Engine>& work) {
  using Lanes = typename Engine::Lanes;
  const int64_t end = RoundUp(span.end, Lanes::kKeyStep);
  work.SpreadOver((tile.count + Lanes::kRowStep - 1) / Lanes::kRowStep *
                  ((end - span.first) / (4 * Lanes::kKeyStep)));
  Softmax<Lanes, typename Engine::Weights>(s, tile.count, span.first, end, g.block_keys, tile.state,
                                           work);
}

// The rows of an output tensor that the tile writes: those of query 0 are `index` on the third axis
// of `batch`.
HWY_INLINE Destination OutputRows(const MutableTensorView& view, int64_t batch, int64_t index,
                                  const Tile& tile, const Item& item, int64_t group) {
  Destination out;
  out.count = tile.count;
  out.dtype = view.dtype;
  out.stride = view.stride[3];
  out.plain = true;
  ForEachRow(tile, item, group, [&](int r, int64_t h, int64_t i) {
    out.row[r] = RowOf(view, batch, h, index + i);
    out.plain = out.plain && IsPlainF32(view.dtype, view.stride[3], 0, out.row[r]);
  });
  return out;
}

HWY_INLINE float LogSumExp(float m, float l) {
  return l == 0.0f ? MinusInfinityScalar() : m + std::log(l);
}

// The same for the rows of a tile.
HWY_INLINE void LogSumExps(const Tile& tile, float* HWY_RESTRICT lse) {
  const DF df;
  for (int r = 0; r < tile.count; r += kLanes) {
    const size_t n = static_cast<size_t>(std::min(tile.count - r, kLanes));
    const VF m = hn::LoadN(df, tile.state.m + r, n), l = hn::LoadN(df, tile.state.l + r, n);
    const VF sum = hn::IfThenElse(hn::IsNaN(l), l, hn::Add(m, hn::Log(df, l)));
    hn::StoreN(hn::IfThenElse(hn::Eq(l, hn::Zero(df)), MinusInfinity(), sum), df, lse + r, n);
  }
}

HWY_INLINE void StoreLse(const KernelCall& call, const SequenceLengths& sequence, int64_t h,
                         int64_t i, float value) {
  std::memcpy(RowOf(call.problem->lse, sequence.q_batch, h, sequence.q_first + i), &value,
              sizeof(value));
}

// 1 / l, and 0 for rows that have seen nothing.
HWY_INLINE void InverseDenominators(const float* l, int64_t count, int64_t lanes, float* inverse) {
  for (int64_t r = 0; r < lanes; ++r) inverse[r] = r >= count || l[r] == 0.0f ? 0.0f : 1.0f / l[r];
}

// out = O / l and lse; or the tile's part of a partial state.
template <class Engine>
HWY_INLINE void Finish(const KernelCall& call, const Item& item, const Tile& tile,
                       const Scratch& w) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  float* inverse = w.row_values;
  InverseDenominators(Engine::Denominators(tile, g), tile.count, g.tile_lanes, inverse);
  if (item.partial != nullptr) {
    const int64_t row = tile.first_row - item.first_row;
    Destination out;
    out.count = tile.count;
    out.dtype = DType::kF32;
    out.stride = sizeof(float);
    out.plain = true;
    for (int r = 0; r < tile.count; ++r)
      out.row[r] = reinterpret_cast<char*>(item.partial + (row + r) * g.dv);
    Lanes::ToRows(tile.o, g.dv, g.dv, inverse, out);
    float* m = item.partial + item.rows * g.dv;
    std::copy_n(tile.state.m, tile.count, m + row);
    std::copy_n(tile.state.l, tile.count, m + item.rows + row);
    return;
  }
  const SequenceLengths& sequence = call.lengths[item.sequence];
  Lanes::ToRows(
      tile.o, g.dv, g.dv, inverse,
      OutputRows(call.problem->out, sequence.q_batch, sequence.q_first, tile, item, g.group));
  if (!call.problem->lse.present()) return;
  float* lse = w.row_values;
  LogSumExps(tile, lse);
  ForEachRow(tile, item, g.group,
             [&](int r, int64_t h, int64_t i) { StoreLse(call, sequence, h, i, lse[r]); });
}

// Packs the item's tiles; returns how many.
template <class Engine>
HWY_INLINE int BeginTiles(const KernelCall& call, const Item& item, const Scratch& w,
                          bool with_output, Tile* tiles) {
  const Geometry& g = call.geometry;
  int count = 0;
  for (int64_t row = 0; row < item.rows; row += g.tile_rows, ++count) {
    Tile& tile = tiles[count];
    tile = MakeTile<Engine>(w, g, count);
    tile.first_row = item.first_row + row;
    tile.count = static_cast<int>(std::min<int64_t>(g.tile_rows, item.rows - row));
    FindVisibleKeys(call, item, tile);
    if (tile.any.first < tile.any.end) Engine::PackQueries(call, item, w, tile);
    BeginTile<Engine>(call, item, tile, with_output);
  }
  w.header->executed_target = HWY_TARGET;
  return count;
}

template <class Engine>
void Attend(const KernelCall& call, const Item& item, char* scratch) {
  Scratch w = CarveScratch<Engine>(call.geometry, scratch);
  Tile tiles[kMaxTiles];
  const int count = BeginTiles<Engine>(call, item, w, true, tiles);
  ForEachScoredBlock<Engine>(
      call, item, tiles, count, true, w,
      [&](const Tile& tile, const Block& block, const Span& span,
          const typename Engine::ValueRows& v, Ahead& ahead, Work<Engine>& work) HWY_ATTR {
        SoftmaxOf<Engine>(tile, span, call.geometry, w.s, work);
        work.Accumulate(tile, v, span, call.geometry, w.s, ahead);
        if (v.poisoned == nullptr) return;
        work.Finish();
        AddPoisoned<Engine>(call, item, tile, block, span, v.poisoned, w);
      });
  for (int t = 0; t < count; ++t) Finish<Engine>(call, item, tiles[t], w);
}

// Every element of the tiles' rows of call.matrix.
HWY_INLINE void FillMatrix(const KernelCall& call, const Item& item, const Tile* tiles, int count,
                           float value) {
  const MutableTensorView& matrix = *call.matrix;
  float values[kStageColumns];
  std::fill_n(values, kStageColumns, value);
  for (int t = 0; t < count; ++t) {
    const Destination out =
        OutputRows(matrix, item.sequence, 0, tiles[t], item, call.geometry.group);
    for (int r = 0; r < out.count; ++r) {
      for (int64_t j = 0; j < matrix.shape[3]; j += kStageColumns) {
        StoreRow(values, std::min(matrix.shape[3] - j, kStageColumns), out.dtype,
                 out.row[r] + j * out.stride, out.stride);
      }
    }
  }
}

// S of the span → call.matrix.
template <class Engine>
HWY_INLINE void StoreScores(const KernelCall& call, const Item& item, const Tile& tile,
                            const Block& block, const Span& span, const Scratch& w) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  float* ones = w.row_values;
  std::fill_n(ones, g.tile_lanes, 1.0f);
  Destination out = OutputRows(*call.matrix, item.sequence, 0, tile, item, g.group);
  for (int r = 0; r < out.count; ++r) out.row[r] += (block.first + span.first) * out.stride;
  Lanes::ToRows(w.s + Lanes::Index(0, span.first, g.block_keys), span.end - span.first,
                g.block_keys, ones, out);
}

// S = exp(S − m) / l with the final m and l.
template <class Lanes>
HWY_INLINE void Normalise(const Tile& tile, const Span& span, const Geometry& g, const Scratch& w) {
  float* inverse = w.row_values;
  InverseDenominators(tile.state.l, tile.count, g.tile_lanes, inverse);
  ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t) HWY_ATTR {
    const VF p = ExpNonPositive(DF(), hn::Sub(s, ExponentBase(Lanes::PerRow(tile.state.m, row))));
    // A removed pair has weight 0 even in a NaN row, where the denominator is NaN.
    return hn::IfThenZeroElse(hn::Eq(s, MinusInfinity()), hn::Mul(p, Lanes::PerRow(inverse, row)));
  });
}

// Scores at call.stage → call.matrix: −inf where there is no pair. Weights, 0 there, need the final
// m and l: a pass over the keys before.
template <class Engine>
void EmitMatrix(const KernelCall& call, const Item& item, char* scratch) {
  using Lanes = typename Engine::Lanes;
  Scratch w = CarveScratch<Engine>(call.geometry, scratch);
  const Geometry& g = call.geometry;
  const bool weights = call.stage == ScoreStage::kWeights;
  Tile tiles[kMaxTiles];
  const int count = BeginTiles<Engine>(call, item, w, false, tiles);
  FillMatrix(call, item, tiles, count, weights ? 0.0f : MinusInfinityScalar());
  for (bool final : {false, true}) {
    if (!final && !weights) continue;
    ForEachScoredBlock<Engine>(call, item, tiles, count, false, w,
                               [&](const Tile& tile, const Block& block, const Span& span,
                                   const typename Engine::ValueRows&, Ahead&, Work<Engine>& work)
                                   HWY_ATTR {
                                     if (!final) return SoftmaxOf<Engine>(tile, span, g, w.s, work);
                                     if (weights) Normalise<Lanes>(tile, span, g, w);
                                     StoreScores<Engine>(call, item, tile, block, span, w);
                                   });
  }
}

// Merges the partial states of a row block in key order (the law of fovea/merge.h, with m and l
// kept apart).
template <class Engine>
void MergeParts(const KernelCall& call, const MergeItem& item, char* scratch) {
  const Geometry& g = call.geometry;
  float* HWY_RESTRICT sum = CarveScratch<Engine>(g, scratch).v_row;
  const Problem& problem = *call.problem;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  const int64_t part_floats = PartialFloats(item.rows, g.dv);
  for (int64_t row = 0; row < item.rows; ++row) {
    const int64_t r = item.first_row + row, i = r / g.group,
                  h = item.kv_head * g.group + r % g.group;
    const float* m_of = item.partials + item.rows * g.dv + row;
    const float* l_of = m_of + item.rows;
    float m = MinusInfinityScalar();
    for (int64_t n = 0; n < item.parts; ++n) {
      if (!(l_of[n * part_floats] == 0.0f)) m = std::max(m, m_of[n * part_floats]);
    }
    std::fill_n(sum, g.dv, 0.0f);
    float l = 0.0f;
    for (int64_t n = 0; n < item.parts; ++n) {
      const float part_l = l_of[n * part_floats];
      if (part_l == 0.0f) continue;  // saw no key
      const float weight =
          part_l * hn::GetLane(ExpNonPositive(DF(), hn::Set(DF(), m_of[n * part_floats] - m)));
      const float* part = item.partials + n * part_floats + row * g.dv;
      for (int64_t c = 0; c < g.dv; ++c) sum[c] += weight * part[c];
      l += weight;
    }
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int64_t c = 0; c < g.dv; ++c) sum[c] *= inverse;
    StoreRow(sum, g.dv, problem.out.dtype,
             RowOf(problem.out, sequence.q_batch, h, sequence.q_first + i), problem.out.stride[3]);
    if (problem.lse.present()) StoreLse(call, sequence, h, i, LogSumExp(m, l));
  }
}

// f of the engine that a geometry means: its tiles have kVectors vectors of queries or twice as
// many, which the plan chooses by the number of rows.
template <template <int> class Engine, int kVectors, class F>
HWY_INLINE auto WithTileEngine(const Geometry& g, const F& f) {
  return g.tile_lanes == kVectors * kLanes ? f(Engine<kVectors>()) : f(Engine<2 * kVectors>());
}

template <template <int> class Engine, int kVectors = 1>
EngineKernels TileKernels() {
  EngineKernels kernels;
  kernels.min_tile_rows = kVectors * kLanes;
  kernels.max_tile_rows = 2 * kVectors * kLanes;
  kernels.scratch_bytes = [](const Geometry& g) {
    return WithTileEngine<Engine, kVectors>(
        g, [&](auto engine) { return CarveScratch<decltype(engine)>(g, nullptr).bytes; });
  };
  kernels.attend = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { Attend<decltype(engine)>(call, item, scratch); });
  };
  kernels.matrix = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { EmitMatrix<decltype(engine)>(call, item, scratch); });
  };
  kernels.merge = [](const KernelCall& call, const MergeItem& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { MergeParts<decltype(engine)>(call, item, scratch); });
  };
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
