// The multiply-adds of few query rows (decoding): lanes hold the head dimension of K and V, which
// are read once for all rows; S[row][key], Q and O [row][channel]. Knows nothing of masks, types of
// the caller or softmax.
#ifndef FOVEA_EMBEDDED_ROW_F32_H_
#define FOVEA_EMBEDDED_ROW_F32_H_

#include "fovea/embedded/ahead.h"
#include "fovea/embedded/chains.h"
#include "fovea/embedded/runs.h"
#include "fovea/embedded/take.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// s[r][j] = Σ_c k[j][c] · q[r][c] for kKeys (≤ 4) keys and kRows query
// rows. q rows are padded with zeros to whole vectors.
template <int kKeys, int kRows, class T>
FOVEA_EMBEDDED_KERNEL void RowScores(const T* __restrict k, int64_t k_stride,
                                     const float* __restrict q, int64_t q_stride, int64_t dk,
                                     float* __restrict s, int64_t s_stride) {
  V sum[kRows][4];
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FOVEA_EMBEDDED_UNROLL
    for (int j = 0; j < 4; ++j) sum[r][j] = V(0.0f);
  }
  const auto multiply = [&](int64_t c, const auto& load) {
    V x[kKeys];
    FOVEA_EMBEDDED_UNROLL
    for (int j = 0; j < kKeys; ++j) x[j] = load(k + j * k_stride + c);
    FOVEA_EMBEDDED_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const V y = Load(q + r * q_stride + c);
      FOVEA_EMBEDDED_UNROLL
      for (int j = 0; j < kKeys; ++j) sum[r][j] = xsimd::fma(x[j], y, sum[r][j]);
    }
  };
  // The part of a vector comes first, while no sums need to be kept over its calls of memcpy.
  const int64_t whole = dk / kLanes * kLanes;
  if (whole < dk) multiply(whole, [&](const T* p) { return LoadWidened(p, dk - whole); });
  for (int64_t c = 0; c < whole; c += kLanes)
    multiply(c, [](const T* p) { return LoadWidened(p); });
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) SumsOfLanes(sum[r], s + r * s_stride, kKeys);
}

// Joins n (≤ 4) scores at `run` to those at s. `lost` has four of them.
FOVEA_EMBEDDED_KERNEL void JoinFew(const float* run, int64_t n, bool is_last, float* lost,
                                   float* s) {
  float sums[kLanes] = {}, rests[kLanes] = {};
  V sum = LoadWidened(s, n), rest = LoadWidened(lost, n);
  JoinRun(LoadWidened(run, n), is_last, sum, rest);
  Store(sum, sums), Store(rest, rests);
  for (int64_t x = 0; x < n; ++x) s[x] = sums[x], lost[x] = rests[x];
}

// o[r][:] = alpha[r] · o[r][:] + Σ_j p[r][j] · v[j][:] for kRows rows and kChannels vectors of
// channels, of which the last holds `last` (≤ kLanes); the sum starts from zero.
template <int kChannels, int kRows, class T>
FOVEA_EMBEDDED_HOT void RowAccumulate(const T* __restrict values, int64_t v_stride,
                                      const float* __restrict p, int64_t p_stride, int64_t keys,
                                      const float* __restrict alpha, float* __restrict o,
                                      int64_t o_stride, int64_t last) {
  V sum[kRows][kChannels];
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) sum[r][c] = V(0.0f);
  }
  for (int64_t j = 0; j < keys; ++j, values += v_stride) {
    V pv[kRows];
    FOVEA_EMBEDDED_UNROLL
    for (int r = 0; r < kRows; ++r) pv[r] = V(p[r * p_stride + j]);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      const V x = kChannels > 1 || last == kLanes ? LoadWidened(values + c * kLanes)
                                                  : LoadWidened(values + c * kLanes, last);
      FOVEA_EMBEDDED_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r][c] = xsimd::fma(x, pv[r], sum[r][c]);
    }
  }
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const V a(alpha[r]);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      float* to = o + r * o_stride + c * kLanes;
      Store(xsimd::fma(Load(to), a, sum[r][c]), to);
    }
  }
}

// The engine of few query rows.
struct RowF32 {
  using Lanes = LanesAreKeys;
  static constexpr bool kReadsF16 = true;  // K and V, in place
  // Channels whose products are summed in chains of at most kChain, one for each lane.
  static constexpr int64_t kRun = kChain * kLanes;
  // vectors of O in registers, for four rows
  static constexpr int kChannels = kManyRegisters ? 4 : 2;

  // Of micro-kernels, for a tile and a block of keys; spreads prefetches.
  static int64_t Calls(int64_t keys, int64_t dv) { return keys / 4 + dv / (kChannels * kLanes); }

  // S = Q·Kᵀ for keys [first, end) of the block; −inf behind them up to a whole vector.
  static void Scores(const Tile<Lanes>& tile, const Matrix& k, int64_t first, int64_t end,
                     int64_t dk, float* s, float* /*run*/, float* /*lost*/, Ahead& ahead) {
    const int64_t q_stride = RoundUp(dk, kLanes);
    constexpr int64_t kStride = RoundUp(kBlockKeys, kLanes);
    WithType(k.type, [&](auto zero) {
      using T = decltype(zero);
      InRuns<4, 1>(tile.count, [&](auto rows, int64_t r) {
        InRuns<4, 1>(end - first, [&](auto keys, int64_t j) {
          ahead.Step();
          const T* const k_rows = k.Row<T>(first + j);
          const float* const q_rows = tile.q + r * q_stride;
          float* const sums = s + r * kStride + first + j;
          RowScores<keys.value, rows.value>(k_rows, k.stride, q_rows, q_stride, Least(dk, kRun),
                                            sums, kStride);
          if (dk <= kRun) return;
          float lost[4 * rows.value] = {};
          for (int64_t c = kRun; c < dk; c += kRun) {
            float run[4 * rows.value];
            RowScores<keys.value, rows.value>(k_rows + c, k.stride, q_rows + c, q_stride,
                                              Least(dk - c, kRun), run, 4);
            for (int x = 0; x < rows.value; ++x)
              JoinFew(run + 4 * x, keys.value, c + kRun >= dk, lost + 4 * x, sums + x * kStride);
          }
        });
      });
    });
    for (int r = 0; r < tile.count; ++r) {
      for (int64_t key = end; key < RoundUp(end, kLanes); ++key) s[r * kStride + key] = -kInfinity;
    }
  }

  // O = alpha·O + P·V for keys [first, end) of the block.
  static void Accumulate(const Tile<Lanes>& tile, const Matrix& v, int64_t first, int64_t end,
                         int64_t dv, const float* p, const float* alpha, Ahead& ahead) {
    constexpr int64_t kStride = RoundUp(kBlockKeys, kLanes);
    const int64_t o_stride = RoundUp(dv, kLanes);
    WithType(v.type, [&](auto zero) {
      using T = decltype(zero);
      InRuns<4, 1>(tile.count, [&](auto rows, int64_t r) {
        const int64_t whole = dv / kLanes * kLanes;
        const auto accumulate = [&](auto channels, int64_t c, int64_t last) {
          ahead.Step();
          RowAccumulate<channels.value, rows.value>(
              v.Row<T>(first) + c, v.stride, p + r * kStride + first, kStride, end - first,
              alpha + r, tile.o + r * o_stride + c, o_stride, last);
        };
        InRuns<kChannels, 1>(whole / kLanes, [&](auto channels, int64_t n) {
          accumulate(channels, n * kLanes, kLanes);
        });
        if (whole < dv) accumulate(Count<1>(), whole, dv - whole);
      });
    });
  }
};

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_ROW_F32_H_
