// The steps from q·k to the score, applied to a tile of scores: exponents that were kept out of
// packed queries, and the bias.
#ifndef FOVEA_EMBEDDED_MODIFIERS_H_
#define FOVEA_EMBEDDED_MODIFIERS_H_

#include "fovea/embedded/tile.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

template <class Lanes>
FOVEA_EMBEDDED_KERNEL void ApplyExponents(const Tile<Lanes>& tile, int64_t first, int64_t end,
                                          float* s) {
  ForEachScore(tile, first, end, s, [&](V x, int row, int64_t) {
    return x * Lanes::PerRow(tile.exponent[0], row) * Lanes::PerRow(tile.exponent[1], row);
  });
}

// S += bias; −inf removes the pair, whatever its score is.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void AddBias(const Head& head, const Tile<Lanes>& tile, const Block& block,
                                   int64_t first, int64_t end, float* stage, float* s) {
  const Problem& p = *head.problem;
  const float* rows[Lanes::kMostRows];
  const auto sum = [](auto score, auto bias) {
    using Vector = decltype(score);
    return xsimd::select(bias == Vector(-kInfinity), bias, score + bias);
  };
  for (int64_t j = first; j < end; j += kStageColumns) {
    const int64_t n = Least(end - j, kStageColumns);
    ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
      float* to = stage + r * kStageColumns;
      rows[r] = to;
      if (i < head.sequence.q_length) {
        const char* row = Address(p.bias, head.b, h, i) + (block.first + j) * p.bias.stride[3];
        LoadRow(p.bias.type, row, p.bias.stride[3], n, to);
      } else {
        for (int64_t x = 0; x < n; ++x) to[x] = 0;
      }
    });
    if constexpr (Lanes::kKeyStep == 1) {
      for (int r = tile.count; r < tile.lanes.rows(); ++r) rows[r] = rows[0];
      ForEachColumn(rows, tile.lanes.rows(), n, [&](int64_t x, int r, V4 bias) {
        float* at = s + tile.lanes.Index(r, j + x, kBlockKeys);
        sum(Load4(at), bias).store_unaligned(at);
      });
    } else {
      for (int r = 0; r < tile.count; ++r) {
        for (int64_t x = n; x < RoundUp(n, kLanes); ++x) stage[r * kStageColumns + x] = 0;
        for (int64_t x = 0; x < n; x += kLanes) {
          float* at = s + tile.lanes.Index(r, j + x, kBlockKeys);
          Store(sum(Load(at), Load(rows[r] + x)), at);
        }
      }
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_MODIFIERS_H_
