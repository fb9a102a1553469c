// The end of a tile: out = O / l, and lse.
#ifndef FOVEA_EMBEDDED_FINISH_H_
#define FOVEA_EMBEDDED_FINISH_H_

#include "fovea/embedded/sums.h"
#include "fovea/embedded/take.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// What V is multiplied by where O is computed again because it was not finite, or so small that its
// terms are numbers of few bits: no sum of 2⁶⁰ values leaves the finite numbers then, and none is
// so small.
constexpr float kScaleDown = 0x1p-64f, kScaleUp = 0x1p64f;

// Each addition to a smaller result loses up to 2⁻¹⁵⁰, which is 2⁻⁶⁰ of it. A result of 0 is none:
// there V is 0, as a rule.
constexpr float kLeast = 0x1p-90f;

// What is wrong with results of an item.
struct SumFaults {
  bool too_large = false;
  bool too_small = false;
};

// x / factor. The mean of finite values is finite: where rounding would take it beyond the largest
// finite number, it is that.
inline float Unscaled(float x, float factor) {
  if (factor > 1) return x / factor;
  const float most = 0x1.fffffep127f * factor;
  const bool is_infinite = __builtin_fabsf(x) == kInfinity;
  const float cut = x > most ? most : x < -most ? -most : x;
  return (is_infinite ? x : cut) / factor;
}

// Adds the faults of n results.
FOVEA_EMBEDDED_KERNEL void FindFaults(const float* x, int64_t n, SumFaults& faults) {
  V sum(0.0f), small(0.0f);  // of zeros, or NaN; the largest of the small
  const auto look = [&](V y) {
    const V size = xsimd::abs(y);
    sum = xsimd::fma(y, V(0.0f), sum);
    small = xsimd::max(small, xsimd::select(size < V(kLeast), size, V(0.0f)));
  };
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) look(Load(x + c));
  if (c < n) look(LoadWidened(x + c, n - c));
  faults.too_large = faults.too_large || IsAnyTrue(sum != V(0.0f));
  faults.too_small = faults.too_small || IsAnyTrue(small != V(0.0f));
}

// Writes those of n numbers of a row, from its channel c on, in whose place something is that
// `factor` mends.
FOVEA_EMBEDDED_KERNEL void WriteMended(Type type, const float* from, int64_t n, float factor,
                                       char* to, int64_t stride, float* so_far) {
  LoadRow(type, to, stride, n, so_far);
  for (int64_t x = 0; x < n; ++x) {
    const bool is_finite = IsFinite(static_cast<double>(so_far[x]));
    const bool is_small = so_far[x] != 0 && __builtin_fabsf(so_far[x]) < kLeast;
    const bool mends = factor < 1 ? !is_finite : is_small && IsFinite(static_cast<double>(from[x]));
    if (mends) so_far[x] = Unscaled(from[x], factor);
  }
  StoreRow(type, so_far, n, to, stride);
}

// out = O / l and lse = m + ln l, where V was multiplied by `factor`. Adds what is wrong with rows
// without NaN to `faults`, if the factor is 1.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void Finish(const Head& head, const Tile<Lanes>& tile, float factor,
                                  float* values, float* stage, float* s, SumFaults& faults) {
  const Problem& p = *head.problem;
  char* rows[Lanes::kMostRows];
  const float* const o = tile.has_total ? tile.o_total : tile.o;
  const float* const sums = tile.has_total ? tile.l_total : tile.l;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    rows[r] = Address(p.out, head.b, h, i);
    const float m = tile.m[r], l = sums[r];
    const bool is_empty = l == 0;
    values[r] = is_empty ? 0 : 1 / l;
    if (p.lse.data == nullptr) return;
    const float lse = is_empty ? -kInfinity : IsNan(l) ? l : m + Log(l);
    __builtin_memcpy(Address(p.lse, head.b, h, i), &lse, sizeof(lse));
  });
  for (int64_t c = 0; c < p.dv; c += kStageColumns) {
    const int64_t n = Least(p.dv - c, kStageColumns);
    for (int r = 0; r < tile.count; r += 4) {
      const int last = static_cast<int>(Least(tile.count - r, 4));
      int64_t x = 0;
      if constexpr (Lanes::kKeyStep == 1) {
        const V4 inverse = Load4(values + r);
        for (; x + 4 <= n; x += 4) {
          V4 part[4];
          for (int y = 0; y < 4; ++y)
            part[y] = Load4(o + tile.lanes.Index(r, c + x + y, p.dv)) * inverse;
          Transpose(part);
          for (int y = 0; y < 4; ++y) part[y].store_unaligned(stage + y * kStageColumns + x);
        }
      }
      for (int y = 0; y < last; ++y) {
        float* to = stage + y * kStageColumns;
        for (int64_t z = x; z < n; ++z)
          to[z] = o[tile.lanes.Index(r + y, c + z, p.dv)] * values[r + y];
        char* const row = rows[r + y] + c * p.out.stride[3];
        if (factor == 1) {
          if (!IsNan(sums[r + y])) FindFaults(to, n, faults);
          StoreRow(p.out.type, to, n, row, p.out.stride[3]);
        } else {
          WriteMended(p.out.type, to, n, factor, row, p.out.stride[3], s);
        }
      }
    }
  }
}

// The result of query rows behind the length of their sequence.
FOVEA_EMBEDDED_KERNEL void FinishAbsent(const Head& head) {
  const Problem& p = *head.problem;
  const float nothing = -kInfinity;
  constexpr float kZeros[16] = {};
  for (int64_t g = 0; g < head.group; ++g) {
    const int64_t h = head.kv_head * head.group + g;
    for (int64_t i = head.sequence.q_length; i < p.Tq; ++i) {
      char* const row = Address(p.out, head.b, h, i);
      for (int64_t c = 0; c < p.dv; c += 16)
        StoreRow(p.out.type, kZeros, Least(p.dv - c, 16), row + c * p.out.stride[3],
                 p.out.stride[3]);
      if (p.lse.data != nullptr)
        __builtin_memcpy(Address(p.lse, head.b, h, i), &nothing, sizeof(nothing));
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_FINISH_H_
