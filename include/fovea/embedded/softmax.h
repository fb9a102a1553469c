// The softmax with a running maximum and denominator.
//
// The rules for −inf, empty rows and NaN: a removed score is −inf, and exp gives exactly 0 for it;
// while a row has seen no key, m = −inf and l = 0, and exponents are taken from 0, so that −inf −
// (−inf) never arises; the maximum may hide a NaN score, but its exp is NaN, and l carries it on.
//
// The maximum m follows the scores only where they rise above it by more than kMostRise, from block
// to block: sums.h says why. So P is at most e^kMostRise, and that of the largest score at least 1.
#ifndef FOVEA_EMBEDDED_SOFTMAX_H_
#define FOVEA_EMBEDDED_SOFTMAX_H_

#include "fovea/embedded/sums.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// S → P in place, m, l and alpha, by which what was summed before must be multiplied (Milakov and
// Gimelshein 2018, "Online normalizer calculation for softmax").
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void Softmax(const Tile<Lanes>& tile, int64_t first, int64_t end,
                                   float* alpha, float* s) {
  constexpr int kChains = 4;
  const int64_t step = Lanes::kKeyStep, stride = tile.lanes.Index(0, step, kBlockKeys),
                n = (end - first + step - 1) / step;
  for (int row = 0; row < tile.count; row += Lanes::kRowStep) {
    float* const from = s + tile.lanes.Index(row, first, kBlockKeys);
    const V m_old = Lanes::PerRow(tile.m, row);
    V max[kChains] = {m_old, m_old, m_old, m_old};
    int64_t x = 0;
    for (; x + kChains <= n; x += kChains) {
      FOVEA_EMBEDDED_UNROLL
      for (int y = 0; y < kChains; ++y) max[y] = xsimd::max(max[y], Load(from + (x + y) * stride));
    }
    for (; x < n; ++x) max[0] = xsimd::max(max[0], Load(from + x * stride));
    const V most =
        Lanes::FoldMax(xsimd::max(xsimd::max(max[0], max[1]), xsimd::max(max[2], max[3])));
    const V m = xsimd::select(most > m_old + V(kMostRise), most, m_old);
    const V base = xsimd::select(m == V(-kInfinity), V(0.0f), m);
    V sum[kChains] = {V(0.0f), V(0.0f), V(0.0f), V(0.0f)};
    const auto weigh = [&](int64_t at, V& total) {
      const V p = Exp(Load(from + at * stride) - base);
      Store(p, from + at * stride);
      total += p;
    };
    for (x = 0; x + kChains <= n; x += kChains) {
      FOVEA_EMBEDDED_UNROLL
      for (int y = 0; y < kChains; ++y) weigh(x + y, sum[y]);
    }
    for (; x < n; ++x) weigh(x, sum[0]);
    const V total = Lanes::FoldSum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    const V a = Exp(m_old - base);
    Lanes::StorePerRow(m, tile.m, row);
    Lanes::StorePerRow(a, alpha, row);
    Lanes::StorePerRow(xsimd::fma(Lanes::PerRow(tile.l, row), a, total), tile.l, row);
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_SOFTMAX_H_
