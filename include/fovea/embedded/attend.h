// The algorithm: streaming attention of an item (a few query tiles of one KV head over all of its
// keys), for either layout of a tile.
//
// S = scale·Q·Kᵀ for a tile and a block of keys, softmax with a running maximum and denominator, O
// = alpha·O + P·V; at the end O / l (Dao et al. 2022, "FlashAttention", §3.1). Nothing of size Tq ×
// Tk exists.
//
// The rules for −inf, empty rows and NaN: a removed score is −inf, and exp gives exactly 0 for it;
// while a row has seen no key, m = −inf and l = 0, and exponents are taken from 0, so that −inf −
// (−inf) never arises; the maximum may hide a NaN score, but its exp is NaN, and l carries it on.
#ifndef FOVEA_EMBEDDED_ATTEND_H_
#define FOVEA_EMBEDDED_ATTEND_H_

#include "fovea/embedded/check.h"
#include "fovea/embedded/kernels.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

constexpr int64_t kBlockKeys = 64;  // S of a tile stays in L1
// query rows that reuse a block of K and V, scratch permitting
constexpr int kItemRows = 128;
constexpr int64_t kStageColumns = 64;  // of rows on their way from or to another layout
// Rows of K or V that are multiples of this many bytes apart compete for one set of the L1 cache:
// copied.
constexpr int64_t kAliasing = 4096;
constexpr size_t kAlignment = 64;
constexpr int kMostTiles = kItemRows > 2 * kLanes ? kItemRows / (2 * kLanes) : 1;

// ---- scratch

// Where the arrays of an item lie in scratch: offsets in bytes. m, l, exponents, q and o hold all
// tiles one behind the other.
struct ScratchLayout {
  size_t q = 0, o = 0, m = 0, l = 0, exponents = 0, alpha = 0, values = 0, s = 0, stage = 0, k = 0,
         v = 0, bytes = 0;
};

// Copied rows of K and V: whole vectors, and never a multiple of 1 KiB apart (kAliasing).
constexpr int64_t CopiedStride(int64_t d) {
  return RoundUp(d, 16) % 256 == 0 ? RoundUp(d, 16) + 16 : RoundUp(d, 16);
}

// Tiles of an item, where a KV head has `rows` rows.
template <class Lanes>
constexpr int64_t TilesOf(const Lanes& lanes, int64_t rows) {
  return Lanes::kKeyStep > 1
             ? 1
             : Between((Least(rows, kItemRows) + lanes.rows() - 1) / lanes.rows(), 1, kMostTiles);
}

template <class Lanes>
constexpr ScratchLayout LayOut(const Lanes& lanes, int64_t dk, int64_t dv, int64_t tiles) {
  ScratchLayout w;
  const int64_t tile_rows = lanes.rows();
  size_t used = 0;
  const auto take = [&](int64_t floats) {
    const size_t at = used;
    used +=
        (static_cast<size_t>(floats) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  w.q = take(tiles * lanes.Floats(dk));
  w.o = take(tiles * lanes.Floats(dv));
  w.m = take(tiles * tile_rows);
  w.l = take(tiles * tile_rows);
  w.exponents = take(tiles * 2 * tile_rows);
  w.alpha = take(tile_rows);
  w.values = take(2 * tile_rows);
  w.s = take(lanes.Floats(kBlockKeys));
  w.stage = take(tile_rows * kStageColumns);
  // One tile is through with K before it takes V.
  w.k = take(kBlockKeys * CopiedStride(Lanes::kKeyStep > 1 ? Most(dk, dv) : dk));
  w.v = Lanes::kKeyStep > 1 ? w.k : take(kBlockKeys * CopiedStride(dv));
  w.bytes = used;
  return w;
}

// ---- what is computed

struct KeyRange {
  int64_t first, end;
};

// One KV head of one sequence.
struct Head {
  const Problem* problem;
  Sequence sequence;
  int64_t b, kv_head, group;
  float scale;
};

// Keys [first, first + n) in consecutive rows of K and V, the first of them `row`.
struct Block {
  int64_t first, n, row;
};

template <class Lanes>
struct Tile {
  Lanes lanes;
  int64_t first_row;  // stacked row r is query r / group of head r % group
  int count;
  float *q, *o, *m, *l;
  float* exponent[2];  // per row: scores must be multiplied by both
  bool has_exponents;
  KeyRange any;  // every key that some row sees lies in here
  KeyRange all;  // every row sees these
};

// f(r, h, i) for the tile's rows: query i of head h.
template <class Lanes, class F>
void ForEachRow(const Head& head, const Tile<Lanes>& tile, const F& f) {
  int64_t i = tile.first_row / head.group, g = tile.first_row % head.group;
  for (int r = 0; r < tile.count; ++r) {
    f(r, head.kv_head * head.group + g, i);
    if (++g == head.group) g = 0, ++i;
  }
}

template <class View>
auto* Address(const View& view, int64_t b, int64_t h, int64_t row) {
  using Char = decltype(ByteOf(view.data));
  return static_cast<Char>(view.data) + b * view.stride[0] + h * view.stride[1] +
         row * view.stride[2];
}

inline int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  return !__builtin_add_overflow(a, b, &sum) ? sum : a < 0 ? INT64_MIN : INT64_MAX;
}

// The keys that query i may see by position.
inline KeyRange VisibleKeys(const Head& head, int64_t i) {
  const Problem& p = *head.problem;
  const int64_t position = i + head.sequence.offset;
  int64_t end = head.sequence.kv_length;
  if (p.causal != Causal::kNone) end = Least(end, position + 1);
  if (p.window_right >= 0)
    end = Least(end, SaturatingAdd(SaturatingAdd(position, p.window_right), 1));
  end = Most(end, 0);
  return {p.window_left >= 0 ? Between(SaturatingAdd(position, -p.window_left), 0, end) : 0, end};
}

// Packed Q, and per-row state, of what has seen nothing.
// 2^exponent, normal
inline float Power(int exponent) {
  return BitCast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// A row whose scale·q overflows, or is so small that it loses bits, though its scores need not:
// scale·q·2^−x is packed, and scores are multiplied by 2^x later.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void PackExtremeRow(const Head& head, const Tile<Lanes>& tile,
                                          const char* row, double max, int r, float* exponent0,
                                          float* exponent1) {
  const Problem& p = *head.problem;
  const int e = static_cast<int>(BitCast<uint64_t>(max) >> 52 & 0x7FF) - 1023;
  const int exponent = e > 126 ? e - 126 : e < -60 ? e + 60 : 0;
  const double factor = BitCast<double>(static_cast<uint64_t>(1023 - exponent) << 52) *
                        static_cast<double>(head.scale);
  for (int64_t c = 0; c < p.dk; ++c) {
    float x;
    LoadRow(p.q.type, row + c * p.q.stride[3], p.q.stride[3], 1, &x);
    tile.q[tile.lanes.Index(r, c, p.dk)] = static_cast<float>(static_cast<double>(x) * factor);
  }
  *exponent0 = Power(exponent / 2);
  *exponent1 = Power(exponent - exponent / 2);
}

// tile.q = scale·Q in the lanes' layout. Padding rows repeat row 0.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void PackQueries(const Head& head, float* stage, Tile<Lanes>& tile) {
  const Problem& p = *head.problem;
  const char* address[Lanes::kMostRows];
  const float* rows[Lanes::kMostRows];
  bool plain = p.q.type == Type::kF32 && p.q.stride[3] == 4;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    address[r] = Address(p.q, head.b, h, i);
    plain = plain && reinterpret_cast<uintptr_t>(address[r]) % 4 == 0;
  });
  float max[Lanes::kMostRows];
  for (int r = 0; r < tile.lanes.rows(); ++r) max[r] = 0;
  for (int64_t c = 0; c < p.dk; c += kStageColumns) {
    const int64_t n = Least(p.dk - c, kStageColumns);
    for (int r = 0; r < tile.count; ++r) {
      if (plain) {
        rows[r] = reinterpret_cast<const float*>(address[r]) + c;
      } else {
        rows[r] = stage + r * kStageColumns;
        LoadRow(p.q.type, address[r] + c * p.q.stride[3], p.q.stride[3], n,
                stage + r * kStageColumns);
      }
    }
    if constexpr (Lanes::kKeyStep == 1) {
      for (int r = tile.count; r < tile.lanes.rows(); ++r) rows[r] = rows[0];
      const V4 scale(head.scale);
      ForEachColumn(rows, tile.lanes.rows(), n, [&](int64_t x, int r, V4 q) {
        const V4 scaled = q * scale;
        xsimd::max(Load4(max + r), xsimd::abs(scaled)).store_unaligned(max + r);
        scaled.store_unaligned(tile.q + tile.lanes.Index(r, c + x, p.dk));
      });
    } else {
      for (int r = 0; r < tile.count; ++r) {
        float* to = tile.q + tile.lanes.Index(r, c, p.dk);
        for (int64_t x = 0; x < n; ++x) {
          to[x] = rows[r][x] * head.scale;
          if (!(__builtin_fabsf(to[x]) <= max[r])) max[r] = __builtin_fabsf(to[x]);
        }
        for (int64_t x = n; x < RoundUp(n, kLanes); ++x) to[x] = 0;
      }
    }
  }
  tile.has_exponents = false;
  for (int r = 0; r < tile.lanes.rows(); ++r) tile.exponent[0][r] = tile.exponent[1][r] = 1.0f;
  if (head.scale == 0) return;
  for (int r = 0; r < tile.count; ++r) {
    if (max[r] <= 0x1.fffffep127f && max[r] >= 0x1p-60f) continue;
    double largest = 0;
    for (int64_t c = 0; c < p.dk; ++c) {
      float x;
      LoadRow(p.q.type, address[r] + c * p.q.stride[3], p.q.stride[3], 1, &x);
      const double scaled =
          __builtin_fabs(static_cast<double>(x) * static_cast<double>(head.scale));
      if (!(scaled <= largest)) largest = scaled;
    }
    if (largest == 0 || !IsFinite(largest)) continue;
    tile.has_exponents = true;
    PackExtremeRow(head, tile, address[r], largest, r, tile.exponent[0] + r, tile.exponent[1] + r);
  }
}

// ---- scores

// s = f(s, row, key) for every vector of scores of the tile and keys [first, end).
template <class Lanes, class F>
void ForEachScore(const Tile<Lanes>& tile, int64_t first, int64_t end, float* s, const F& f) {
  for (int row = 0; row < tile.count; row += Lanes::kRowStep) {
    for (int64_t key = first; key < end; key += Lanes::kKeyStep) {
      float* p = s + tile.lanes.Index(row, key, kBlockKeys);
      Store(f(Load(p), row, key), p);
    }
  }
}

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
    const V m = Lanes::FoldMax(xsimd::max(xsimd::max(max[0], max[1]), xsimd::max(max[2], max[3])));
    const V base = xsimd::select(m == V(-kInfinity), V(0.0f), m);
    V sum[kChains] = {V(0.0f), V(0.0f), V(0.0f), V(0.0f)};
    const auto weigh = [&](int64_t at, V& total) {
      const V p = ExpNonPositive(Load(from + at * stride) - base);
      Store(p, from + at * stride);
      total += p;
    };
    for (x = 0; x + kChains <= n; x += kChains) {
      FOVEA_EMBEDDED_UNROLL
      for (int y = 0; y < kChains; ++y) weigh(x + y, sum[y]);
    }
    for (; x < n; ++x) weigh(x, sum[0]);
    const V total = Lanes::FoldSum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    const V a = ExpNonPositive(m_old - base);
    Lanes::StorePerRow(m, tile.m, row);
    Lanes::StorePerRow(a, alpha, row);
    Lanes::StorePerRow(xsimd::fma(Lanes::PerRow(tile.l, row), a, total), tile.l, row);
  }
}

// ---- K and V

// n rows of K or V from `row` on: in place where the micro-kernels can read them, else a copy in
// f32.
template <class Lanes>
Matrix Take(const Head& head, const Tensor& tensor, int64_t row, int64_t n, int64_t d,
            float* copy) {
  const char* first = Address(tensor, head.b, head.kv_head, row);
  const int64_t size = SizeOf(tensor.type), row_stride = tensor.stride[2];
  const bool plain = tensor.stride[3] == size && row_stride % size == 0 &&
                     reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(size) == 0;
  const bool aliased = Lanes::kKeyStep == 1 && row_stride != 0 && row_stride % kAliasing == 0;
  if (plain && !aliased && (Lanes::kReadsF16 || tensor.type == Type::kF32))
    return {first, row_stride / size, tensor.type};
  const int64_t stride = CopiedStride(d);
  for (int64_t j = 0; j < n; ++j)
    LoadRow(tensor.type, first + j * row_stride, tensor.stride[3], d, copy + j * stride);
  return {copy, stride};
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

// O = alpha·O + P·V of a block where V holds something that is not finite and rows do not see all
// keys: 0 · NaN of a removed pair must not reach a sum.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void AccumulateVisible(const Head& head, const Tile<Lanes>& tile,
                                             const Block& block, const Matrix& v, int64_t first,
                                             int64_t end, const float* p, const float* alpha) {
  const Problem& problem = *head.problem;
  const int64_t dv = problem.dv;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    const KeyRange keys = VisibleKeys(head, i);
    for (int64_t c = 0; c < dv; ++c) tile.o[tile.lanes.Index(r, c, dv)] *= alpha[r];
    for (int64_t j = Most(first, keys.first - block.first); j < Least(end, keys.end - block.first);
         ++j) {
      if (problem.bias.data != nullptr) {
        float bias;
        LoadRow(problem.bias.type,
                Address(problem.bias, head.b, h, i) + (block.first + j) * problem.bias.stride[3], 0,
                1, &bias);
        if (bias == -kInfinity) continue;
      }
      const float weight = p[tile.lanes.Index(r, j, kBlockKeys)];
      WithType(v.type, [&](auto zero) {
        const auto* from = v.Row<decltype(zero)>(j);
        for (int64_t c = 0; c < dv; ++c)
          tile.o[tile.lanes.Index(r, c, dv)] += weight * Widened(from[c]);
      });
    }
  });
}

// ---- the walk

// out = O / l and lse = m + ln l.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void Finish(const Head& head, const Tile<Lanes>& tile, float* values,
                                  float* stage) {
  const Problem& p = *head.problem;
  char* rows[Lanes::kMostRows];
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    rows[r] = Address(p.out, head.b, h, i);
    const float m = tile.m[r], l = tile.l[r];
    values[r] = l == 0 ? 0 : 1 / l;
    if (p.lse.data == nullptr) return;
    const float lse = l == 0 ? -kInfinity : IsNan(l) ? l : m + Log(l);
    __builtin_memcpy(Address(p.lse, head.b, h, i), &lse, sizeof(lse));
  });
  for (int64_t c = 0; c < p.dv; c += kStageColumns) {
    const int64_t n = Least(p.dv - c, kStageColumns);
    for (int r = 0; r < tile.count; r += 4) {
      const int last = static_cast<int>(Least(tile.count - r, 4));
      int64_t x = 0;
      if constexpr (Lanes::kKeyStep == 1) {
        const V4 factor = Load4(values + r);
        for (; x + 4 <= n; x += 4) {
          V4 o[4];
          for (int y = 0; y < 4; ++y)
            o[y] = Load4(tile.o + tile.lanes.Index(r, c + x + y, p.dv)) * factor;
          Transpose(o);
          for (int y = 0; y < 4; ++y) o[y].store_unaligned(stage + y * kStageColumns + x);
        }
      }
      for (int y = 0; y < last; ++y) {
        float* to = stage + y * kStageColumns;
        for (int64_t z = x; z < n; ++z)
          to[z] = tile.o[tile.lanes.Index(r + y, c + z, p.dv)] * values[r + y];
        StoreRow(p.out.type, to, n, rows[r + y] + c * p.out.stride[3], p.out.stride[3]);
      }
    }
  }
}

// The consecutive rows that hold keys from `first` on: a ring is two ascending runs at most.
inline Block NextBlock(const Head& head, int64_t first, int64_t end) {
  Block block = {first, Least(kBlockKeys - first % kBlockKeys, end - first),
                 first + head.sequence.first_row};
  const int64_t wrap = head.sequence.rows;
  if (block.row >= wrap) {
    block.row -= wrap;
  } else {
    block.n = Least(block.n, wrap - block.row);
  }
  return block;
}

// The rows of a block of K or V; none where their elements do not lie side by side.
inline Ahead::Run RowsAhead(const Head& head, const Tensor& x, const Block& block,
                            int64_t channels) {
  const int64_t element = x.type == Type::kF16 ? 2 : 4;
  if (x.stride[3] != element) return {};
  return {Address(x, head.b, head.kv_head, block.row), block.n, x.stride[2], channels * element};
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

template <class Lanes>
void AttendItem(const Lanes& lanes, const Head& head, int64_t first_row, int64_t rows,
                const ScratchLayout& layout, char* scratch) {
  const Problem& p = *head.problem;
  const auto floats = [&](size_t at) { return reinterpret_cast<float*>(scratch + at); };
  float *s = floats(layout.s), *alpha = floats(layout.alpha), *values = floats(layout.values),
        *stage = floats(layout.stage);

  Tile<Lanes> tiles[kMostTiles];
  int count = 0;
  KeyRange keys = {INT64_MAX, 0};
  for (int64_t row = 0; row < rows; row += lanes.rows(), ++count) {
    Tile<Lanes>& tile = tiles[count];
    tile.lanes = lanes;
    tile.first_row = first_row + row;
    tile.count = static_cast<int>(Least(rows - row, lanes.rows()));
    tile.q = floats(layout.q) + count * lanes.Floats(p.dk);
    tile.o = floats(layout.o) + count * lanes.Floats(p.dv);
    tile.m = floats(layout.m) + count * lanes.rows();
    tile.l = floats(layout.l) + count * lanes.rows();
    for (int e = 0; e < 2; ++e)
      tile.exponent[e] = floats(layout.exponents) + (2 * count + e) * lanes.rows();
    tile.any = {INT64_MAX, 0};
    tile.all = {0, INT64_MAX};
    ForEachRow(head, tile, [&](int, int64_t, int64_t i) {
      const KeyRange visible = VisibleKeys(head, i);
      tile.all = {Most(tile.all.first, visible.first), Least(tile.all.end, visible.end)};
      if (visible.first < visible.end)
        tile.any = {Least(tile.any.first, visible.first), Most(tile.any.end, visible.end)};
    });
    for (int r = 0; r < lanes.rows(); ++r) tile.m[r] = -kInfinity, tile.l[r] = 0;
    for (int64_t x = 0; x < lanes.Floats(p.dv); x += kLanes) Store(V(0.0f), tile.o + x);
    if (tile.any.first < tile.any.end) PackQueries(head, stage, tile);
    keys = {Least(keys.first, tile.any.first), Most(keys.end, tile.any.end)};
  }

  for (int64_t at = keys.first / kBlockKeys * kBlockKeys; at < keys.end;) {
    const Block block = NextBlock(head, at, keys.end);
    at += block.n;
    const Matrix k = Take<Lanes>(head, p.k, block.row, block.n, p.dk, floats(layout.k));
    Matrix v = {};
    Ahead ahead;
    if (at < keys.end) {
      const Block next = NextBlock(head, at, keys.end);
      ahead.run[0] = RowsAhead(head, p.k, next, p.dk);
      ahead.run[1] = RowsAhead(head, p.v, next, p.dv);
      ahead.rows_per_step = 2 * next.n / (count * lanes.Calls(block.n, p.dv) + 1) + 1;
    }
    int is_finite = -1;  // not known yet
    for (int t = 0; t < count; ++t) {
      const Tile<Lanes>& tile = tiles[t];
      const int64_t end = Least(tile.any.end - block.first, block.n);
      const int64_t first =
          Most(tile.any.first - block.first, 0) / Lanes::kKeyStep * Lanes::kKeyStep;
      if (first >= end) continue;
      const bool partial = block.first + first < tile.all.first || block.first + end > tile.all.end;
      lanes.Scores(tile.q, tile.count, k, first, end, p.dk, kBlockKeys, s, ahead);
      if (tile.has_exponents) ApplyExponents(tile, first, end, s);
      if (p.bias.data != nullptr) AddBias(head, tile, block, first, end, stage, s);
      if (partial) MaskByPosition(head, tile, block, first, end, values, s);
      Softmax(tile, first, end, alpha, s);
      if (v.data == nullptr) v = Take<Lanes>(head, p.v, block.row, block.n, p.dv, floats(layout.v));
      const bool removes = partial || p.bias.data != nullptr;
      if (removes && is_finite < 0) is_finite = !HasNonFinite(v, 0, block.n, p.dv);
      // of its own keys: no other tile changes its bits
      if (removes && is_finite == 0 && HasNonFinite(v, first, end, p.dv)) {
        AccumulateVisible(head, tile, block, v, first, end, s, alpha);
      } else {
        lanes.Accumulate(s, tile.count, v, first, end, p.dv, kBlockKeys, alpha, tile.o, ahead);
      }
    }
  }
  for (int t = 0; t < count; ++t) Finish(head, tiles[t], values, stage);
}

// All query rows of a KV head. Only those that exist share tiles: what a sequence gives does not
// depend on how many there might have been.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void AttendHead(const Lanes& lanes, const Head& head, char* scratch,
                                      size_t scratch_bytes) {
  const Problem& p = *head.problem;
  const int64_t rows = head.sequence.q_length * head.group;
  int64_t tiles = TilesOf(lanes, rows);
  while (tiles > 1 && LayOut(lanes, p.dk, p.dv, tiles).bytes > scratch_bytes) --tiles;
  const ScratchLayout layout = LayOut(lanes, p.dk, p.dv, tiles);
  const int64_t item_rows = tiles * lanes.rows();
  for (int64_t row = 0; row < rows; row += item_rows) {
    AttendItem(lanes, head, row, Least(rows - row, item_rows), layout, scratch);
  }
  FinishAbsent(head);
}

// Of a validated problem. Few query rows are computed with lanes along the head dimension; by
// sequence, so that batches change no bits.
inline void Run(const Problem& p, void* memory, size_t bytes) {
  const size_t skipped =
      (kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment) % kAlignment;
  char* const scratch = static_cast<char*>(memory) + skipped;
  bytes -= skipped;
  Head head;
  head.problem = &p;
  head.group = p.Hq / p.Hkv;
  head.scale = p.has_scale ? p.scale : 1 / xsimd::sqrt(V(static_cast<float>(p.dk))).get(0);
  for (head.b = 0; head.b < p.B; ++head.b) {
    head.sequence = SequenceOf(p, head.b);
    const int64_t rows = head.sequence.q_length * head.group;
    for (head.kv_head = 0; head.kv_head < p.Hkv; ++head.kv_head) {
      if (rows <= kFewRows) {
        AttendHead(LanesAreKeys(), head, scratch, bytes);
      } else {
        AttendHead(LanesAreQueries{rows <= kLanes ? 1 : 2}, head, scratch, bytes);
      }
    }
  }
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_ATTEND_H_
