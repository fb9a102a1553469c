// The steps from q·k to the score, applied to a tile of scores: exponents that were kept out of
// packed queries, the bias, and the caller's function.
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

// row[x] *= scale, where −inf stays (and is not multiplied: 0 · ∞ raises a flag) and no finite
// number leaves the finite ones. The row has whole vectors.
FOVEA_EMBEDDED_KERNEL void ScaleBias(float scale, int64_t n, float* row) {
  const V most(0x1.fffffep127f);
  for (int64_t x = 0; x < n; x += kLanes) {
    const V bias = Load(row + x);
    const auto removes = bias == V(-kInfinity);
    const V scaled = xsimd::select(removes, V(0.0f), bias) * V(scale);
    const V cut = xsimd::select(scaled > most, most, xsimd::select(scaled < -most, -most, scaled));
    const V other = xsimd::select(removes, bias, scaled);
    Store(xsimd::select(xsimd::abs(bias) <= most, cut, other), row + x);
  }
}

// Leaves −inf, and 0 in the place of everything else.
FOVEA_EMBEDDED_KERNEL void KeepRemovals(int64_t n, float* row) {
  for (int64_t x = 0; x < n; x += kLanes) {
    const V bias = Load(row + x);
    Store(xsimd::select(bias == V(-kInfinity), bias, V(0.0f)), row + x);
  }
}

// kAdd: S += bias; −inf removes the pair, whatever its score is. kRemove: only that, once more,
// after a function that may have given the pair another score.
enum class BiasStep { kAdd, kRemove };
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void AddBias(const Head& head, const Tile<Lanes>& tile, const Block& block,
                                   BiasStep step, int64_t first, int64_t end, float* stage,
                                   float* s) {
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
      const char* row = Address(p.bias, head.b, h, i) + (block.first + j) * p.bias.stride[3];
      LoadRow(p.bias.type, row, p.bias.stride[3], n, to);
      for (int64_t x = n; x < RoundUp(n, kLanes); ++x) to[x] = 0;
      if (step == BiasStep::kRemove) {
        KeepRemovals(n, to);
      } else if (p.bias_scales != nullptr) {
        ScaleBias(p.bias_scales[h], n, to);
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
        for (int64_t x = 0; x < n; x += kLanes) {
          float* at = s + tile.lanes.Index(r, j + x, kBlockKeys);
          Store(sum(Load(at), Load(rows[r] + x)), at);
        }
      }
    }
  }
}

// S = score_function(S), of rows that exist.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void ApplyFunction(const Head& head, const Tile<Lanes>& tile,
                                         const Block& block, int64_t first, int64_t end, float* s) {
  int64_t heads[Lanes::kMostRows], positions[Lanes::kMostRows];
  const int64_t offset = head.sequence.first + head.sequence.offset;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    heads[r] = h;
    positions[r] = i + offset;
  });
  fovea_score_block scores = {};
  scores.size = sizeof(scores);
  scores.scores = s + tile.lanes.Index(0, first, kBlockKeys);
  scores.rows = tile.count;
  scores.keys = end - first;
  scores.row_stride = tile.lanes.Index(1, 0, kBlockKeys);
  scores.key_stride = tile.lanes.Index(0, 1, kBlockKeys);
  scores.heads = heads;
  scores.query_positions = positions;
  scores.first_key_position = head.sequence.first + block.first + first;
  scores.sequence = head.b;
  scores.offset = offset;
  head.problem->score_function(head.problem->score_context, &scores);
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_MODIFIERS_H_
