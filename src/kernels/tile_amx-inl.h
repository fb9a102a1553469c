// The bf16 tile engine's micro-kernels on AMX: the layouts of tile_bf16-inl.h, 16 keys or channels × 16 queries at a time, 32 terms of a sum a step.
//
// S: A is 16 rows of K as stored, B is packed Q. O: A is Vᵀ, transposed once per block and reused over the item's tiles, B is P. Sums run over whole steps:
// channels of Q and K, and keys of Vᵀ and P, behind the last and before the first one are zeros in scratch, which no sum feels.
#if defined(FOVEA_SRC_KERNELS_TILE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#endif

#include "kernels/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int64_t kAmxStep = 2 * kAmxPairs;  // terms of a sum
constexpr int64_t kAmxItemRows = 256;        // for which transposing V of a block pays
// Tiles of S or O that a micro-kernel holds along keys or channels; along queries it holds all of its two at most. A and B take as many again.
constexpr int64_t kAmxTogether = 2;

// Vᵀ of a block: for every 32 keys, `channels` rows of their 16 pairs.
struct TransposedValues {
  const float* data;
  int64_t channels;
  const uint64_t* poisoned;  // as in Values
};

// s[j][:] = Σ_c k[j][c] · q[c][:] for 16 or 32 keys and all queries of a tile; c in ascending order, a step at a time.
template <int kKeyTiles, int kQueryTiles>
FOVEA_HOT void AmxScoresOf(const char* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q, int64_t steps,
                           float* HWY_RESTRICT s) {
  constexpr int64_t kRows = kQueryTiles * kAmxRows, kRowBytes = 4 * kRows;
  AmxTiles t;
  t.template Zero<0>();
  if constexpr (kQueryTiles > 1) t.template Zero<1>();
  if constexpr (kKeyTiles > 1) t.template Zero<2>();
  if constexpr (kKeyTiles > 1 && kQueryTiles > 1) t.template Zero<3>();
  for (; steps > 0; --steps, k += 2 * kAmxStep, q += kAmxPairs * kRows) {
    t.template Load<4>(k, k_stride);
    t.template Load<6>(q, kRowBytes);
    t.template AddPairProducts<0, 4, 6>();
    if constexpr (kQueryTiles > 1) {
      t.template Load<7>(q + kAmxRows, kRowBytes);
      t.template AddPairProducts<1, 4, 7>();
    }
    if constexpr (kKeyTiles > 1) {
      t.template Load<5>(k + kAmxRows * k_stride, k_stride);
      t.template AddPairProducts<2, 5, 6>();
      if constexpr (kQueryTiles > 1) t.template AddPairProducts<3, 5, 7>();
    }
  }
  t.template Store<0>(s, kRowBytes);
  if constexpr (kQueryTiles > 1) t.template Store<1>(s + kAmxRows, kRowBytes);
  if constexpr (kKeyTiles > 1) t.template Store<2>(s + kAmxRows * kRows, kRowBytes);
  if constexpr (kKeyTiles > 1 && kQueryTiles > 1) t.template Store<3>(s + kAmxRows * kRows + kAmxRows, kRowBytes);
}

// o[c][:] += Σ_j v[c][j] · p[j][:] for 16 or 32 channels and all queries of a tile; j in ascending order, a step at a time. v_step: floats of Vᵀ a step.
template <int kChannelTiles, int kQueryTiles>
FOVEA_HOT void AmxAccumulateOf(const float* HWY_RESTRICT v, int64_t v_step, const float* HWY_RESTRICT p, int64_t steps,
                               float* HWY_RESTRICT o) {
  constexpr int64_t kRows = kQueryTiles * kAmxRows, kRowBytes = 4 * kRows, kValueBytes = 4 * kAmxPairs;
  AmxTiles t;
  float* const o1 = o + kAmxRows * kRows;
  t.template Load<0>(o, kRowBytes);
  if constexpr (kQueryTiles > 1) t.template Load<1>(o + kAmxRows, kRowBytes);
  if constexpr (kChannelTiles > 1) t.template Load<2>(o1, kRowBytes);
  if constexpr (kChannelTiles > 1 && kQueryTiles > 1) t.template Load<3>(o1 + kAmxRows, kRowBytes);
  for (; steps > 0; --steps, v += v_step, p += kAmxPairs * kRows) {
    t.template Load<4>(v, kValueBytes);
    t.template Load<6>(p, kRowBytes);
    t.template AddPairProducts<0, 4, 6>();
    if constexpr (kQueryTiles > 1) {
      t.template Load<7>(p + kAmxRows, kRowBytes);
      t.template AddPairProducts<1, 4, 7>();
    }
    if constexpr (kChannelTiles > 1) {
      t.template Load<5>(v + kAmxRows * kAmxPairs, kValueBytes);
      t.template AddPairProducts<2, 5, 6>();
      if constexpr (kQueryTiles > 1) t.template AddPairProducts<3, 5, 7>();
    }
  }
  t.template Store<0>(o, kRowBytes);
  if constexpr (kQueryTiles > 1) t.template Store<1>(o + kAmxRows, kRowBytes);
  if constexpr (kChannelTiles > 1) t.template Store<2>(o1, kRowBytes);
  if constexpr (kChannelTiles > 1 && kQueryTiles > 1) t.template Store<3>(o1 + kAmxRows, kRowBytes);
}

template <int kVectors>
struct TileAmxEngine : TileBF16Engine<kVectors> {
  using Base = TileBF16Engine<kVectors>;
  using Lanes = typename Base::Lanes;
  using Session = AmxSession;
  using ValueRows = TransposedValues;
  static constexpr int kQueryTiles = Lanes::kRows / kAmxRows;
  static_assert(Lanes::kRows == kQueryTiles * kAmxRows && kQueryTiles <= 2, "whole tiles");

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return keys / (kAmxTogether * kAmxRows) + (keys + g.block_keys - 1) / g.block_keys * (OutputColumns(g.dv) / (kAmxTogether * kAmxRows));
  }
  static int64_t QueryFloats(int64_t rows, int64_t dk) { return Lanes::TileFloats(rows, Channels(dk) / 2); }
  static int64_t ScoreColumns(int64_t keys) { return RoundUp(keys, kAmxStep); }
  static int64_t OutputColumns(int64_t dv) { return RoundUp(Base::OutputColumns(dv), kAmxRows); }
  static int64_t KeyFloats(int64_t keys, int64_t dk) { return RoundUp(keys, kAmxRows) * KeyStride(dk) / 4; }
  static int64_t ValueFloats(int64_t keys, int64_t dv) {
    return Base::ValueFloats(RoundUp(keys, kAmxStep), dv) + TransposedFloats(keys, dv);
  }

  static HWY_INLINE void BeginOutput(const Tile& tile, const Geometry& g) {
    Base::BeginOutput(tile, g);
    const int64_t columns = Base::OutputColumns(g.dv);
    std::fill_n(tile.o + Lanes::Index(0, columns, 0), Lanes::TileFloats(g.tile_lanes, OutputColumns(g.dv) - columns), 0.0f);
  }

  static HWY_INLINE void PackQueries(const KernelCall& call, const Item& item, const Scratch& w, Tile& tile) {
    Base::PackQueries(call, item, w, tile);
    const int64_t pairs = (call.geometry.dk + 1) / 2;
    std::fill_n(tile.q + Lanes::Index(0, pairs, 0), Lanes::TileFloats(0, Channels(call.geometry.dk) / 2 - pairs), 0.0f);
  }

  static HWY_INLINE PairRows TakeKeys(const KernelCall& call, const Item& item, const Block& block, const Scratch& w) {
    const TensorView& view = call.problem->k;
    const SequenceLengths& sequence = call.lengths[item.sequence];
    const char* first = RowOf(view, sequence.kv_batch, item.kv_head, sequence.kv_first + block.first);
    const int64_t dk = call.geometry.dk, row_stride = view.stride[2];
    const bool aliased = row_stride % kTileAliasing == 0;
    if (view.stride[3] == 2 && dk % kAmxStep == 0 && block.n % kAmxRows == 0 && !aliased) return {first, row_stride};
    const int64_t stride = KeyStride(dk), rest = 2 * (Channels(dk) - dk);
    char* copy = reinterpret_cast<char*>(w.k);
    for (int64_t j = 0; j < block.n; ++j, copy += stride) {
      CopyHalves(first + j * row_stride, view.stride[3], dk, copy);
      std::memset(copy + 2 * dk, 0, static_cast<size_t>(rest));
    }
    std::memset(copy, 0, static_cast<size_t>((RoundUp(block.n, kAmxRows) - block.n) * stride));
    return {reinterpret_cast<const char*>(w.k), stride};
  }

  // Non-finite V is always isolated: P of keys that no row of a tile sees takes part as zeros.
  static HWY_INLINE TransposedValues TakeValues(const KernelCall& call, const Item& item, const Block& block, bool, const Scratch& w) {
    const int64_t dv = call.geometry.dv, channels = OutputColumns(dv), pairs = (block.n + 1) / 2;
    const PairValues values = Base::TakeValues(call, item, block, true, w);
    float* const transposed = w.v + Base::ValueFloats(RoundUp(call.geometry.block_keys, kAmxStep), dv);
    const int64_t stride = values.rows.stride / 4;
    float* const end = w.v + RoundUp(pairs, kAmxPairs) * stride;
    std::fill(w.v + pairs * stride, end, 0.0f);
    float* to = transposed;
    for (const float* from = w.v; from < end; from += kAmxPairs * stride, to += channels * kAmxPairs) {
      const float* rows[kAmxPairs];
      for (int64_t j = 0; j < kAmxPairs; ++j) rows[j] = from + j * stride;
      TransposeIn<kAmxPairs / kLanes>(rows, Base::OutputColumns(dv), to);
      std::fill(to + Base::OutputColumns(dv) * kAmxPairs, to + channels * kAmxPairs, 0.0f);
    }
    return {transposed, channels, values.poisoned};
  }

  static HWY_INLINE void Scores(const Tile& tile, const PairRows& k, const Span& span, const Geometry& g, float* s, Ahead& ahead) {
    const DF df;
    const int64_t steps = Channels(g.dk) / kAmxStep, end = RoundUp(span.end, kAmxRows);
    int64_t j = span.first / kAmxRows * kAmxRows;
    const int64_t first = j;
    for (; j + kAmxTogether * kAmxRows <= end; j += kAmxTogether * kAmxRows) {
      ahead.Step();
      AmxScoresOf<kAmxTogether, kQueryTiles>(k.data + j * k.stride, k.stride, tile.q, steps, s + Lanes::Index(0, j, 0));
    }
    if (j < end) AmxScoresOf<1, kQueryTiles>(k.data + j * k.stride, k.stride, tile.q, steps, s + Lanes::Index(0, j, 0));
    if (tile.factor == 1.0f) return;
    const VF factor = hn::Set(df, tile.factor);
    for (float* p = s + Lanes::Index(0, first, 0); p < s + Lanes::Index(0, end, 0); p += kLanes)
      hn::Store(hn::Mul(hn::Load(df, p), factor), df, p);
  }

  static HWY_INLINE void Accumulate(const Tile& tile, const TransposedValues& v, const Span& span, const Geometry& g, float* s,
                                    Ahead& ahead) {
    const DF df;
    // Weights of the keys that a step has and the span has not.
    const int64_t first = span.first / kAmxStep * kAmxStep, end = RoundUp(span.end, kAmxStep);
    std::fill(s + Lanes::Index(0, first / 2, 0), s + Lanes::Index(0, span.first / 2, 0), 0.0f);
    std::fill(s + Lanes::Index(0, (span.end + 1) / 2, 0), s + Lanes::Index(0, end / 2, 0), 0.0f);
    for (int row = 0; row < Lanes::kRows; row += kLanes) {
      const VF alpha = hn::Load(df, tile.state.alpha + row);
      float* o = tile.o + row;
      for (int64_t c = 0; c < Base::OutputColumns(g.dv); ++c, o += Lanes::kRows) hn::Store(hn::Mul(hn::Load(df, o), alpha), df, o);
    }
    const int64_t v_step = v.channels * kAmxPairs, steps = (end - first) / kAmxStep;
    const float* from = v.data + first / kAmxStep * v_step;
    const float* p = s + Lanes::Index(0, first / 2, 0);
    float* o = tile.o;
    int64_t n = v.channels;
    constexpr int64_t kChannels = kAmxTogether * kAmxRows;
    for (; n >= kChannels; n -= kChannels, from += kChannels * kAmxPairs, o += kChannels * Lanes::kRows) {
      ahead.Step();
      AmxAccumulateOf<kAmxTogether, kQueryTiles>(from, v_step, p, steps, o);
    }
    if (n > 0) AmxAccumulateOf<1, kQueryTiles>(from, v_step, p, steps, o);
  }

 private:
  static int64_t Channels(int64_t dk) { return RoundUp(dk, kAmxStep); }
  static int64_t KeyStride(int64_t dk) { return 4 * CopiedStride(Channels(dk) / 2); }
  static int64_t TransposedFloats(int64_t keys, int64_t dv) { return RoundUp(keys, kAmxStep) / 2 * OutputColumns(dv); }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
