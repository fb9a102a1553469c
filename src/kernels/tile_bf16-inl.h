// The tile engine's bf16 micro-kernels: lanes hold queries, and a step of a lane is a dot product
// of two bf16 with two bf16, summed in f32. What a product contracts comes in pairs, two bf16 in 32
// bits: channels of Q and K, keys of P and V.
//
// K is read in place, a pair at a time, as broadcasts. Q is packed once per tile; V is interleaved
// once per block, two keys at a time, and reused over the item's tiles. Rounding to bf16 happens
// once, to P: Q takes only the power of two of the scale, which is exact, and what is left of it
// multiplies scores.
//
// O has one channel more than V, of which every value is 1: the sum of the weights that were
// multiplied, by which O is divided at the end. So a constant V gives that constant however P was
// rounded; lse has the sum of the weights as they were before.
//
// Where dot products flush subnormal numbers (x86), elements of K and V below 2^−126 count as 0.
#if defined(FOVEA_SRC_KERNELS_TILE_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#endif

#include "kernels/pipeline-inl.h"
#include "kernels/take_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Channels of O and keys of S that a micro-kernel holds beside two vectors of queries; see
// kTileChannels and kTileKeys of tile_f32-inl.h.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int kPairChannels = 12;
#else
constexpr int kPairChannels = 6;
#endif
// Whether the target has the product as an instruction. Not HWY_NATIVE_DOT_BF16: on Arm,
// Highway 1.2 derives that from what the target before had.
constexpr bool kHasPairProducts =
    HWY_TARGET == HWY_NEON_BF16 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_ZEN4);
constexpr int kPairKeys = kFactorsAreLanes ? 8 : kPairChannels;

// Terms of q·k that are summed in one chain (even); see kChain of tile_f32-inl.h.
constexpr int64_t kPairChain = 128;

using DPairs = hn::Repartition<hwy::bfloat16_t, DF>;
using VPairs = hn::Vec<DPairs>;

// A vector at any address.
HWY_INLINE VF LoadAny(const char* p) {
  return hn::BitCast(
      DF(), hn::LoadU(hn::Repartition<uint8_t, DF>(), reinterpret_cast<const uint8_t*>(p)));
}

HWY_INLINE VPairs LoadPairs(const float* p) { return hn::BitCast(DPairs(), hn::Load(DF(), p)); }

// The pair at p in every lane, and the same with 0 for its second element, which is then not read.
HWY_INLINE VPairs BroadcastPair(const char* p) {
  return hn::BitCast(DPairs(), hn::Set(DU32(), ReadAs<uint32_t>(p)));
}
HWY_INLINE VPairs BroadcastFirst(const char* p) {
  return hn::BitCast(DPairs(), hn::Set(DU32(), uint32_t{ReadAs<uint16_t>(p)}));
}

// sum + x₀·y₀ + x₁·y₁ of every lane's pairs.
HWY_INLINE VF AddPairProducts(VPairs x, VPairs y, VF sum) {
  const DF df;
  if constexpr (kHasPairProducts) {
    VF unused = hn::Zero(df);
    return hn::ReorderWidenMulAccumulate(df, x, y, sum, unused);
  } else {
    // In the order of x86's instruction.
    sum = hn::MulAdd(hn::PromoteOddTo(df, x), hn::PromoteOddTo(df, y), sum);
    return hn::MulAdd(hn::PromoteEvenTo(df, x), hn::PromoteEvenTo(df, y), sum);
  }
}

// The pairs (p0, p1) of every lane, rounded to nearest even; NaN stays NaN.
HWY_INLINE VF RoundToPairs(VF p0, VF p1) {
  const DF df;
#if HWY_TARGET <= HWY_AVX3_ZEN4
  // All of p0 before all of p1: one instruction narrows both, one brings the pairs together.
  const hn::RebindToUnsigned<DPairs> du16;
  alignas(64) static constexpr uint16_t kPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto narrow = hn::BitCast(du16, hn::OrderedDemote2To(DPairs(), p0, p1));
  return hn::BitCast(df, hn::TableLookupLanes(narrow, hn::SetTableIndices(du16, kPairs)));
#else
  const DU32 du;
  const hn::Rebind<hwy::bfloat16_t, DF> half;
  const hn::Rebind<uint16_t, DF> half_bits;
  const auto widen = [&](VF p) HWY_ATTR {
    return hn::PromoteTo(du, hn::BitCast(half_bits, hn::DemoteTo(half, p)));
  };
  return hn::BitCast(df, hn::Or(widen(p0), hn::ShiftLeft<16>(widen(p1))));
#endif
}

// P as Accumulate wants it: pairs of keys 2j and 2j + 1 in row j of S's place; keys start at an
// even one.
struct WeightPairs {
  static constexpr int64_t kTogether = 2;

  static HWY_INLINE void StoreFour(VF p0, VF p1, VF p2, VF p3, int64_t stride, float* to) {
    hn::Store(RoundToPairs(p0, p1), DF(), to);
    hn::Store(RoundToPairs(p2, p3), DF(), to + stride);
  }
  // One to three; the others are 0.
  static HWY_INLINE void StoreSome(int64_t n, VF p0, VF p1, VF p2, int64_t stride, float* to) {
    hn::Store(RoundToPairs(p0, p1), DF(), to);
    if (n > 2) hn::Store(RoundToPairs(p2, hn::Zero(DF())), DF(), to + stride);
  }
  template <class Lanes>
  static HWY_INLINE float At(const float* s, int64_t row, int64_t key, int64_t block_keys) {
    const float* pair = s + Lanes::Index(row, key / 2, block_keys);
    return hwy::F32FromBF16(
        ReadAs<hwy::bfloat16_t>(reinterpret_cast<const char*>(pair) + 2 * (key % 2)));
  }
};

// s[j][:] = factor · Σ_c k[j][c] · q[c][:], plus s[j][:] if `add`, for kKeys keys and kVectors
// vectors of queries; c in ascending order, a pair at a time.
template <int kKeys, int kVectors>
FOVEA_HOT void PairScoresOf(const char* HWY_RESTRICT k, int64_t k_stride,
                            const float* HWY_RESTRICT q, int64_t dk, float factor, bool add,
                            float* HWY_RESTRICT s) {
  const DF df;
  constexpr int kRows = kVectors * kLanes;
  VF sum[kKeys][kVectors];
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::Zero(df);
  }
  const auto step = [&](const auto& broadcast) HWY_ATTR {
    VPairs qv[kVectors];
    for (int v = 0; v < kVectors; ++v) qv[v] = LoadPairs(q + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      const VPairs x = broadcast(j);
      for (int v = 0; v < kVectors; ++v) sum[j][v] = AddPairProducts(qv[v], x, sum[j][v]);
    }
    q += kRows;
  };
  if constexpr (kFactorsAreLanes) {
    for (; dk >= 2 * kLanes; dk -= 2 * kLanes, k += 4 * kLanes) {
      VF kv[kKeys];
      for (int j = 0; j < kKeys; ++j) kv[j] = LoadAny(k + j * k_stride);
      ForEachLane([&](auto lane) HWY_ATTR {
        step([&](int j)
                 HWY_ATTR { return hn::BitCast(DPairs(), hn::BroadcastLane<lane()>(kv[j])); });
      });
    }
  }
  for (; dk >= 2; dk -= 2, k += 4)
    step([&](int j) HWY_ATTR { return BroadcastPair(k + j * k_stride); });
  if (dk > 0) step([&](int j) HWY_ATTR { return BroadcastFirst(k + j * k_stride); });
  const VF scale = hn::Set(df, factor);
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      float* p = s + j * kRows + v * kLanes;
      hn::Store(add ? hn::MulAdd(sum[j][v], scale, hn::Load(df, p)) : hn::Mul(sum[j][v], scale), df,
                p);
    }
  }
}

// o[c][:] = alpha[:] · o[c][:] + Σ_j v[j][c] · p[j][:] for kChannels channels; j in ascending
// order, a pair at a time.
template <int kChannels, int kVectors>
FOVEA_HOT void PairAccumulateOf(const char* HWY_RESTRICT values, int64_t v_stride,
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
  VPairs pv[kVectors];
  const auto add = [&](int c, VPairs x) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = AddPairProducts(pv[v], x, sum[c][v]);
  };
  for (; keys >= 2; keys -= 2, values += v_stride, p += kRows) {
    for (int v = 0; v < kVectors; ++v) pv[v] = LoadPairs(p + v * kLanes);
    constexpr int kInVectors = kFactorsAreLanes ? kChannels / kLanes * kLanes : 0;
    for (int c = 0; c < kInVectors; c += kLanes) {
      const VF x = LoadAny(values + 4 * c);
      ForEachLane([&](auto lane) HWY_ATTR {
        add(c + lane(), hn::BitCast(DPairs(), hn::BroadcastLane<lane()>(x)));
      });
    }
    for (int c = kInVectors; c < kChannels; ++c) add(c, BroadcastPair(values + 4 * c));
  }
  // A key of the block behind the span, which P has as 0, may hold NaN in V.
  if (keys > 0) {
    for (int v = 0; v < kVectors; ++v) pv[v] = LoadPairs(p + v * kLanes);
    for (int c = 0; c < kChannels; ++c) add(c, BroadcastFirst(values + 4 * c));
  }
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[c][v], df, o + c * kRows + v * kLanes);
  }
}

template <int kVectors>
struct TileBF16Engine : BF16Operands<LanesAreQueries<kVectors>> {
  using Lanes = LanesAreQueries<kVectors>;
  using Operands = BF16Operands<Lanes>;
  using Weights = WeightPairs;
  using Pipeline = AtOnce<TileBF16Engine>;
  using Operands::OutputColumns;

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return keys / kPairKeys +
           (keys + g.block_keys - 1) / g.block_keys * (OutputColumns(g.dv) / kPairChannels);
  }
  static HWY_INLINE void Scores(const Part& part, const PairRows& k, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    float* s = part.s;
    for (int64_t c = 0; c < g.dk; c += kPairChain) {
      const float* q = tile.q + Lanes::Index(0, c / 2, 0);
      const int64_t depth = std::min(g.dk - c, kPairChain);
      const char* from = k.data + span.first * k.stride + 2 * c;
      float* to = s + span.first * Lanes::kRows;
      int64_t n = span.end - span.first;
      for (; n >= kPairKeys;
           n -= kPairKeys, from += kPairKeys * k.stride, to += kPairKeys * Lanes::kRows) {
        ahead.Step();
        PairScoresOf<kPairKeys, kVectors>(from, k.stride, q, depth, tile.factor, c > 0, to);
      }
      WithRemainder<kPairKeys>(n, [&](auto keys) HWY_ATTR {
        PairScoresOf<keys(), kVectors>(from, k.stride, q, depth, tile.factor, c > 0, to);
      });
    }
  }

  static HWY_INLINE void Accumulate(const Part& part, const PairValues& v, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    const float* s = part.s;
    const char* from = v.rows.data + span.first / 2 * v.rows.stride;
    const float* p = s + Lanes::Index(0, span.first / 2, 0);
    const int64_t keys = span.end - span.first;
    float* o = tile.o;
    int64_t n = OutputColumns(g.dv);
    for (; n >= kPairChannels;
         n -= kPairChannels, from += 4 * kPairChannels, o += kPairChannels * Lanes::kRows) {
      ahead.Step();
      PairAccumulateOf<kPairChannels, kVectors>(from, v.rows.stride, p, keys, tile.state.alpha, o);
    }
    WithRemainder<kPairChannels>(n, [&](auto channels) HWY_ATTR {
      PairAccumulateOf<channels(), kVectors>(from, v.rows.stride, p, keys, tile.state.alpha, o);
    });
  }

  static HWY_INLINE void Seal(const Part&) {}
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
