// The multiply-adds of many query rows: lanes hold queries. Scores lie S[key][row], Q and O
// [channel][row]; K and V are read a scalar at a time, as broadcasts, so that there is no
// horizontal reduction. Knows nothing of masks, types of the caller or softmax.
#ifndef FOVEA_EMBEDDED_TILE_F32_H_
#define FOVEA_EMBEDDED_TILE_F32_H_

#include "fovea/embedded/ahead.h"
#include "fovea/embedded/chains.h"
#include "fovea/embedded/runs.h"
#include "fovea/embedded/take.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// Scalars (keys of S, channels of O) that are held beside two vectors of queries: with those and a
// broadcast they fill the register file.
constexpr int kTileScalars = kManyRegisters ? 12 : 6;
template <class F>
void InTileRuns(int64_t n, const F& f) {
  if constexpr (kManyRegisters) {
    InRuns<12, 4, 1>(n, f);
  } else {
    InRuns<6, 4, 2, 1>(n, f);
  }
}

// s[j][:] = Σ_c k[j][c] · q[c][:], plus s[j][:] if `add`, for kKeys keys and kVectors vectors of
// queries.
template <int kKeys, int kVectors>
FOVEA_EMBEDDED_HOT void TileScores(const float* __restrict k, int64_t k_stride,
                                   const float* __restrict q, int64_t dk, bool add,
                                   float* __restrict s) {
  constexpr int kRows = kVectors * kLanes;
  V sum[kKeys][kVectors];
  FOVEA_EMBEDDED_UNROLL
  for (int j = 0; j < kKeys; ++j) {
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[j][v] = V(0.0f);
  }
  for (int64_t c = 0; c < dk; ++c, q += kRows) {
    V qv[kVectors];
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) qv[v] = Load(q + v * kLanes);
    const float* kc = k + c;
    FOVEA_EMBEDDED_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      const V x(kc[j * k_stride]);
      FOVEA_EMBEDDED_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[j][v] = xsimd::fma(x, qv[v], sum[j][v]);
    }
  }
  FOVEA_EMBEDDED_UNROLL
  for (int j = 0; j < kKeys; ++j) {
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* p = s + j * kRows + v * kLanes;
      Store(add ? Load(p) + sum[j][v] : sum[j][v], p);
    }
  }
}

// o[c][:] = alpha[:] · o[c][:] + Σ_j v[j][c] · p[j][:] for kChannels channels; the sum starts from
// zero.
template <int kChannels, int kVectors>
FOVEA_EMBEDDED_HOT void TileAccumulate(const float* __restrict values, int64_t v_stride,
                                       const float* __restrict p, int64_t keys,
                                       const float* __restrict alpha, float* __restrict o) {
  constexpr int kRows = kVectors * kLanes;
  V sum[kChannels][kVectors];
  FOVEA_EMBEDDED_UNROLL
  for (int c = 0; c < kChannels; ++c) {
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[c][v] = V(0.0f);
  }
  for (int64_t j = 0; j < keys; ++j, values += v_stride, p += kRows) {
    V pv[kVectors];
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) pv[v] = Load(p + v * kLanes);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      const V x(values[c]);
      FOVEA_EMBEDDED_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[c][v] = xsimd::fma(x, pv[v], sum[c][v]);
    }
  }
  FOVEA_EMBEDDED_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const V a = Load(alpha + v * kLanes);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      float* to = o + c * kRows + v * kLanes;
      Store(xsimd::fma(Load(to), a, sum[c][v]), to);
    }
  }
}

// The engine of many query rows.
struct TileF32 {
  using Lanes = LanesAreQueries;
  static constexpr bool kReadsF16 = false;  // K and V, in place

  // Of micro-kernels, for a tile and a block of keys; spreads prefetches.
  static int64_t Calls(int64_t keys, int64_t dv) { return (keys + dv) / kTileScalars; }

  // S = Q·Kᵀ for keys [first, end) of the block. `run` and `lost` have room for S, of heads longer
  // than kRunChannels.
  static void Scores(const Tile<Lanes>& tile, const Matrix& k, int64_t first, int64_t end,
                     int64_t dk, float* s, float* run, float* lost, Ahead& ahead) {
    const int64_t lanes = tile.lanes.rows();
    for (int64_t c = 0; c < dk; c += kChain) {
      const int64_t runs = c / kRunChannels, behind = Least(dk, c + kChain);
      float* const to = runs == 0 ? s : run;
      InTileRuns(end - first, [&](auto keys, int64_t j) {
        ahead.Step();
        const auto scores =
            tile.lanes.vectors == 1 ? TileScores<keys.value, 1> : TileScores<keys.value, 2>;
        scores(k.Row<float>(first + j) + c, k.stride, tile.q + c * lanes, behind - c,
               c % kRunChannels > 0, to + (first + j) * lanes);
      });
      if (runs > 0 && (behind == dk || behind % kRunChannels == 0)) {
        JoinRuns(run + first * lanes, (end - first) * lanes, runs == 1, behind == dk,
                 lost + first * lanes, s + first * lanes);
      }
    }
  }

  // O = alpha·O + P·V for keys [first, end) of the block.
  static void Accumulate(const Tile<Lanes>& tile, const Matrix& v, int64_t first, int64_t end,
                         int64_t dv, const float* p, const float* alpha, Ahead& ahead) {
    const int64_t lanes = tile.lanes.rows();
    InTileRuns(dv, [&](auto channels, int64_t c) {
      ahead.Step();
      const auto accumulate = tile.lanes.vectors == 1 ? TileAccumulate<channels.value, 1>
                                                      : TileAccumulate<channels.value, 2>;
      accumulate(v.Row<float>(first) + c, v.stride, p + first * lanes, end - first, alpha,
                 tile.o + c * lanes);
    });
  }
};

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_TILE_F32_H_
