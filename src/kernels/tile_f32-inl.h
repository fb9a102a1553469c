// The tile engine's f32 micro-kernels: lanes hold queries. K and V are read in place, a scalar at a
// time, as broadcasts; there is no packing of K or V, no horizontal reduction, and the rescaling of
// O rides on the load of its accumulators.
#if defined(FOVEA_SRC_KERNELS_TILE_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#endif

#include "kernels/pipeline-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Channels of O that a micro-kernel holds beside two vectors of queries: their product, the two
// loaded vectors and one broadcast fill the register file (32 or 16). And keys of S, fewer where a
// vector of each is held, too.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int kTileChannels = 12;
#else
constexpr int kTileChannels = 6;
#endif
constexpr int kTileKeys = kFactorsAreLanes ? 8 : kTileChannels;

// Terms of q·k that are summed in one chain. Longer heads are sums of such sums: rounding grows
// with the chain, and Q of a chain stays in L1.
constexpr int64_t kChain = 128;

// s[j][:] = Σ_c k[j][c] · q[c][:], plus s[j][:] if `add`, for kKeys keys and kVectors vectors of
// queries; c in ascending order.
template <int kKeys, int kVectors>
FOVEA_HOT void ScoresOf(const float* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q,
                        int64_t dk, bool add, float* HWY_RESTRICT s) {
  const DF df;
  constexpr int kRows = kVectors * kLanes;
  VF sum[kKeys][kVectors];
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::Zero(df);
  }
  const auto step = [&](const auto& broadcast) HWY_ATTR {
    VF qv[kVectors];
    for (int v = 0; v < kVectors; ++v) qv[v] = hn::Load(df, q + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      const VF x = broadcast(j);
      for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::MulAdd(qv[v], x, sum[j][v]);
    }
    q += kRows;
  };
  int64_t c = 0;
  if constexpr (kFactorsAreLanes) {
    for (; c + kLanes <= dk; c += kLanes) {
      VF kv[kKeys];
      for (int j = 0; j < kKeys; ++j) kv[j] = hn::LoadU(df, k + c + j * k_stride);
      ForEachLane([&](auto lane) HWY_ATTR {
        step([&](int j) HWY_ATTR { return hn::BroadcastLane<lane()>(kv[j]); });
      });
    }
  }
  for (; c < dk; ++c) step([&](int j) HWY_ATTR { return hn::Set(df, k[c + j * k_stride]); });
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      float* p = s + j * kRows + v * kLanes;
      hn::Store(add ? hn::Add(hn::Load(df, p), sum[j][v]) : sum[j][v], df, p);
    }
  }
}

// o[c][:] = alpha[:] · o[c][:] + Σ_j v[j][c] · p[j][:] for kChannels channels; j in ascending
// order.
template <int kChannels, int kVectors>
FOVEA_HOT void AccumulateOf(const float* HWY_RESTRICT values, int64_t v_stride,
                            const float* HWY_RESTRICT p, int64_t keys,
                            const float* HWY_RESTRICT alpha, float* HWY_RESTRICT o) {
  const DF df;
  constexpr int kRows = kVectors * kLanes;
  VF sum[kChannels][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const VF a = hn::Load(df, alpha + v * kLanes);
    for (int c = 0; c < kChannels; ++c)
      sum[c][v] = hn::Mul(hn::Load(df, o + c * kRows + v * kLanes), a);
  }
  for (int64_t j = 0; j < keys; ++j, values += v_stride, p += kRows) {
    VF pv[kVectors];
    for (int v = 0; v < kVectors; ++v) pv[v] = hn::Load(df, p + v * kLanes);
    const auto add = [&](int c, VF x) HWY_ATTR {
      for (int v = 0; v < kVectors; ++v) sum[c][v] = hn::MulAdd(pv[v], x, sum[c][v]);
    };
    constexpr int kInVectors = kFactorsAreLanes ? kChannels / kLanes * kLanes : 0;
    for (int c = 0; c < kInVectors; c += kLanes) {
      const VF x = hn::LoadU(df, values + c);
      ForEachLane([&](auto lane) HWY_ATTR { add(c + lane(), hn::BroadcastLane<lane()>(x)); });
    }
    for (int c = kInVectors; c < kChannels; ++c) add(c, hn::Set(df, values[c]));
  }
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[c][v], df, o + c * kRows + v * kLanes);
  }
}

template <int kVectors>
struct TileEngine : F32Operands<LanesAreQueries<kVectors>, kTileAliasing> {
  using Lanes = LanesAreQueries<kVectors>;
  using Pipeline = AtOnce<TileEngine>;

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return keys / kTileKeys + (keys + g.block_keys - 1) / g.block_keys * (g.dv / kTileChannels);
  }

  static HWY_INLINE void Scores(const Part& part, const BlockRows& k, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    float* s = part.s;
    for (int64_t c = 0; c < g.dk; c += kChain) {
      const float* q = tile.q + c * Lanes::kRows;
      const int64_t depth = std::min(g.dk - c, kChain);
      const float* from = k.Row<float>(span.first) + c;
      float* to = s + span.first * Lanes::kRows;
      int64_t n = span.end - span.first;
      for (; n >= kTileKeys;
           n -= kTileKeys, from += kTileKeys * k.stride, to += kTileKeys * Lanes::kRows) {
        ahead.Step();
        ScoresOf<kTileKeys, kVectors>(from, k.stride, q, depth, c > 0, to);
      }
      WithRemainder<kTileKeys>(n, [&](auto keys) HWY_ATTR {
        ScoresOf<keys(), kVectors>(from, k.stride, q, depth, c > 0, to);
      });
    }
  }

  static HWY_INLINE void Accumulate(const Part& part, const BlockValues& values, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    const float* s = part.s;
    const BlockRows& v = values.rows;
    const float* from = v.Row<float>(span.first);
    const float* p = s + span.first * Lanes::kRows;
    const int64_t keys = span.end - span.first;
    float* o = tile.o;
    int64_t n = g.dv;
    for (; n >= kTileChannels;
         n -= kTileChannels, from += kTileChannels, o += kTileChannels * Lanes::kRows) {
      ahead.Step();
      AccumulateOf<kTileChannels, kVectors>(from, v.stride, p, keys, tile.state.alpha, o);
    }
    WithRemainder<kTileChannels>(n, [&](auto channels) HWY_ATTR {
      AccumulateOf<channels(), kVectors>(from, v.stride, p, keys, tile.state.alpha, o);
    });
  }

  static HWY_INLINE void Seal(const Part&) {}
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
