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
// x86's dot products count subnormal operands and results as 0, whatever the floating-point state.
#if defined(FOVEA_SRC_KERNELS_TILE_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_BF16_INL_H_
#endif

#include "kernels/pipeline-inl.h"
#include "kernels/take_bf16-inl.h"
#include "kernels/tile_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

template <int kVectors>
struct TileBF16Engine : BF16Operands<LanesAreQueries<kVectors>>, TileLoops<BF16Product, kVectors> {
  using Lanes = LanesAreQueries<kVectors>;
  using Loops = TileLoops<BF16Product, kVectors>;
  using Weights = BF16Product::Weights;
  using Pipeline = AtOnce<TileBF16Engine>;
  static constexpr int kBlockKeys = kSegmentKeysBF16;
  using BF16Operands<Lanes>::OutputColumns;

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return Loops::CallsOf(keys, g.block_keys, OutputColumns(g.dv));
  }

  static HWY_INLINE void Accumulate(const Part& part, const PairValues& v, Ahead& ahead) {
    Loops::Accumulate(part, v.rows, OutputColumns(part.g->dv), ahead);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
