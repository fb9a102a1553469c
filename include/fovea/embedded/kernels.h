// The loops of multiply-adds, for the two ways in which a tile lies across lanes. Knows nothing of
// masks, types of the caller or softmax.
//
// Many query rows: lanes hold queries. Scores lie S[key][row], Q and O [channel][row]; K and V are
// read a scalar at a time, as broadcasts, so that there is no horizontal reduction. Few query rows
// (decoding): lanes hold the head dimension of K and V, which are read once for all rows;
// S[row][key], Q and O [row][channel].
#ifndef FOVEA_EMBEDDED_KERNELS_H_
#define FOVEA_EMBEDDED_KERNELS_H_

#include "fovea/embedded/lanes.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// A matrix of rows of K or V: the caller's memory or a copy.
struct Matrix {
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  Type type = Type::kF32;

  template <class T>
  const T* Row(int64_t j) const {
    return static_cast<const T*>(data) + j * stride;
  }
};

template <int n>
struct Count {
  static constexpr int value = n;
};

// f(Count<k>, from) for runs of k from a list, the longest first, that make up [0, n).
template <int kFirst, int... kRest, class F>
void InRuns(int64_t n, const F& f, int64_t from = 0) {
  for (; n >= kFirst; n -= kFirst, from += kFirst) f(Count<kFirst>(), from);
  if constexpr (sizeof...(kRest) > 0) {
    if (n > 0) InRuns<kRest...>(n, f, from);
  }
}

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

// Terms of q·k that are summed in one chain; longer heads are sums of such sums, since rounding
// grows with the chain.
constexpr int64_t kChain = 128;

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

// o[c][:] = alpha[:] · o[c][:] + Σ_j v[j][c] · p[j][:] for kChannels channels.
template <int kChannels, int kVectors>
FOVEA_EMBEDDED_HOT void TileAccumulate(const float* __restrict values, int64_t v_stride,
                                       const float* __restrict p, int64_t keys,
                                       const float* __restrict alpha, float* __restrict o) {
  constexpr int kRows = kVectors * kLanes;
  V sum[kChannels][kVectors];
  FOVEA_EMBEDDED_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const V a = Load(alpha + v * kLanes);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) sum[c][v] = Load(o + c * kRows + v * kLanes) * a;
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
  for (int c = 0; c < kChannels; ++c) {
    FOVEA_EMBEDDED_UNROLL
    for (int v = 0; v < kVectors; ++v) Store(sum[c][v], o + c * kRows + v * kLanes);
  }
}

// s[r][j] = Σ_c k[j][c] · q[r][c] for kKeys (≤ 4) keys and kRows query rows. q rows are padded with
// zeros to whole vectors.
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
  const auto add = [&](int64_t c, const auto& load) {
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
  int64_t c = 0;
  for (; c + kLanes <= dk; c += kLanes) add(c, [](const T* p) { return LoadWidened(p); });
  if (c < dk) add(c, [&](const T* p) { return LoadWidened(p, dk - c); });
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) SumsOfLanes(sum[r], s + r * s_stride, kKeys);
}

// o[r][:] = alpha[r] · o[r][:] + Σ_j p[r][j] · v[j][:] for kRows rows and kChannels vectors of
// channels, of which the last holds `last` (≤ kLanes).
template <int kChannels, int kRows, class T>
FOVEA_EMBEDDED_HOT void RowAccumulate(const T* __restrict values, int64_t v_stride,
                                      const float* __restrict p, int64_t p_stride, int64_t keys,
                                      const float* __restrict alpha, float* __restrict o,
                                      int64_t o_stride, int64_t last) {
  V sum[kRows][kChannels];
  FOVEA_EMBEDDED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const V a(alpha[r]);
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) sum[r][c] = Load(o + r * o_stride + c * kLanes) * a;
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
    FOVEA_EMBEDDED_UNROLL
    for (int c = 0; c < kChannels; ++c) Store(sum[r][c], o + r * o_stride + c * kLanes);
  }
}

// What is read next, prefetched a few rows at each call of a micro-kernel: rows of K, then of V. A
// hint; it changes no result.
struct Ahead {
  struct Run {
    const char* row = nullptr;
    int64_t rows = 0, stride = 0, bytes = 0;
  };
  Run run[2];
  int64_t rows_per_step = 0;

  void Step() {
    for (int64_t n = rows_per_step; n > 0; --n) {
      Run& next = run[0].rows > 0 ? run[0] : run[1];
      if (next.rows <= 0) return;
      for (int64_t x = 0; x < next.bytes; x += 64) __builtin_prefetch(next.row + x, 0, 2);
      next.row += next.stride;
      --next.rows;
    }
  }
};

// ---- the two layouts of a tile

// S[key][row], rows padded to one or two vectors. The padding computes along and is never written
// out.
struct LanesAreQueries {
  int vectors;

  static constexpr int kMostRows = 2 * kLanes;
  static constexpr int kRowStep = kLanes;  // rows and keys of one vector of S
  static constexpr int kKeyStep = 1;
  static constexpr bool kReadsF16 = false;

  constexpr int rows() const { return vectors * kLanes; }
  constexpr int64_t Floats(int64_t columns) const { return rows() * columns; }
  constexpr int64_t Index(int64_t row, int64_t column, int64_t /*columns*/) const {
    return column * rows() + row;
  }

  static V PerRow(const float* a, int64_t row) { return Load(a + row); }
  static void StorePerRow(V v, float* a, int64_t row) { Store(v, a + row); }
  static V Keys(int64_t key) { return V(static_cast<float>(key)); }
  static V FoldMax(V v) { return v; }
  static V FoldSum(V v) { return v; }

  // Of micro-kernels, for a block of keys; spreads prefetches.
  int64_t Calls(int64_t keys, int64_t dv) const { return (keys + dv) / kTileScalars; }

  void Scores(const float* q, int /*count*/, const Matrix& k, int64_t first, int64_t end,
              int64_t dk, int64_t /*s_columns*/, float* s, Ahead& ahead) const {
    for (int64_t c = 0; c < dk; c += kChain) {
      InTileRuns(end - first, [&](auto keys, int64_t j) {
        ahead.Step();
        const auto scores = vectors == 1 ? TileScores<keys.value, 1> : TileScores<keys.value, 2>;
        scores(k.Row<float>(first + j) + c, k.stride, q + c * rows(), Least(dk - c, kChain), c > 0,
               s + (first + j) * rows());
      });
    }
  }
  void Accumulate(const float* p, int /*count*/, const Matrix& v, int64_t first, int64_t end,
                  int64_t dv, int64_t /*p_columns*/, const float* alpha, float* o,
                  Ahead& ahead) const {
    InTileRuns(dv, [&](auto channels, int64_t c) {
      ahead.Step();
      const auto accumulate =
          vectors == 1 ? TileAccumulate<channels.value, 1> : TileAccumulate<channels.value, 2>;
      accumulate(v.Row<float>(first) + c, v.stride, p + first * rows(), end - first, alpha,
                 o + c * rows());
    });
  }
};

// Up to half a vector of rows, but at least four: a tile of queries would leave half of its lanes
// empty.
constexpr int kFewRows = kLanes / 2 > 4 ? kLanes / 2 : 4;

// S[row][key], keys padded to whole vectors; the padding is −inf before the softmax.
struct LanesAreKeys {
  static constexpr int kMostRows = kFewRows;
  static constexpr int kRowStep = 1;
  static constexpr int kKeyStep = kLanes;
  static constexpr bool kReadsF16 = true;
  // vectors of O in registers, for four rows
  static constexpr int kChannels = kManyRegisters ? 4 : 2;

  constexpr int rows() const { return kFewRows; }
  constexpr int64_t Floats(int64_t columns) const { return kFewRows * RoundUp(columns, kLanes); }
  constexpr int64_t Index(int64_t row, int64_t column, int64_t columns) const {
    return row * RoundUp(columns, kLanes) + column;
  }

  static V PerRow(const float* a, int64_t row) { return V(a[row]); }
  static void StorePerRow(V v, float* a, int64_t row) { a[row] = v.get(0); }
  static V Keys(int64_t key) {
    float keys[kLanes];
    for (int x = 0; x < kLanes; ++x) keys[x] = static_cast<float>(key + x);
    return Load(keys);
  }
  static V FoldMax(V v) { return V(xsimd::reduce_max(v)); }
  static V FoldSum(V v) { return V(xsimd::reduce_add(v)); }

  int64_t Calls(int64_t keys, int64_t dv) const { return keys / 4 + dv / (kChannels * kLanes); }

  void Scores(const float* q, int count, const Matrix& k, int64_t first, int64_t end, int64_t dk,
              int64_t s_columns, float* s, Ahead& ahead) const {
    const int64_t q_stride = RoundUp(dk, kLanes), s_stride = RoundUp(s_columns, kLanes);
    WithType(k.type, [&](auto zero) {
      using T = decltype(zero);
      InRuns<4, 1>(count, [&](auto rows, int64_t r) {
        InRuns<4, 1>(end - first, [&](auto keys, int64_t j) {
          ahead.Step();
          RowScores<keys.value, rows.value>(k.Row<T>(first + j), k.stride, q + r * q_stride,
                                            q_stride, dk, s + r * s_stride + first + j, s_stride);
        });
      });
    });
    for (int r = 0; r < count; ++r) {
      for (int64_t key = end; key < RoundUp(end, kLanes); ++key) s[r * s_stride + key] = -kInfinity;
    }
  }
  void Accumulate(const float* p, int count, const Matrix& v, int64_t first, int64_t end,
                  int64_t dv, int64_t p_columns, const float* alpha, float* o, Ahead& ahead) const {
    const int64_t p_stride = RoundUp(p_columns, kLanes), o_stride = RoundUp(dv, kLanes);
    WithType(v.type, [&](auto zero) {
      using T = decltype(zero);
      InRuns<4, 1>(count, [&](auto rows, int64_t r) {
        const int64_t whole = dv / kLanes * kLanes;
        const auto accumulate = [&](auto channels, int64_t c, int64_t last) {
          ahead.Step();
          RowAccumulate<channels.value, rows.value>(
              v.Row<T>(first) + c, v.stride, p + r * p_stride + first, p_stride, end - first,
              alpha + r, o + r * o_stride + c, o_stride, last);
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

#endif  // FOVEA_EMBEDDED_KERNELS_H_
