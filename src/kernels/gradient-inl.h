// Gradients of an item: the algorithm of gradient_kernel.h on the tile engines' micro-kernels.
// Lanes hold queries in S, P, dP, dS and dQ, and channels in dV and dK, whose sums over queries are
// the loop of scores with P or dS in the place of K.
#if defined(FOVEA_SRC_KERNELS_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_GRADIENT_INL_H_
#undef FOVEA_SRC_KERNELS_GRADIENT_INL_H_
#else
#define FOVEA_SRC_KERNELS_GRADIENT_INL_H_
#endif

#include <cmath>
#include <limits>

#include "kernels/attention-inl.h"
#include "kernels/gradient_rows-inl.h"
#include "kernels/tile_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// A tile's arrays beside those of the forward pass.
struct GradientTile {
  float* dout;    // [dv][lanes], of scores' layout; padding rows are 0
  float* q_rows;  // scale·Q and dout by rows (ColumnBlocks), what is not finite as 0
  float* dout_rows;
  float* dq;      // [dk][lanes]
  float* lse;     // [lanes]; +inf for padding rows
  float* delta;   // [lanes]
  bool poisoned;  // dout has non-finite elements
};

struct GradientScratch {
  char* forward;
  GradientTile tile[kMaxTiles];
  float* dp;          // as S: dP, then dS
  float* capped;      // as S: scores after softcap
  float *run, *lost;  // as those of Scratch, of values longer than kRunChannels
  float* ones;        // [lanes]
  float* k;           // K by rows, what is not finite as 0
  float* dk;          // sums of a block
  float* dv;
  float* row;          // of max(dk, dv) channels or kGradientKeys keys, and as much again
  uint64_t* poisoned;  // of K: not used further
  size_t bytes;
};

template <class Engine>
GradientScratch CarveGradients(const Geometry& g, char* base) {
  using Lanes = typename Engine::Lanes;
  constexpr int64_t kRows = Lanes::kRows;
  GradientScratch w;
  Carver carver(base);
  w.forward = carver.Take<char>(static_cast<int64_t>(CarveScratch<Engine>(g, nullptr).bytes));
  for (int t = 0; t < g.tiles; ++t) {
    GradientTile& tile = w.tile[t];
    tile.dout = carver.Take<float>(kRows * g.dv);
    tile.q_rows = carver.Take<float>(kRows * ColumnFloats(g.dk));
    tile.dout_rows = carver.Take<float>(kRows * ColumnFloats(g.dv));
    tile.dq = carver.Take<float>(kRows * g.dk);
    tile.lse = carver.Take<float>(kRows);
    tile.delta = carver.Take<float>(kRows);
  }
  w.dp = carver.Take<float>(kRows * g.block_keys);
  w.capped = carver.Take<float>(kRows * g.block_keys);
  for (float** s : {&w.run, &w.lost})
    *s = carver.Take<float>(g.dv <= kRunChannels ? 0 : kRows * g.block_keys);
  w.ones = carver.Take<float>(kRows);
  w.k = carver.Take<float>(g.block_keys * CopiedStride(g.dk));
  w.dk = carver.Take<float>(kGradientKeys * ColumnFloats(g.dk));
  w.dv = carver.Take<float>(kGradientKeys * ColumnFloats(g.dv));
  w.row = carver.Take<float>(2 * CopiedStride(std::max({g.dk, g.dv, kGradientKeys})));
  w.poisoned = carver.Take<uint64_t>((g.block_keys + 63) / 64);
  w.bytes = carver.used();
  return w;
}

// The row of out, dout or lse of query i of head h.
template <class View>
HWY_INLINE auto QueryRow(const Job& job, const View& view, int64_t h, int64_t i) {
  return RowOf(view, job.sequence.q_batch, h, job.sequence.q_first + i);
}

HWY_INLINE float ScalarAt(const char* p) { return ReadAs<float>(p); }

// dout of the tile's rows, in lanes and by rows; scale·Q by rows; lse and delta.
template <class Engine>
HWY_NOINLINE void TakeTile(const Job& job, const GradientCall& call, const GradientSums& sums,
                           const Tile& tile, GradientTile& to) {
  using Lanes = typename Engine::Lanes;
  constexpr int kRows = Lanes::kRows;
  const Geometry& g = job.g;
  const TensorView& dout = call.problem->dout;
  const MutableTensorView& lse = call.problem->forward.lse;
  const char* row_data[kMaxTileLanes];
  const float* rows[kMaxTileLanes];
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
    row_data[r] = i < job.sequence.q_length ? QueryRow(job, dout, h, i) : nullptr;
    to.lse[r] =
        row_data[r] == nullptr ? -MinusInfinityScalar() : ScalarAt(QueryRow(job, lse, h, i));
  });
  for (int r = tile.count; r < kRows; ++r) {
    row_data[r] = nullptr;
    to.lse[r] = -MinusInfinityScalar();
  }
  std::copy_n(sums.delta + tile.first_row, kRows, to.delta);
  float* const stage = job.w.stage;
  for (int64_t c = 0; c < g.dv; c += kStageColumns) {
    const int64_t n = std::min(g.dv - c, kStageColumns);
    for (int r = 0; r < kRows; ++r) {
      float* const staged = stage + r * kStageColumns;
      rows[r] = staged;
      if (row_data[r] != nullptr) {
        LoadRow({row_data[r], dout.dtype, dout.stride[3]}, c, n, staged);
      } else {
        std::fill_n(staged, n, 0.0f);
      }
    }
    Lanes::FromRows(rows, kRows, n, g.dv, to.dout + Lanes::Index(0, c, g.dv));
  }
  to.poisoned = HasNonFinite(BlockRows{to.dout, kRows}, g.dv, kRows);
  ByRows<kRows>(to.dout, g.dv, to.dout_rows);
  if (to.poisoned) ZeroNonFinite(to.dout_rows, kRows * ColumnFloats(g.dv));
  ByRows<kRows>(tile.q, g.dk, to.q_rows);
  if (tile.has_exponents) {
    ForEachColumnBlock(g.dk, [&](int64_t c, auto vectors) HWY_ATTR {
      constexpr int64_t kWidth = vectors() * kLanes;
      for (int r = 0; r < kRows; ++r) {
        for (int64_t x = 0; x < kWidth; ++x) {
          float& value = to.q_rows[kRows * c + r * kWidth + x];
          value = value * tile.exponent[0][r] * tile.exponent[1][r];
        }
      }
    });
  }
  if (HasNonFinite(BlockRows{tile.q, kRows}, g.dk, kRows))
    ZeroNonFinite(to.q_rows, kRows * ColumnFloats(g.dk));
  std::fill_n(to.dq, kRows * g.dk, 0.0f);
}

// S → P, and dP → dS; nothing of what is removed.
template <class Lanes>
HWY_NOINLINE void Differentiate(const Part& part, const GradientTile& gradient, float* dp) {
  const DF df;
  float* HWY_RESTRICT s = part.s;
  const Span span = part.span;
  for (int64_t row = 0; row < Lanes::kRows; row += Lanes::kRowStep) {
    const VF lse = Lanes::PerRow(gradient.lse, row), delta = Lanes::PerRow(gradient.delta, row);
    const VF base = ExponentBase(lse);
    const auto is_nothing = hn::Eq(lse, hn::Neg(MinusInfinity()));
    for (int64_t key = span.first; key < span.end; ++key) {
      const int64_t at = Lanes::Index(row, key, 0);
      const VF score = hn::Load(df, s + at);
      const auto removed = hn::Or(hn::Eq(score, MinusInfinity()), is_nothing);
      const VF p = hn::IfThenZeroElse(removed, ExpNonPositive(df, hn::Sub(score, base)));
      const VF ds = hn::Mul(p, hn::Sub(hn::Load(df, dp + at), delta));
      hn::Store(p, df, s + at);
      hn::Store(hn::IfThenZeroElse(removed, ds), df, dp + at);
    }
  }
}

// dS times the derivative of the softcap, whose values are `capped`.
template <class Lanes>
HWY_NOINLINE void ThroughSoftcap(const Part& part, float softcap, const float* capped, float* ds) {
  const DF df;
  const VF one = hn::Set(df, 1.0f), cap = hn::Set(df, softcap);
  const Span span = part.span;
  for (int64_t at = Lanes::Index(0, span.first, 0); at < Lanes::Index(0, span.end, 0);
       at += kLanes) {
    const VF t = hn::Div(hn::Load(df, capped + at), cap), x = hn::Load(df, ds + at);
    const VF dx = hn::Mul(x, hn::Mul(hn::Sub(one, t), hn::Add(one, t)));
    // A NaN that is removed stays removed.
    hn::Store(hn::IfThenZeroElse(hn::Eq(x, hn::Zero(df)), dx), df, ds + at);
  }
}

// sums[j][:] += Σ_r p[j][r] · rows[r][:] for the keys of the span, a block of columns at a time.
template <class Engine>
HWY_NOINLINE void AddByKeys(const Part& part, const float* p, const float* rows, int64_t d,
                            float* sums) {
  using Lanes = typename Engine::Lanes;
  constexpr int kRows = Lanes::kRows;
  constexpr int64_t kStride = kRows * static_cast<int64_t>(sizeof(float));
  const Span span = part.span;
  ForEachColumnBlock(d, [&](int64_t c, auto vectors) HWY_ATTR {
    constexpr int kVectors = vectors();
    constexpr int64_t kWidth = kVectors * kLanes;
    const char* from = reinterpret_cast<const char*>(p) + span.first * kStride;
    const float* const column = rows + kRows * c;
    float* to = sums + kGradientKeys * c + span.first * kWidth;
    int64_t n = span.end - span.first;
    for (; n >= kTileKeys; n -= kTileKeys, from += kTileKeys * kStride, to += kTileKeys * kWidth)
      ScoresOf<F32Product, kTileKeys, kVectors>(from, kStride, column, kRows, *part.tile, true, to);
    WithRemainder<kTileKeys>(n, [&](auto keys) HWY_ATTR {
      ScoresOf<F32Product, keys(), kVectors>(from, kStride, column, kRows, *part.tile, true, to);
    });
  });
}

// Adds p·dout for the elements of dout that are not finite, where a weight is not 0.
template <class Lanes>
HWY_NOINLINE void AddPoisonedOutputs(const Part& part, const GradientTile& gradient, int64_t dv,
                                     float* sums) {
  for (int64_t c = 0; c < dv; ++c) {
    for (int r = 0; r < part.tile->count; ++r) {
      const float x = gradient.dout[Lanes::Index(r, c, dv)];
      if (std::isfinite(x)) continue;
      for (int64_t j = part.span.first; j < part.span.end; ++j) {
        const float p = part.s[Lanes::Index(r, j, 0)];
        if (p != 0) sums[PlaceInColumns(kGradientKeys, dv, j, c)] += p * x;
      }
    }
  }
}

// What some rows and keys gave, to the sums of all; see GradientSums for `rest`.
HWY_INLINE void Join(const float* HWY_RESTRICT part, int64_t n, float* sums, int64_t rest) {
  const DF df;
  for (int64_t x = 0; x < n; x += kLanes) {
    const VF sum = hn::LoadU(df, sums + x), more = hn::LoadU(df, part + x);
    if (rest == 0) {
      hn::StoreU(hn::Add(sum, more), df, sums + x);
    } else {
      VF lost;
      const VF whole = hn::Add(more, hn::LoadU(df, sums + rest + x));
      hn::StoreU(TwoSum(sum, whole, lost), df, sums + x);
      // An infinite sum leaves no rest.
      hn::StoreU(hn::IfThenZeroElse(hn::IsNaN(lost), lost), df, sums + rest + x);
    }
  }
}

// A tile of rows and a block of keys.
struct GradientPart {
  const Job& job;
  const GradientCall& call;
  const GradientScratch& w;
  const GradientItem& item;
};

template <class Engine>
HWY_INLINE void AddPart(const GradientPart& at, const Part& part, const GradientTile& gradient,
                        const typename Engine::Keys& k, const BlockRows& v,
                        const BlockRows& finite_k) {
  using Lanes = typename Engine::Lanes;
  const Job& job = at.job;
  const GradientScratch& w = at.w;
  const Geometry& g = job.g;
  const float softcap = job.call.problem->score.softcap;
  Ahead ahead;
  Engine::Scores(part, k, ahead);
  Cap<Lanes>(job, part);
  if (softcap > 0) {
    std::copy_n(part.s + Lanes::Index(0, part.span.first, 0),
                Lanes::Index(0, part.span.end - part.span.first, 0),
                w.capped + Lanes::Index(0, part.span.first, 0));
  }
  AddAndRemove<Lanes>(job, part);
  if (part.span.partial) MaskByPosition<Lanes>(job, part);

  // dP: scores of dout and V
  Geometry of_values = g;
  of_values.dk = g.dv;
  Tile douts = *part.tile;
  douts.q = gradient.dout;
  douts.run = w.run;
  douts.lost = w.lost;
  Engine::Scores({&of_values, &douts, part.block, part.span, w.dp}, v, ahead);

  Differentiate<Lanes>(part, gradient, w.dp);
  AddByKeys<Engine>(part, part.s, gradient.dout_rows, g.dv, w.dv);
  if (gradient.poisoned) AddPoisonedOutputs<Lanes>(part, gradient, g.dv, w.dv);
  if (at.call.bias.sums != nullptr || at.call.problem->dbias.present())
    AddBiasGradient<Lanes>(job, at.call, part, w.dp, w.row);
  if (softcap > 0) ThroughSoftcap<Lanes>(part, softcap, w.capped, w.dp);
  AddByKeys<Engine>(part, w.dp, gradient.q_rows, g.dk, w.dk);

  // dQ: sums of dS and K
  Tile queries = *part.tile;
  queries.o = gradient.dq;
  queries.state.alpha = w.ones;
  Engine::Loops::Accumulate({&g, &queries, part.block, part.span, w.dp},
                            {static_cast<const char*>(finite_k.data), kWordBytes * finite_k.stride},
                            g.dk, ahead);
}

// Rows that fit into the tiles of the scratch, against all keys of the item.
template <class Engine>
void AddRowsOf(const GradientPart& at) {
  using Lanes = typename Engine::Lanes;
  constexpr int kRows = Lanes::kRows;
  const Job& job = at.job;
  const Geometry& g = job.g;
  const GradientSums& sums = at.item.sums;
  GradientScratch w = at.w;
  Tiles tiles;
  const int count = BeginTiles<Engine>(job, false, tiles);
  bool sees = false;
  for (int t = 0; t < count; ++t) {
    if (tiles[t].any.first >= tiles[t].any.end) continue;
    sees = true;
    TakeTile<Engine>(job, at.call, sums, tiles[t], w.tile[t]);
  }
  if (!sees) return;
  const int64_t dk_floats = kGradientKeys * ColumnFloats(g.dk),
                dv_floats = kGradientKeys * ColumnFloats(g.dv), dq_floats = kRows * g.dk;
  const auto join_queries = [&] {
    for (int t = 0; t < count; ++t) {
      if (tiles[t].any.first >= tiles[t].any.end) continue;
      float* const to = sums.dq + tiles[t].first_row / kRows * dq_floats;
      Join(w.tile[t].dq, dq_floats, to, sums.dq_rest);
      std::fill_n(w.tile[t].dq, dq_floats, 0.0f);
    }
  };
  BlockWalk<Engine> walk(job, tiles, count);
  int64_t group = job.item.keys.first / (kGradientBlocks * kGradientKeys);
  while (walk.Next()) {
    const Block& block = walk.block();
    if (const int64_t next = block.first / (kGradientBlocks * kGradientKeys); next != group) {
      join_queries();
      group = next;
    }
    const auto k = Engine::TakeKeys(job, block);
    const BlockRows v = TakeRows<Engine>(job, job.call.problem->v, block, job.w.v);
    BlockRows finite_k = k;
    if (HasNonFinite(k, block.n, g.dk)) {
      IsolateNonFinite(k, block.n, g.dk, w.k, CopiedStride(g.dk), w.poisoned);
      finite_k = {w.k, CopiedStride(g.dk)};
    }
    float* const dk = sums.dk + block.first / kGradientKeys * dk_floats;
    float* const dv = sums.dv + block.first / kGradientKeys * dv_floats;
    if (sums.dk_rest == 0) {
      w.dk = dk, w.dv = dv;
    } else {
      std::fill_n(w.dk, dk_floats, 0.0f);
      std::fill_n(w.dv, dv_floats, 0.0f);
    }
    for (int n = 0; n < walk.parts(); ++n) {
      const Part& part = walk.part(n);
      AddPart<Engine>({job, at.call, w, at.item}, part, w.tile[part.tile - tiles], k, v, finite_k);
    }
    if (sums.dk_rest == 0) continue;
    Join(w.dk, dk_floats, dk, sums.dk_rest);
    Join(w.dv, dv_floats, dv, sums.dv_rest);
  }
  join_queries();
}

template <class Engine>
void AddGradients(const GradientCall& call, const GradientItem& item, char* scratch) {
  const Geometry& g = call.forward.geometry;
  const GradientScratch w = CarveGradients<Engine>(g, scratch);
  std::fill_n(w.ones, Engine::Lanes::kRows, 1.0f);
  const int64_t step = int64_t{g.tiles} * g.tile_rows;
  for (int64_t row = 0; row < item.forward.rows; row += step) {
    Item rows = item.forward;
    rows.first_row += row;
    rows.rows = std::min(step, item.forward.rows - row);
    AddRowsOf<Engine>({BeginJob<Engine>(call.forward, rows, w.forward, 1.0f), call, w, item});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
