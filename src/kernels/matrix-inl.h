// Scores and weights as matrices: the same walk as the algorithm's, whose S is stored.
#if defined(FOVEA_SRC_KERNELS_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MATRIX_INL_H_
#undef FOVEA_SRC_KERNELS_MATRIX_INL_H_
#else
#define FOVEA_SRC_KERNELS_MATRIX_INL_H_
#endif

#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Every element of the tiles' rows of call.matrix.
HWY_INLINE void FillMatrix(const Job& job, const Tile* tiles, int count, float value) {
  const MutableTensorView& matrix = *job.call.matrix;
  constexpr int64_t kSome = 4 * kStageColumns;
  float values[kSome];
  std::fill_n(values, kSome, value);
  for (int t = 0; t < count; ++t) {
    const Destination out = OutputOf(job, tiles[t], matrix, job.item.sequence, 0);
    for (int r = 0; r < out.count; ++r) {
      for (int64_t j = 0; j < matrix.shape[3]; j += kSome) {
        StoreRow(values, std::min(matrix.shape[3] - j, kSome), out.dtype,
                 out.row[r] + j * out.stride, out.stride);
      }
    }
  }
}

// S of the span, or what of it is resident, to the front of the span.
template <class Lanes>
HWY_NOINLINE void DropAbsent(const Part& part) {
  const Span& span = part.span;
  const int64_t block_keys = part.g->block_keys;
  for (int64_t key = part.block.begin, to = span.first; key < span.end; ++key, ++to) {
    for (int64_t r = 0; r < part.tile->count; ++r)
      part.s[Lanes::Index(r, to, block_keys)] = part.s[Lanes::Index(r, key, block_keys)];
  }
}

// S of the span → call.matrix.
template <class Engine>
HWY_INLINE void StoreScores(const Job& job, const Part& part) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = job.g;
  const Span& span = part.span;
  float* ones = job.w.row_values;
  std::fill_n(ones, g.tile_lanes, 1.0f);
  Destination out = OutputOf(job, *part.tile, *job.call.matrix, job.item.sequence, 0);
  const int64_t first = std::max(span.first, part.block.begin);
  if (first != span.first) DropAbsent<Lanes>(part);
  for (int r = 0; r < out.count; ++r)
    out.row[r] += job.Column(part.block.first + first) * out.stride;
  Lanes::ToRows(part.s + Lanes::Index(0, span.first, g.block_keys), span.end - first, g.block_keys,
                ones, out);
}

// S = exp(S − m) / l with the final m and l.
template <class Lanes>
HWY_INLINE void Normalise(const Job& job, const Part& part) {
  const Tile& tile = *part.tile;
  float* inverse = job.w.row_values;
  InverseDenominators(tile.state.l, tile.count, job.g.tile_lanes, inverse);
  ForEachScore<Lanes>(part, [&](VF s, int64_t row, int64_t) HWY_ATTR {
    const VF p = ExpNonPositive(DF(), hn::Sub(s, ExponentBase(Lanes::PerRow(tile.state.m, row))));
    // A removed pair has weight 0 even in a NaN row, where the denominator is NaN.
    return hn::IfThenZeroElse(hn::Eq(s, MinusInfinity()), hn::Mul(p, Lanes::PerRow(inverse, row)));
  });
}

// Scores at call.stage → call.matrix: −inf where there is no pair. Weights, 0 there, need the final
// m and l: a pass over the keys before.
template <class Engine>
void EmitMatrix(const KernelCall& call, const Item& item, char* scratch) {
  const Job job = BeginJob<Engine>(call, item, scratch, 1.0f);
  const bool weights = call.stage == ScoreStage::kWeights;
  Tile tiles[kMaxTiles];
  const int count = BeginTiles<Engine>(job, false, tiles);
  FillMatrix(job, tiles, count, weights ? 0.0f : MinusInfinityScalar());
  for (bool final : {false, true}) {
    if (!final && !weights) continue;
    if (final && weights) {
      for (int t = 0; t < count; ++t) EndTile<Engine>(job, tiles[t], false);
    }
    typename Engine::Pipeline pipeline;
    Ahead ahead;
    BlockWalk<Engine> walk(job, tiles, count);
    while (walk.Next()) {
      const auto k = Engine::TakeKeys(job, walk.block());
      ahead.Plan<Engine>(job, walk.block(), walk.behind(), walk.parts(), false);
      for (int n = 0; n < walk.parts(); ++n) {
        const Part& part = walk.part(n);
        ScorePart<Engine>(job, walk, n, k, pipeline, ahead);
        if (final) {
          if (weights) Normalise<typename Engine::Lanes>(job, part);
          StoreScores<Engine>(job, part);
        } else {
          pipeline.Softmax(part);
        }
      }
      pipeline.Complete();
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
