// THE ALGORITHM: streaming attention of an item (a few query tiles of one KV head over a range of its keys), for any engine.
//
// S = scale·Q·Kᵀ for a tile and a block of keys, softmax of the tile with a running maximum and denominator, O = alpha·O + P·V; at the end O / l (Dao et
// al. 2022, "FlashAttention", §3.1). Nothing of size Tq × Tk exists.
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

// m = −inf, l = 0, O = 0; or m = sink, l = 1 where a sink takes part.
template <class Engine>
HWY_INLINE void BeginTile(const KernelCall& call, const Item& item, const Tile& tile, bool with_output) {
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
  if (with_output) std::fill_n(tile.o, Engine::Lanes::TileFloats(g.tile_lanes, g.dv), 0.0f);
}

// Values of the block for tiles of which some remove pairs: 0·NaN of a removed pair must not reach a sum, so non-finite elements are zeroed and listed.
template <class Engine>
HWY_INLINE Values TakeValues(const KernelCall& call, const Item& item, const Block& block, bool removes, const Scratch& w) {
  const int64_t dv = call.geometry.dv;
  const Rows rows = TakeRows(call.problem->v, item, block, Engine::kAliasing, w.v);
  if (!removes || !HasNonFinite(rows, block.n, dv)) return {rows, nullptr};
  IsolateNonFinite(rows, block.n, dv, w.v, CopiedStride(dv), w.poisoned);
  return {{w.v, CopiedStride(dv)}, w.poisoned};
}

HWY_INLINE bool RemovedBy(const TensorView& bias_or_mask, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!bias_or_mask.present()) return false;
  const Broadcast view = BroadcastView(bias_or_mask);
  float x;
  LoadRow(view.dtype, view.data + b * view.stride[0] + h * view.stride[1] + i * view.stride[2] + j * view.stride[3], 0, 1, &x);
  return x == MinusInfinityScalar();
}

// Adds p·v for the non-finite elements of V that TakeValues left out, in the rows that do see them.
template <class Engine>
inline HWY_NOINLINE void AddPoisoned(const KernelCall& call, const Item& item, const Tile& tile, const Block& block, const Span& span,
                                     const Values& values, const Scratch& w) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  const TensorView& v = call.problem->v;
  const Score& score = call.problem->score;
  for (int64_t j = span.first; j < span.end; ++j) {
    if ((values.poisoned[j / 64] >> (j % 64) & 1) == 0) continue;
    const int64_t key = block.first + j;
    LoadRow(v.dtype, static_cast<const char*>(v.data) + item.sequence * v.stride[0] + item.kv_head * v.stride[1] + key * v.stride[2],
            v.stride[3], g.dv, w.v_row);
    ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
      if (key < tile.visible[r].first || key >= tile.visible[r].end) return;
      if (RemovedBy(score.mask, item.sequence, h, i, key) || RemovedBy(score.bias, item.sequence, h, i, key)) return;
      const float p = w.s[Lanes::Index(r, j, g.block_keys)];
      for (int64_t c = 0; c < g.dv; ++c) {
        if (w.v_row[c] - w.v_row[c] != 0.0f) tile.o[Lanes::Index(r, c, g.dv)] += p * w.v_row[c];
      }
    });
  }
}

// Every block of keys that some tile sees, as scores: visit(tile, block, span, values, ahead) finds S of the tile in scratch.
template <class Engine, class Visit>
HWY_INLINE void ForEachScoredBlock(const KernelCall& call, const Item& item, Tile* tiles, int count, bool with_values, Scratch& w,
                                   const Visit& visit) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  const bool removes_pairs = RemovesPairs(call.problem->score);
  KeyRange keys = {item.keys.end, item.keys.first};
  for (int t = 0; t < count; ++t) keys = {std::min(keys.first, tiles[t].any.first), std::max(keys.end, tiles[t].any.end)};
  const int64_t start = item.keys.first + (std::max(keys.first, item.keys.first) - item.keys.first) / g.block_keys * g.block_keys;
  Ahead ahead;
  bool ends = false;
  for (int64_t first = start; first < keys.end; first += g.block_keys) {
    const Block block = {first, std::min<int64_t>(g.block_keys, item.keys.end - first)};
    const auto sees = [&](const Tile& tile) { return tile.any.first < block.first + block.n && tile.any.end > block.first; };
    bool removes = removes_pairs;
    int64_t seen = 0;
    for (int t = 0; t < count; ++t) {
      if (!sees(tiles[t])) continue;
      ++seen;
      removes = removes || Clamp<Lanes>(tiles[t], block).partial;
    }
    if (seen == 0) continue;
    const Rows k = TakeRows(call.problem->k, item, block, Engine::kAliasing, w.k);
    const Values v = with_values ? TakeValues<Engine>(call, item, block, removes, w) : Values{{nullptr, 0}, nullptr};
    ahead.block = PrefetchQueue();
    const int64_t left = keys.end - first - g.block_keys;  // keys behind this block
    if (left > 0) ahead.block.AddBlock(*call.problem, item, {first + g.block_keys, std::min<int64_t>(g.block_keys, left)});
    ahead.block.SpreadOver(seen * Engine::MicroKernelCalls(block.n, g));
    if (!ends && left <= kBlocksOfItsEnd * g.block_keys) {
      ends = true;
      if (with_values) AddOutput(call, item, ahead.item);
      if (call.next != nullptr) AddItem(call, *call.next, ahead.item);
      ahead.item.SpreadOver(seen * Engine::MicroKernelCalls(block.n + std::max<int64_t>(left, 0), g));
    }
    for (int t = 0; t < count; ++t) {
      const Tile& tile = tiles[t];
      if (!sees(tile)) continue;
      const Span span = Clamp<Lanes>(tile, block);
      Engine::Scores(tile, k, span, g, w.s, ahead);
      Modify<Lanes>(call, item, tile, block, span, w);
      if (span.partial) MaskByPosition<Lanes>(tile, block, span, g.block_keys, w.row_values, g.tile_lanes, w.s);
      Engine::Seal(tile, span, g.block_keys, w.s);
      visit(tile, block, span, v, ahead);
    }
  }
}

template <class Engine>
HWY_INLINE void SoftmaxOf(const Tile& tile, const Span& span, const Geometry& g, float* s) {
  using Lanes = typename Engine::Lanes;
  Softmax<Lanes>(s, tile.count, span.first, RoundUp(span.end, Lanes::kKeyStep), g.block_keys, tile.state);
}

// The rows of an output tensor that the tile writes, from column `first` on.
HWY_INLINE RowsOut OutputRows(const MutableTensorView& view, const Tile& tile, const Item& item, int64_t group, int64_t first) {
  RowsOut out;
  out.count = tile.count;
  out.stride = view.stride[3];
  out.contiguous = view.stride[3] == sizeof(float);
  ForEachRow(tile, item, group, [&](int r, int64_t h, int64_t i) {
    out.row[r] =
        static_cast<char*>(view.data) + item.sequence * view.stride[0] + h * view.stride[1] + i * view.stride[2] + first * view.stride[3];
    out.contiguous = out.contiguous && reinterpret_cast<uintptr_t>(out.row[r]) % alignof(float) == 0;
  });
  return out;
}

HWY_INLINE float LogSumExp(float m, float l) { return l == 0.0f ? MinusInfinityScalar() : m + std::log(l); }

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

HWY_INLINE void StoreLse(const MutableTensorView& lse, int64_t b, int64_t h, int64_t i, float value) {
  std::memcpy(static_cast<char*>(lse.data) + b * lse.stride[0] + h * lse.stride[1] + i * lse.stride[2], &value, sizeof(value));
}

// 1 / l, and 0 for rows that have seen nothing.
HWY_INLINE void InverseDenominators(const Tile& tile, int64_t lanes, float* inverse) {
  for (int64_t r = 0; r < lanes; ++r) inverse[r] = r >= tile.count || tile.state.l[r] == 0.0f ? 0.0f : 1.0f / tile.state.l[r];
}

// out = O / l and lse; or the tile's part of a partial state.
template <class Engine>
HWY_INLINE void Finish(const KernelCall& call, const Item& item, const Tile& tile, const Scratch& w) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = call.geometry;
  float* inverse = w.row_values;
  InverseDenominators(tile, g.tile_lanes, inverse);
  if (item.partial != nullptr) {
    const int64_t row = tile.first_row - item.first_row;
    RowsOut out;
    out.count = tile.count;
    out.stride = sizeof(float);
    out.contiguous = true;
    for (int r = 0; r < tile.count; ++r) out.row[r] = reinterpret_cast<char*>(item.partial + (row + r) * g.dv);
    Lanes::ToRows(tile.o, g.dv, g.dv, inverse, out);
    float* m = item.partial + item.rows * g.dv;
    std::copy_n(tile.state.m, tile.count, m + row);
    std::copy_n(tile.state.l, tile.count, m + item.rows + row);
    return;
  }
  Lanes::ToRows(tile.o, g.dv, g.dv, inverse, OutputRows(call.problem->out, tile, item, g.group, 0));
  if (!call.problem->lse.present()) return;
  float* lse = w.row_values;
  LogSumExps(tile, lse);
  ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) { StoreLse(call.problem->lse, item.sequence, h, i, lse[r]); });
}

// Packs the item's tiles; returns how many.
template <class Engine>
HWY_INLINE int BeginTiles(const KernelCall& call, const Item& item, const Scratch& w, bool with_output, Tile* tiles) {
  const Geometry& g = call.geometry;
  int count = 0;
  for (int64_t row = 0; row < item.rows; row += g.tile_rows, ++count) {
    Tile& tile = tiles[count];
    tile = MakeTile<Engine>(w, g, count);
    tile.first_row = item.first_row + row;
    tile.count = static_cast<int>(std::min<int64_t>(g.tile_rows, item.rows - row));
    FindVisibleKeys(call, item, tile);
    if (tile.any.first < tile.any.end) PackQueries<typename Engine::Lanes>(call, item, w, tile);
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
  ForEachScoredBlock<Engine>(call, item, tiles, count, true, w,
                             [&](const Tile& tile, const Block& block, const Span& span, const Values& v, Ahead& ahead) HWY_ATTR {
                               SoftmaxOf<Engine>(tile, span, call.geometry, w.s);
                               Engine::Accumulate(tile, v.rows, span, call.geometry, w.s, ahead);
                               if (v.poisoned != nullptr) AddPoisoned<Engine>(call, item, tile, block, span, v, w);
                             });
  for (int t = 0; t < count; ++t) Finish<Engine>(call, item, tiles[t], w);
}

// The weights need the final m and l: one pass over the keys for those, a second that writes exp(S − m) / l.
template <class Engine>
void EmitWeights(const KernelCall& call, const Item& item, char* scratch) {
  using Lanes = typename Engine::Lanes;
  Scratch w = CarveScratch<Engine>(call.geometry, scratch);
  const Geometry& g = call.geometry;
  const MutableTensorView& weights = call.problem->weights;
  const float zeros[kStageColumns] = {};
  Tile tiles[kMaxTiles];
  const int count = BeginTiles<Engine>(call, item, w, false, tiles);
  for (int t = 0; t < count; ++t) {
    const RowsOut out = OutputRows(weights, tiles[t], item, g.group, 0);
    for (int r = 0; r < out.count; ++r) {
      for (int64_t j = 0; j < weights.shape[3]; j += kStageColumns) {
        StoreRow(zeros, std::min(weights.shape[3] - j, kStageColumns), out.row[r] + j * out.stride, out.stride);
      }
    }
  }
  ForEachScoredBlock<Engine>(call, item, tiles, count, false, w,
                             [&](const Tile& tile, const Block&, const Span& span, const Values&, Ahead&)
                                 HWY_ATTR { SoftmaxOf<Engine>(tile, span, g, w.s); });
  ForEachScoredBlock<Engine>(call, item, tiles, count, false, w,
                             [&](const Tile& tile, const Block& block, const Span& span, const Values&, Ahead&) HWY_ATTR {
                               float* inverse = w.row_values;
                               InverseDenominators(tile, g.tile_lanes, inverse);
                               ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t) HWY_ATTR {
                                 const VF p = ExpNonPositive(DF(), hn::Sub(s, ExponentBase(Lanes::PerRow(tile.state.m, row))));
                                 // A removed pair has weight 0 even in a NaN row, where the denominator is NaN.
                                 return hn::IfThenZeroElse(hn::Eq(s, MinusInfinity()), hn::Mul(p, Lanes::PerRow(inverse, row)));
                               });
                               std::fill_n(inverse, g.tile_lanes, 1.0f);
                               Lanes::ToRows(w.s + Lanes::Index(0, span.first, g.block_keys), span.end - span.first, g.block_keys, inverse,
                                             OutputRows(weights, tile, item, g.group, block.first + span.first));
                             });
}

// Merges the partial states of a row block in key order (the law of fovea/merge.h, with m and l kept apart).
template <class Engine>
void MergeParts(const KernelCall& call, const MergeItem& item, char* scratch) {
  const Geometry& g = call.geometry;
  float* HWY_RESTRICT sum = CarveScratch<Engine>(g, scratch).v_row;
  const Problem& problem = *call.problem;
  const int64_t part_floats = PartialFloats(item.rows, g.dv);
  for (int64_t row = 0; row < item.rows; ++row) {
    const int64_t r = item.first_row + row, i = r / g.group, h = item.kv_head * g.group + r % g.group;
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
      const float weight = part_l * hn::GetLane(ExpNonPositive(DF(), hn::Set(DF(), m_of[n * part_floats] - m)));
      const float* part = item.partials + n * part_floats + row * g.dv;
      for (int64_t c = 0; c < g.dv; ++c) sum[c] += weight * part[c];
      l += weight;
    }
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int64_t c = 0; c < g.dv; ++c) sum[c] *= inverse;
    const MutableTensorView& out = problem.out;
    StoreRow(sum, g.dv, static_cast<char*>(out.data) + item.sequence * out.stride[0] + h * out.stride[1] + i * out.stride[2],
             out.stride[3]);
    if (problem.lse.present()) StoreLse(problem.lse, item.sequence, h, i, LogSumExp(m, l));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
