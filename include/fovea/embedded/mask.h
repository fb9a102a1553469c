// Removing pairs by position from a block that is partly visible, and keeping what a removed pair's
// V holds out of the sums. Knows nothing of where the intervals come from.
#ifndef FOVEA_EMBEDDED_MASK_H_
#define FOVEA_EMBEDDED_MASK_H_

#include "fovea/embedded/take.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// S = −inf outside of each row's keys.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void MaskByPosition(const Head& head, const Tile<Lanes>& tile,
                                          const Block& block, int64_t first, int64_t end,
                                          float* values, float* s) {
  float* row_first = values;
  float* row_end = values + tile.lanes.rows();
  ForEachRow(head, tile, [&](int r, int64_t, int64_t i) {
    const KeyRange keys = VisibleKeys(head, i);
    row_first[r] = static_cast<float>(Between(keys.first - block.first, 0, block.n));
    row_end[r] = static_cast<float>(Between(keys.end - block.first, 0, block.n));
  });
  for (int r = tile.count; r < tile.lanes.rows(); ++r)
    row_first[r] = row_first[0], row_end[r] = row_end[0];
  ForEachScore(tile, first, end, s, [&](V score, int row, int64_t key) {
    const V j = Lanes::Keys(key);
    return xsimd::select((j >= Lanes::PerRow(row_first, row)) & (j < Lanes::PerRow(row_end, row)),
                         score, V(-kInfinity));
  });
}

// Whether any of the rows first ≤ j < end, of d elements, holds a NaN or an infinity: then 0·x is
// NaN.
FOVEA_EMBEDDED_KERNEL bool HasNonFinite(const Matrix& rows, int64_t first, int64_t end, int64_t d) {
  return WithType(rows.type, [&](auto zero) {
    using T = decltype(zero);
    V sum(0.0f);
    for (int64_t j = first; j < end; ++j) {
      const T* p = rows.Row<T>(j);
      int64_t c = 0;
      for (; c + kLanes <= d; c += kLanes) sum = xsimd::fma(LoadWidened(p + c), V(0.0f), sum);
      if (c < d) sum = xsimd::fma(LoadWidened(p + c, d - c), V(0.0f), sum);
    }
    return IsAnyTrue(sum != V(0.0f));
  });
}

// seen[r] = a bit for each key of the block that row r sees, of keys [first, end). Before the
// softmax: what a function removed is told by its score.
static_assert(kBlockKeys <= 64, "a bit each");
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void FindSeen(const Head& head, const Tile<Lanes>& tile, const Block& block,
                                    int64_t first, int64_t end, const float* s, uint64_t* seen) {
  const Problem& p = *head.problem;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    const KeyRange keys = VisibleKeys(head, i);
    seen[r] = 0;
    for (int64_t j = Most(first, keys.first - block.first); j < Least(end, keys.end - block.first);
         ++j) {
      float bias = 0;
      if (p.bias.data != nullptr) {
        const char* at = Address(p.bias, head.b, h, i) + (block.first + j) * p.bias.stride[3];
        LoadRow(p.bias.type, at, 0, 1, &bias);
      }
      const bool drops =
          p.score_function != nullptr && s[tile.lanes.Index(r, j, kBlockKeys)] == -kInfinity;
      if (!drops && bias != -kInfinity) seen[r] |= uint64_t{1} << j;
    }
  });
}

// O = alpha·O + P·V of keys [first, end) of a block where V holds something that is not finite and
// rows do not see all keys: 0 · NaN of a removed pair must not reach a sum. The bits are those of
// the engines.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void AccumulateSeen(const Tile<Lanes>& tile, const Matrix& v, int64_t first,
                                          int64_t end, int64_t dv, const uint64_t* seen,
                                          const float* p, const float* alpha) {
  for (int r = 0; r < tile.count; ++r) {
    for (int64_t c = 0; c < dv; c += kLanes) {
      const int columns = static_cast<int>(Least(dv - c, kLanes));
      float o[kLanes] = {};
      for (int x = 0; x < columns; ++x) o[x] = tile.o[tile.lanes.Index(r, c + x, dv)];
      V sum(0.0f);
      for (int64_t j = first; j < end; ++j) {
        if ((seen[r] >> j & 1) == 0) continue;
        const V weight(p[tile.lanes.Index(r, j, kBlockKeys)]);
        WithType(v.type, [&](auto zero) {
          sum = xsimd::fma(LoadWidened(v.Row<decltype(zero)>(j) + c, columns), weight, sum);
        });
      }
      Store(xsimd::fma(Load(o), V(alpha[r]), sum), o);
      for (int x = 0; x < columns; ++x) tile.o[tile.lanes.Index(r, c + x, dv)] = o[x];
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_MASK_H_
