// What happens to a score between q·k and the mask, in the contract's order: 2^exponent, softcap, ALiBi, then bias and boolean mask together. Each is a
// pass over the tile in L1.
#if defined(FOVEA_SRC_KERNELS_MODIFIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#undef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#else
#define FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#endif

#include <cmath>

#include "kernels/mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// A bias or mask aligned at the right to [B, Hq, Tq, Tk]: byte strides, 0 where it broadcasts.
struct Broadcast {
  const char* data;
  DType dtype;
  int64_t stride[4];
};

HWY_INLINE Broadcast BroadcastView(const TensorView& view) {
  Broadcast b{static_cast<const char*>(view.data), view.dtype, {0, 0, 0, 0}};
  for (int a = 0; a < view.rank; ++a) b.stride[4 - view.rank + a] = view.shape[a] == 1 ? 0 : view.stride[a];
  return b;
}

// One float of each row's query head, for the tile's lanes.
HWY_INLINE void PerHead(const TensorView& per_head, const Tile& tile, const Item& item, int64_t group, int64_t lanes, float* values) {
  ForEachRow(tile, item, group, [&](int r, int64_t h, int64_t) {
    values[r] = ReadAs<float>(static_cast<const char*>(per_head.data) + h * per_head.stride[0]);
  });
  for (int64_t r = tile.count; r < lanes; ++r) values[r] = 0.0f;
}

// The rows of a bias or mask that belong to the span's keys, as a tile of f32 in `to`; `stage` holds tile_lanes · kStageColumns floats.
template <class Lanes>
inline HWY_NOINLINE void TakeBias(const Broadcast& from, const Tile& tile, const Item& item, const Geometry& g, const Block& block,
                                  const Span& span, float* HWY_RESTRICT stage, float* HWY_RESTRICT to) {
  const char* row_data[kMaxTileLanes];
  const float* rows[kMaxTileLanes];
  ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
    row_data[r] = from.data + item.sequence * from.stride[0] + h * from.stride[1] + i * from.stride[2] + block.first * from.stride[3];
  });
  for (int64_t key = span.first; key < span.end; key += kStageColumns) {
    const int64_t n = std::min(span.end - key, kStageColumns);
    for (int r = 0; r < g.tile_lanes; ++r) {
      const int source = r < tile.count ? r : 0;
      // Rows that broadcast over heads or queries repeat: convert each once.
      if (r > 0 && (source == 0 || row_data[source] == row_data[source - 1])) {
        rows[r] = source == 0 ? rows[0] : rows[source - 1];
        continue;
      }
      float* staged = stage + r * kStageColumns;
      LoadRow(from.dtype, row_data[source] + key * from.stride[3], from.stride[3], n, staged);
      rows[r] = staged;
    }
    Lanes::FromRows(rows, tile.count, n, g.block_keys, to + Lanes::Index(0, key, g.block_keys));
  }
}

// S = bias = −inf ? −inf : S + bias, whatever S is.
template <class Lanes>
HWY_INLINE void AddBias(const float* HWY_RESTRICT bias, const Tile& tile, const Span& span, int64_t block_keys, float* HWY_RESTRICT s) {
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VF b = hn::Load(DF(), bias + Lanes::Index(row, key, block_keys));
    return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(score, b));
  });
}

HWY_INLINE bool RemovesPairs(const Score& score) { return score.bias.present() || score.mask.present(); }

// Natural scores in, modified scores out; `bias` is left holding what removed pairs (null-op without bias and mask).
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
  if (score.softcap > 0) {
    const VF cap = hn::Set(df, score.softcap);
    const float inverse = 1.0f / score.softcap;
    if (std::isnormal(inverse)) {
      const VF factor = hn::Set(df, inverse);
      ForEachScore<Lanes>(w.s, tile, span, g.block_keys,
                          [&](VF s, int64_t, int64_t) HWY_ATTR { return Softcap(df, s, hn::Mul(s, factor), cap); });
    } else {  // a cap so small or so great that its reciprocal overflows or loses bits
      ForEachScore<Lanes>(w.s, tile, span, g.block_keys,
                          [&](VF s, int64_t, int64_t) HWY_ATTR { return Softcap(df, s, hn::Div(s, cap), cap); });
    }
  }
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
  if (score.bias.present()) {
    TakeBias<Lanes>(BroadcastView(score.bias), tile, item, g, block, span, w.stage, w.bias);
    AddBias<Lanes>(w.bias, tile, span, g.block_keys, w.s);
  }
  if (score.mask.present()) {
    TakeBias<Lanes>(BroadcastView(score.mask), tile, item, g, block, span, w.stage, w.bias);
    AddBias<Lanes>(w.bias, tile, span, g.block_keys, w.s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
