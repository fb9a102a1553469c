// The row engine's f32 micro-kernels: lanes hold the head dimension of K and V rows, which are read
// in place, all query rows of a tile at once, so that K and V stream from memory exactly once. Rows
// of 16 bits are widened in registers: they are half as many bytes.
#if defined(FOVEA_SRC_KERNELS_ROW_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#undef FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#else
#define FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#endif

#include "kernels/chains-inl.h"
#include "kernels/pipeline-inl.h"
#include "kernels/products-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Vectors of channels that stay in registers while V streams by, for two query rows at a time, or
// half as many for four: half of the register file.
constexpr int kRowChannels = kManyRegisters ? 8 : 4;

// Lane x of the result, x < 4: the sum of the lanes of the x-th argument. The order of the sum is
// the same for each.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> SumsOfLanes(VF a, VF b, VF c, VF d) {
  const hn::FixedTag<float, 4> d4;
  TransposeBlocks(a, b, c, d);
  const VF sum = hn::Add(hn::Add(a, b), hn::Add(c, d));
  if constexpr (kLanes == 4) {
    return hn::ResizeBitCast(d4, sum);
  } else {
    const hn::Half<DF> half;
    const auto folded = hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum));
    if constexpr (kLanes == 8) {
      return hn::ResizeBitCast(d4, folded);
    } else {
      const hn::Half<decltype(half)> quarter;
      return hn::ResizeBitCast(
          d4, hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded)));
    }
  }
}

// s[r][j] = Σ_c k[j][c] · q[r][c] for kKeys (≤ 4) keys of type T and kRows query rows, plus s[r][j]
// if kAdds. q rows are padded with zeros to whole vectors.
template <int kKeys, int kRows, bool kAdds, class T>
FOVEA_HOT void RowScoresOf(const T* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q,
                           int64_t q_stride, int64_t dk, float* HWY_RESTRICT s, int64_t s_stride) {
  const DF df;
  VF sum[4][kRows];
  for (int j = 0; j < 4; ++j) {
    for (int r = 0; r < kRows; ++r) sum[j][r] = hn::Zero(df);
  }
  int64_t c = 0;
  for (; c + kLanes <= dk; c += kLanes) {
    VF x[kKeys];
    for (int j = 0; j < kKeys; ++j) x[j] = LoadAsF32(k + j * k_stride + c);
    for (int r = 0; r < kRows; ++r) {
      const VF y = hn::Load(df, q + r * q_stride + c);
      for (int j = 0; j < kKeys; ++j) sum[j][r] = hn::MulAdd(x[j], y, sum[j][r]);
    }
  }
  if (c < dk) {
    for (int j = 0; j < kKeys; ++j) {
      const VF x = LoadAsF32(k + j * k_stride + c, dk - c);
      for (int r = 0; r < kRows; ++r)
        sum[j][r] = hn::MulAdd(x, hn::Load(df, q + r * q_stride + c), sum[j][r]);
    }
  }
  const hn::FixedTag<float, 4> d4;
  for (int r = 0; r < kRows; ++r) {
    float* const to = s + r * s_stride;
    auto sums = SumsOfLanes(sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
    if constexpr (kAdds) sums = hn::Add(hn::LoadN(d4, to, kKeys), sums);
    hn::StoreN(sums, d4, to, kKeys);
  }
}

// The same over the channels of a run.
template <int kKeys, int kRows, class T>
HWY_INLINE void RowScoresOfRun(const T* HWY_RESTRICT k, int64_t k_stride,
                               const float* HWY_RESTRICT q, int64_t q_stride, int64_t dk,
                               float* HWY_RESTRICT s, int64_t s_stride) {
  RowScoresOf<kKeys, kRows, false>(k, k_stride, q, q_stride, std::min(dk, kRowChain), s, s_stride);
  for (int64_t c = kRowChain; c < dk; c += kRowChain) {
    RowScoresOf<kKeys, kRows, true>(k + c, k_stride, q + c, q_stride, std::min(dk - c, kRowChain),
                                    s, s_stride);
  }
}

constexpr int64_t kRowRun = kRunChains * kRowChain;

// s[r][j], which has the first run, plus all others.
template <int kKeys, int kRows, class T>
HWY_NOINLINE void AddRowRuns(const T* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q,
                             int64_t q_stride, int64_t dk, float* HWY_RESTRICT s,
                             int64_t s_stride) {
  const hn::FixedTag<float, 4> d4;
  HWY_ALIGN float run[kRows * 4], lost[kRows * 4] = {};
  for (int64_t c = kRowRun; c < dk; c += kRowRun) {
    RowScoresOfRun<kKeys, kRows>(k + c, k_stride, q + c, q_stride, std::min(dk - c, kRowRun), run,
                                 4);
    for (int r = 0; r < kRows; ++r) {
      float* const to = s + r * s_stride;
      auto sums = hn::LoadN(d4, to, kKeys), rests = hn::Load(d4, lost + 4 * r);
      JoinRun(hn::LoadN(d4, run + 4 * r, kKeys), c + kRowRun >= dk, sums, rests);
      hn::StoreN(sums, d4, to, kKeys);
      hn::Store(rests, d4, lost + 4 * r);
    }
  }
}

// The same over all channels of a head.
template <int kKeys, int kRows, class T>
HWY_INLINE void RowScoresOfHead(const T* HWY_RESTRICT k, int64_t k_stride,
                                const float* HWY_RESTRICT q, int64_t q_stride, int64_t dk,
                                float* HWY_RESTRICT s, int64_t s_stride) {
  RowScoresOfRun<kKeys, kRows>(k, k_stride, q, q_stride, std::min(dk, kRowRun), s, s_stride);
  if (dk > kRowRun) AddRowRuns<kKeys, kRows>(k, k_stride, q, q_stride, dk, s, s_stride);
}

// Keys of P·V that are summed in one chain: half a segment.
constexpr int64_t kRowChainKeys = kSegmentKeysF32 / 2;

// o[r][:] = alpha[r] · o[r][:] + Σ_j p[r][j] · v[j][:] for kRows rows and kChannels vectors of
// channels, of which the last holds `last` (≤ kLanes). Keys first ≤ j < end; the sum of a segment
// is that of its chains.
template <int kRows, int kChannels, bool kWhole, class T>
FOVEA_HOT void RowAccumulateOf(const T* HWY_RESTRICT values, int64_t v_stride,
                               const float* HWY_RESTRICT p, int64_t p_stride, int64_t first,
                               int64_t end, const float* HWY_RESTRICT alpha, float* HWY_RESTRICT o,
                               int64_t o_stride, int64_t last) {
  const DF df;
  VF a[kRows];
  for (int r = 0; r < kRows; ++r) a[r] = hn::Set(df, alpha[r]);
  for (int64_t j = first; j < end;) {
    HWY_ALIGN float before[kRows][kChannels * kLanes];
    VF sum[kRows][kChannels];
    const int64_t segment_end = std::min(end, RoundUp(j + 1, kSegmentKeysF32));
    for (bool is_first = true; j < segment_end; is_first = false) {
      const int64_t chain_end = std::min(end, RoundUp(j + 1, kRowChainKeys));
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kChannels; ++c) sum[r][c] = hn::Zero(df);
      }
      for (; j < chain_end; ++j) {
        const T* const from = values + j * v_stride;
        VF pv[kRows];
        for (int r = 0; r < kRows; ++r) pv[r] = hn::Set(df, p[r * p_stride + j]);
        for (int c = 0; c < kChannels; ++c) {
          const VF x = kWhole || c + 1 < kChannels ? LoadAsF32(from + c * kLanes)
                                                   : LoadAsF32(from + c * kLanes, last);
          for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(x, pv[r], sum[r][c]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kChannels; ++c) {
          if (!is_first) sum[r][c] = hn::Add(hn::Load(df, before[r] + c * kLanes), sum[r][c]);
          if (j < segment_end) hn::Store(sum[r][c], df, before[r] + c * kLanes);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kChannels; ++c) {
        float* const to = o + r * o_stride + c * kLanes;
        // Two roundings: the bits do not depend on whether a segment that no row sees is visited.
        hn::Store(hn::Add(hn::Mul(hn::Load(df, to), a[r]), sum[r][c]), df, to);
      }
      a[r] = hn::Set(df, 1.0f);
    }
  }
}

// no stride aliases: rows are read once, in order; of any type, in place
struct RowEngine : F32Operands<LanesAreKeys, 0, true> {
  using Lanes = LanesAreKeys;
  using Pipeline = AtOnce<RowEngine>;
  // Long runs of K and of V keep DRAM pages and prefetchers busy.
  static constexpr int kBlockKeys = 2 * kSegmentKeysF32;

  static int64_t MicroKernelCalls(int64_t keys, const Geometry&) { return keys / 4; }

  template <int kRows, class T>
  static HWY_INLINE void ScoresOfRows(const float* q, const BlockRows& k, const Span& span,
                                      const Geometry& g, float* s, Ahead& ahead) {
    const int64_t q_stride = RoundUp(g.dk, kLanes), s_stride = RoundUp(g.block_keys, kLanes);
    int64_t key = span.first;
    for (; key + 4 <= span.end; key += 4) {
      ahead.Step();
      RowScoresOfHead<4, kRows>(k.Row<T>(key), k.stride, q, q_stride, g.dk, s + key, s_stride);
    }
    for (; key < span.end; ++key)
      RowScoresOfHead<1, kRows>(k.Row<T>(key), k.stride, q, q_stride, g.dk, s + key, s_stride);
  }

  template <class T>
  static HWY_NOINLINE void ScoresAs(const Tile& tile, const BlockRows& k, const Span& span,
                                    const Geometry& g, float* s, Ahead& ahead) {
    const float* q = tile.q;
    int rows = tile.count;
    for (; rows >= 4;
         rows -= 4, q += Lanes::Index(4, 0, g.dk), s += Lanes::Index(4, 0, g.block_keys))
      ScoresOfRows<4, T>(q, k, span, g, s, ahead);
    switch (rows) {
      case 3:
        return ScoresOfRows<3, T>(q, k, span, g, s, ahead);
      case 2:
        return ScoresOfRows<2, T>(q, k, span, g, s, ahead);
      case 1:
        return ScoresOfRows<1, T>(q, k, span, g, s, ahead);
      default:
        return;
    }
  }

  static HWY_INLINE void Scores(const Part& part, const BlockRows& k, Ahead& ahead) {
    WithVectorType(k.dtype, [&](auto zero) HWY_ATTR {
      ScoresAs<decltype(zero)>(*part.tile, k, part.span, *part.g, part.s, ahead);
    });
  }

  template <int kRows, class T>
  static HWY_INLINE void AccumulateRows(const BlockRows& v, const Span& span, const Geometry& g,
                                        const float* p, const float* alpha, float* o) {
    const int64_t p_stride = RoundUp(g.block_keys, kLanes), o_stride = RoundUp(g.dv, kLanes);
    const T* from = v.Row<T>(0);
    const int64_t first = span.first, end = span.end;
    int64_t c = 0;
    constexpr int kMost = kRows > 2 ? kRowChannels / 2 : kRowChannels;
    for (; c + kMost * kLanes <= g.dv; c += kMost * kLanes) {
      RowAccumulateOf<kRows, kMost, true>(from + c, v.stride, p, p_stride, first, end, alpha, o + c,
                                          o_stride, kLanes);
    }
    if (c + 2 * kLanes <= g.dv) {
      for (; c + 2 * kLanes <= g.dv; c += 2 * kLanes)
        RowAccumulateOf<kRows, 2, true>(from + c, v.stride, p, p_stride, first, end, alpha, o + c,
                                        o_stride, kLanes);
    }
    for (; c < g.dv; c += kLanes) {
      const int64_t last = std::min<int64_t>(g.dv - c, kLanes);
      RowAccumulateOf<kRows, 1, false>(from + c, v.stride, p, p_stride, first, end, alpha, o + c,
                                       o_stride, last);
    }
  }

  template <class T>
  static HWY_NOINLINE void AccumulateAs(const Tile& tile, const BlockRows& v, const Span& span,
                                        const Geometry& g, const float* s) {
    int r = 0;
    for (; r + 4 <= tile.count; r += 4) {
      AccumulateRows<4, T>(v, span, g, s + Lanes::Index(r, 0, g.block_keys), tile.state.alpha + r,
                           tile.o + Lanes::Index(r, 0, g.dv));
    }
    for (; r + 2 <= tile.count; r += 2) {
      AccumulateRows<2, T>(v, span, g, s + Lanes::Index(r, 0, g.block_keys), tile.state.alpha + r,
                           tile.o + Lanes::Index(r, 0, g.dv));
    }
    if (r < tile.count)
      AccumulateRows<1, T>(v, span, g, s + Lanes::Index(r, 0, g.block_keys), tile.state.alpha + r,
                           tile.o + Lanes::Index(r, 0, g.dv));
  }

  static HWY_INLINE void Accumulate(const Part& part, const BlockValues& v, Ahead&) {
    WithVectorType(v.rows.dtype, [&](auto zero) HWY_ATTR {
      AccumulateAs<decltype(zero)>(*part.tile, v.rows, part.span, *part.g, part.s);
    });
  }

  // Scores past the span, up to a whole vector, are no keys.
  static HWY_INLINE void Seal(const Part& part) {
    const int64_t end = part.span.end;
    for (int r = 0; r < part.tile->count; ++r) {
      for (int64_t key = end; key < RoundUp(end, kLanes); ++key)
        part.s[Lanes::Index(r, key, part.g->block_keys)] = MinusInfinityScalar();
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
