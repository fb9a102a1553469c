// The tile engines' micro-kernels, over any product: lanes hold queries. K and V are read a word at
// a time, as broadcasts; there are no horizontal reductions, and the rescaling of O rides on the
// addition of what a segment gives.
//
//   words of Q  q[c][query]     a row for every kTerms channels c, packed once per tile
//   words of K  k[key][c]       rows of words at any address
//   scores      s[key][query]
//   words of P  p[j][query]     a row for every kTerms keys, in the place of s
//   words of V  v[j][channel]   a row for every kTerms keys
//   sums        o[channel][query]
#if defined(FOVEA_SRC_KERNELS_TILE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_LOOPS_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_LOOPS_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_LOOPS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/ahead-inl.h"
#include "kernels/chains-inl.h"
#include "kernels/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Channels of O that a micro-kernel holds beside two vectors of queries: their product, the two
// loaded vectors and one broadcast fill the register file. And keys of S, fewer where a vector of
// each is held, too.
constexpr int kTileChannels = kManyRegisters ? 12 : 6;
constexpr int kTileKeys = kFactorsAreLanes ? 8 : kTileChannels;

// A remainder of n < kMost keys or channels: the instance of that size.
template <int kMost, class F>
HWY_INLINE void WithRemainder(int64_t n, const F& f) {
  if constexpr (kMost > 1) {
    if (n == kMost - 1) {
      f(std::integral_constant<int, kMost - 1>());
    } else {
      WithRemainder<kMost - 1>(n, f);
    }
  }
}

// s[j][:] = Σ_c k[j][c] · q[c][:] in natural units, plus s[j][:] if `add`, for kKeys keys and
// kVectors vectors of queries, over `terms` channels; c in ascending order, a word at a time.
template <class Product, int kKeys, int kVectors>
FOVEA_HOT void ScoresOf(const char* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q,
                        int64_t terms, const Tile& tile, bool add, float* HWY_RESTRICT s) {
  using Words = typename Product::Words;
  using Sums = typename Product::Sums;
  constexpr int kRows = kVectors * kLanes, kTerms = Product::kTerms;
  const DF df;
  Sums sum[kKeys][kVectors];
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::Zero(hn::DFromV<Sums>());
  }
  const auto step = [&](const auto& broadcast) HWY_ATTR {
    Words qv[kVectors];
    for (int v = 0; v < kVectors; ++v) qv[v] = Product::Load(q + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      const Words x = broadcast(j);
      for (int v = 0; v < kVectors; ++v) sum[j][v] = Product::MultiplyAdd(qv[v], x, sum[j][v]);
    }
    q += kRows;
  };
  int64_t words = terms / kTerms;
  if constexpr (kFactorsAreLanes) {
    for (; words >= kLanes; words -= kLanes, k += kWordBytes * kLanes) {
      Words kv[kKeys];
      for (int j = 0; j < kKeys; ++j) kv[j] = Product::LoadAny(k + j * k_stride);
      ForEachIndex<kLanes>([&](auto lane) HWY_ATTR {
        step([&](int j) HWY_ATTR { return Product::template BroadcastLane<lane()>(kv[j]); });
      });
    }
  }
  for (; words != 0; --words, k += kWordBytes)
    step([&](int j) HWY_ATTR { return Product::Broadcast(k + j * k_stride); });
  if constexpr (kTerms > 1) {
    if (const int64_t some = terms % kTerms; some != 0)
      step([&](int j) HWY_ATTR { return Product::BroadcastSome(k + j * k_stride, some); });
  }
  VF factor[kVectors];
  for (int v = 0; v < kVectors; ++v)
    factor[v] = Product::Factor(tile.factors, tile.factor, v * kLanes);
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      float* p = s + j * kRows + v * kLanes;
      hn::Store(add ? Product::AddScores(sum[j][v], factor[v], hn::Load(df, p))
                    : Product::Scores(sum[j][v], factor[v]),
                df, p);
    }
  }
}

// o[c][:] = alpha[:] · o[c][:] + before[c][:] + Σ_j v[j][c] · p[j][:] for kChannels channels, over
// `terms` keys; j in ascending order, a word at a time, the sum from zero. Without alpha, o's old
// values do not count, and without `before` there is none.
template <class Product, int kChannels, int kVectors>
FOVEA_HOT void AccumulateOf(const char* HWY_RESTRICT values, int64_t v_stride,
                            const float* HWY_RESTRICT p, int64_t terms, const float* before,
                            const float* alpha, float* o) {
  using Words = typename Product::Words;
  static_assert(std::is_same_v<typename Product::Sums, VF>, "sums are added to O");
  constexpr int kRows = kVectors * kLanes, kTerms = Product::kTerms;
  const DF df;
  VF sum[kChannels][kVectors];
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = hn::Zero(df);
  }
  Words pv[kVectors];
  const auto add = [&](int c, Words x) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = Product::MultiplyAdd(pv[v], x, sum[c][v]);
  };
  for (int64_t words = terms / kTerms; words != 0; --words, values += v_stride, p += kRows) {
    for (int v = 0; v < kVectors; ++v) pv[v] = Product::Load(p + v * kLanes);
    constexpr int kInVectors = kFactorsAreLanes ? kChannels / kLanes * kLanes : 0;
    for (int c = 0; c < kInVectors; c += kLanes) {
      const Words x = Product::LoadAny(values + kWordBytes * c);
      ForEachIndex<kLanes>(
          [&](auto lane) HWY_ATTR { add(c + lane(), Product::template BroadcastLane<lane()>(x)); });
    }
    for (int c = kInVectors; c < kChannels; ++c)
      add(c, Product::Broadcast(values + kWordBytes * c));
  }
  // A key of the block behind the span, which P has as 0, may hold NaN in V.
  if constexpr (kTerms > 1) {
    if (const int64_t some = terms % kTerms; some != 0) {
      for (int v = 0; v < kVectors; ++v) pv[v] = Product::Load(p + v * kLanes);
      for (int c = 0; c < kChannels; ++c)
        add(c, Product::BroadcastSome(values + kWordBytes * c, some));
    }
  }
  if (before != nullptr) {
    for (int c = 0; c < kChannels; ++c) {
      for (int v = 0; v < kVectors; ++v)
        sum[c][v] = hn::Add(hn::Load(df, before + c * kRows + v * kLanes), sum[c][v]);
    }
  }
  if (alpha != nullptr) {
    for (int v = 0; v < kVectors; ++v) {
      const VF a = hn::Load(df, alpha + v * kLanes);
      for (int c = 0; c < kChannels; ++c)
        sum[c][v] = hn::MulAdd(hn::Load(df, o + c * kRows + v * kLanes), a, sum[c][v]);
    }
  }
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[c][v], df, o + c * kRows + v * kLanes);
  }
}

// o[c][:] = alpha[:] · o[c][:] + Σ_j v[j][c] · p[j][:], in chains of keys, of which a segment has
// at most two. Keys first ≤ j < end of the block, of which `first` begins a word.
template <class Product, int kChannels, int kVectors>
HWY_INLINE void AccumulateChains(const char* HWY_RESTRICT values, int64_t v_stride,
                                 const float* HWY_RESTRICT p, int64_t first, int64_t end,
                                 const float* alpha, float* o) {
  constexpr int64_t kMost = Product::kChainKeys, kRows = kVectors * kLanes;
  HWY_ALIGN float sums[kChannels * kRows];
  const float* before = nullptr;
  for (int64_t key = first; key < end;) {
    const int64_t chain_end = std::min(end, RoundUp(key + 1, kMost));
    const int64_t word = key / Product::kTerms;
    const bool is_last = chain_end == end;
    AccumulateOf<Product, kChannels, kVectors>(values + word * v_stride, v_stride, p + word * kRows,
                                               chain_end - key, before, is_last ? alpha : nullptr,
                                               is_last ? o : sums);
    before = sums;
    key = chain_end;
  }
}

// What the tile engines of all products share; they differ in how they take Q, K and V.
template <class Product, int kVectors>
struct TileLoops {
  using Lanes = LanesAreQueries<kVectors>;
  static constexpr int kTerms = Product::kTerms;
  static_assert(kChain % kTerms == 0);

  // `channels` of O; spreads prefetches.
  static int64_t CallsOf(int64_t keys, int64_t block_keys, int64_t channels) {
    return keys / kTileKeys + (keys + block_keys - 1) / block_keys * (channels / kTileChannels);
  }

  static HWY_INLINE void Scores(const Part& part, const WordRows& k, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    const int64_t first = Lanes::Index(0, span.first, 0), end = Lanes::Index(0, span.end, 0);
    for (int64_t c = 0; c < g.dk; c += kChain) {
      const float* q = tile.q + Lanes::Index(0, c / kTerms, 0);
      const int64_t terms = std::min(g.dk - c, kChain), run = c / kRunChannels;
      const bool add = c % kRunChannels != 0;
      const char* from = k.data + span.first * k.stride + kWordBytes * (c / kTerms);
      float* const s = run == 0 ? part.s : tile.run;
      float* to = s + first;
      int64_t n = span.end - span.first;
      for (; n >= kTileKeys;
           n -= kTileKeys, from += kTileKeys * k.stride, to += kTileKeys * Lanes::kRows) {
        ahead.Step();
        ScoresOf<Product, kTileKeys, kVectors>(from, k.stride, q, terms, tile, add, to);
      }
      WithRemainder<kTileKeys>(n, [&](auto keys) HWY_ATTR {
        ScoresOf<Product, keys(), kVectors>(from, k.stride, q, terms, tile, add, to);
      });
      const int64_t behind = c + terms;
      if (run > 0 && (behind % kRunChannels == 0 || behind == g.dk)) {
        JoinRuns(tile.run + first, end - first, run == 1, behind == g.dk, tile.lost + first,
                 part.s + first);
      }
    }
  }

  // `channels` of V. The span starts at a whole word of keys.
  static HWY_INLINE void Accumulate(const Part& part, const WordRows& v, int64_t channels,
                                    Ahead& ahead) {
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    const char* from = v.data;
    float* o = tile.o;
    for (; channels >= kTileChannels; channels -= kTileChannels, from += kWordBytes * kTileChannels,
                                      o += kTileChannels * Lanes::kRows) {
      ahead.Step();
      AccumulateChains<Product, kTileChannels, kVectors>(from, v.stride, part.s, span.first,
                                                         span.end, tile.state.alpha, o);
    }
    WithRemainder<kTileChannels>(channels, [&](auto some) HWY_ATTR {
      AccumulateChains<Product, some(), kVectors>(from, v.stride, part.s, span.first, span.end,
                                                  tile.state.alpha, o);
    });
  }

  static HWY_INLINE void Seal(const Part&) {}
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
