// Getting Q, K and V of a tile or block ready for an engine: in place where the micro-kernels can
// read the caller's memory, else copied to scratch (and widened or dequantised: narrower types
// become f32 once per block).
#if defined(FOVEA_SRC_KERNELS_TAKE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TAKE_INL_H_
#undef FOVEA_SRC_KERNELS_TAKE_INL_H_
#else
#define FOVEA_SRC_KERNELS_TAKE_INL_H_
#endif

#include <cmath>

#include "kernels/nonfinite-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Rows of K or V of a block. Rows that are a multiple of Engine::kAliasing bytes apart would
// compete for one set of the L1 cache: copied.
template <class Engine>
HWY_INLINE BlockRows TakeRows(const Job& job, const TensorView& view, const Block& block,
                              float* copy) {
  const KeyRun run = RunFrom(job.call, job.item, view, block.first + block.begin);
  const bool aliased =
      Engine::kAliasing != 0 && run.row_stride != 0 && run.row_stride % Engine::kAliasing == 0;
  if ((Engine::kReadsNarrow ? IsVectorType(view.dtype) : view.dtype == DType::kF32) &&
      block.begin == 0 && run.n >= block.n &&
      IsPlain(view.dtype, view.stride[3], run.row_stride, run.row) && !aliased) {
    return {run.row, run.row_stride / SizeOf(view.dtype), view.dtype};
  }
  const int64_t stride = CopiedStride(view.shape[3]);
  std::fill_n(copy, block.begin * stride, 0.0f);
  ForEachRun(job.call, job.item, view, block, [&](const KeyRun& some, int64_t j) {
    LoadKeys(job.call, job.item, view, some, some.n, copy + j * stride, stride);
  });
  return {copy, stride};
}

// What scores of query head h are multiplied by. A double holds the product of any two floats.
HWY_INLINE double ScaleOf(const KernelCall& call, int64_t h) {
  const TensorView& factors = call.problem->score.head_scales;
  const double scale = static_cast<double>(call.scale);
  if (!factors.present()) return scale;
  return scale * static_cast<double>(PerHeadAt(factors, h));
}

// Whether x, rounded to a float, is a normal one.
HWY_INLINE bool IsNormalFloat(double x) {
  return std::abs(x) >= 0x1p-126 && std::abs(x) <= static_cast<double>(hwy::HighestValue<float>());
}

// x as a float; the largest or the smallest one of its sign where a finite x is none, so that 0·x
// is 0 and inf·x is infinite. Infinities and NaN stay what they are.
HWY_INLINE float InFloats(double x) {
  if (IsNormalFloat(x) || !(std::abs(x) > 0) || std::isinf(x)) return static_cast<float>(x);
  const double least = 0x1p-126, most = static_cast<double>(hwy::HighestValue<float>());
  return static_cast<float>(std::copysign(std::abs(x) < 1 ? least : most, x));
}

// A row whose scale·q overflows, or is so small that it loses bits, though its scores need not:
// scale·q·2^−x is packed, and scores are multiplied by 2^x later. |x| is the least that helps, so
// that channels far smaller than the largest keep what they can. put(c, value) packs a channel.
template <class F>
inline HWY_NOINLINE void PackExtremeRow(const Job& job, Tile& tile, int r, const char* q,
                                        double scale, const F& put) {
  const TensorView& view = job.call.problem->q;
  const int64_t dk = job.g.dk;
  float* const stage = job.w.stage;
  double max = 0;
  for (int64_t c = 0; c < dk; c += kStageColumns) {
    const int64_t n = std::min(dk - c, kStageColumns);
    LoadRow({q, view.dtype, view.stride[3]}, c, n, stage);
    for (int64_t x = 0; x < n; ++x) max = std::max(max, std::abs(static_cast<double>(stage[x])));
  }
  max *= std::abs(scale);
  // (a NaN that max hides leaves a NaN row whatever the exponent)
  if (max == 0 || !std::isfinite(max)) return;
  const int e = std::ilogb(max);
  const int exponent = e > 126 ? e - 126 : e < -60 ? e + 60 : 0;
  for (int64_t c = 0; c < dk; c += kStageColumns) {
    const int64_t n = std::min(dk - c, kStageColumns);
    LoadRow({q, view.dtype, view.stride[3]}, c, n, stage);
    for (int64_t x = 0; x < n; ++x) {
      put(c + x, static_cast<float>(std::ldexp(static_cast<double>(stage[x]) * scale, -exponent)));
    }
  }
  // Beyond ±2^±127 each score overflows, or counts as 0, whatever the rest of the factor.
  const int half = std::clamp(exponent / 2, -127, 127);
  const int rest = std::clamp(exponent - exponent / 2, -127, 127);
  tile.exponent[0][r] = static_cast<float>(std::ldexp(1.0, half));
  tile.exponent[1][r] = static_cast<float>(std::ldexp(1.0, rest));
  tile.has_exponents = tile.has_exponents || exponent != 0;
}

// The same for every row that needs it, by the largest |x| of its scaled channels. scale_of(h) is
// what head h multiplies Q by; put(r, c, x) packs a channel.
template <class Scale, class F>
HWY_INLINE void PackExtremeRows(const Job& job, Tile& tile, const float* max_abs,
                                const char* const* rows, const Scale& scale_of, const F& put) {
  std::fill_n(tile.exponent[0], 2 * job.g.tile_lanes, 1.0f);
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t) {
    const bool usual = max_abs[r] <= hwy::HighestValue<float>() && max_abs[r] >= 0x1p-60f;
    if (usual && !job.g.scales_heads) return;
    const double scale = scale_of(h);
    if (scale == 0 || (usual && IsNormalFloat(scale))) return;
    PackExtremeRow(job, tile, r, rows[r], scale, [&](int64_t c, float x) { put(r, c, x); });
  });
}

// Where the rows of Q lie that the tile has. Padding rows see nothing, and in a packed batch they
// may not exist: the last query stands in.
HWY_INLINE void FindQueries(const Job& job, const Tile& tile, const char** rows) {
  const TensorView& view = job.call.problem->q;
  const SequenceLengths& sequence = job.sequence;
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
    rows[r] =
        RowOf(view, sequence.q_batch, h, sequence.q_first + std::min(i, sequence.q_length - 1));
  });
}

// tile.q = scale·Q of the tile's rows in the lanes' layout, and the rows' exponents.
template <class Lanes>
HWY_INLINE void PackQueries(const Job& job, Tile& tile) {
  const DF df;
  const KernelCall& call = job.call;
  const Geometry& g = job.g;
  const Scratch& w = job.w;
  const TensorView& view = call.problem->q;
  const char* row_data[kMaxTileLanes];
  const float* rows[kMaxTileLanes];
  FindQueries(job, tile, row_data);
  bool plain = true;
  for (int r = 0; r < tile.count; ++r) {
    plain = plain && IsPlainF32(view.dtype, view.stride[3], 0, row_data[r]);
    rows[r] = reinterpret_cast<const float*>(row_data[r]);
  }
  // padding lanes repeat row 0
  for (int64_t r = tile.count; r < g.tile_lanes; ++r) rows[r] = rows[0];
  if (plain) {
    Lanes::FromRows(rows, tile.count, g.dk, g.dk, tile.q);
  } else {
    for (int64_t c = 0; c < g.dk; c += kStageColumns) {
      const int64_t n = std::min(g.dk - c, kStageColumns);
      for (int r = 0; r < g.tile_lanes; ++r) {
        rows[r] = w.stage + (r < tile.count ? r : 0) * kStageColumns;
        if (r < tile.count)
          LoadRow({row_data[r], view.dtype, view.stride[3]}, c, n, w.stage + r * kStageColumns);
      }
      Lanes::FromRows(rows, tile.count, n, g.dk, tile.q + Lanes::Index(0, c, g.dk));
    }
  }

  const bool per_head = g.scales_heads;
  float* max_abs = w.row_values;
  float* scales = max_abs + g.tile_lanes;
  if (per_head) PerHead(job, tile, scales, [&](int64_t h) { return InFloats(ScaleOf(call, h)); });
  for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
    const VF scale = per_head ? Lanes::PerRow(scales, row) : hn::Set(df, call.scale);
    VF max = hn::Zero(df);
    for (int64_t c = 0; c < g.dk; c += Lanes::kKeyStep) {
      float* p = tile.q + Lanes::Index(row, c, g.dk);
      const VF x = hn::Mul(hn::Load(df, p), scale);
      max = hn::Max(max, hn::Abs(x));
      hn::Store(x, df, p);
    }
    Lanes::StorePerRow(Lanes::FoldMax(max), max_abs, row);
  }
  PackExtremeRows(
      job, tile, max_abs, row_data, [&](int64_t h) { return ScaleOf(call, h); },
      [&](int r, int64_t c, float x) { tile.q[Lanes::Index(r, c, g.dk)] = x; });
}

// n rows of d elements times `scale` to `to`, f32.
template <class Rows>
HWY_NOINLINE void CopyScaled(const Rows& rows, int64_t n, int64_t d, float scale, float* to,
                             int64_t to_stride) {
  const DF df;
  WithVectorType(rows.dtype, [&](auto zero) HWY_ATTR {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < d; c += kLanes) {
        const VF x =
            LoadAsF32(rows.template Row<decltype(zero)>(j) + c, std::min<int64_t>(d - c, kLanes));
        hn::StoreU(hn::Mul(x, hn::Set(df, scale)), df, to + j * to_stride + c);
      }
    }
  });
}

// How engines that multiply in f32 take Q, K and V, and keep P and O.
template <class Lanes, int64_t aliasing, bool reads_narrow = false>
struct F32Operands {
  using Weights = WeightsF32;
  using OutputLanes = Lanes;
  using Keys = BlockRows;
  using Values = BlockValues;
  static constexpr int kSegmentKeys = kSegmentKeysF32;
  static constexpr int64_t kAliasing = aliasing;
  static constexpr bool kReadsNarrow = reads_narrow;
  static constexpr bool kPrefetchesRows = false;

  static int64_t QueryFloats(int64_t rows, int64_t dk) { return Lanes::TileFloats(rows, dk); }
  static int64_t ScoreColumns(int64_t keys) { return keys; }
  static int64_t OutputColumns(int64_t dv) { return dv; }
  static int64_t KeyFloats(int64_t keys, int64_t dk) { return keys * CopiedStride(dk); }
  static int64_t ValueFloats(int64_t keys, int64_t dv) { return keys * CopiedStride(dv); }

  static HWY_INLINE void BeginOutput(const Tile& tile, const Geometry& g) {
    std::fill_n(tile.o, Lanes::TileFloats(g.tile_lanes, g.dv), 0.0f);
  }
  static HWY_INLINE float* Denominators(const Tile& tile, const Geometry&) { return tile.state.l; }

  static HWY_INLINE void PackQueries(const Job& job, Tile& tile) {
    HWY_NAMESPACE::PackQueries<Lanes>(job, tile);
  }
  static HWY_INLINE Keys TakeKeys(const Job& job, const Block& block) {
    return TakeRows<F32Operands>(job, job.call.problem->k, block, job.w.k);
  }
  static HWY_INLINE Values TakeValues(const Job& job, const Block& block, bool removes) {
    const Scratch& w = job.w;
    const int64_t dv = job.g.dv;
    BlockRows rows = TakeRows<F32Operands>(job, job.call.problem->v, block, w.v);
    if (job.value_scale != 1.0f) {
      CopyScaled(rows, block.n, dv, job.value_scale, w.v, CopiedStride(dv));
      rows = {w.v, CopiedStride(dv)};
    }
    if (!removes || !HasNonFinite(rows, block.n, dv)) return {rows, nullptr};
    IsolateNonFinite(rows, block.n, dv, w.v, CopiedStride(dv), w.poisoned);
    return {{w.v, CopiedStride(dv)}, w.poisoned};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
