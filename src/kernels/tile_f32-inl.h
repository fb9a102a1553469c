// The f32 tile engine: a word is a float. K and V are read in place, never packed.
#if defined(FOVEA_SRC_KERNELS_TILE_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#endif

#include "kernels/pipeline-inl.h"
#include "kernels/take-inl.h"
#include "kernels/tile_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

template <int kVectors>
struct TileF32Engine : F32Operands<LanesAreQueries<kVectors>, kTileAliasing>,
                       TileLoops<F32Product, kVectors> {
  using Lanes = LanesAreQueries<kVectors>;
  using Loops = TileLoops<F32Product, kVectors>;
  using Pipeline = AtOnce<TileF32Engine>;
  // S of a tile (8 KiB for 32 queries) stays in L1.
  static constexpr int kBlockKeys = kSegmentKeysF32;

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return Loops::CallsOf(keys, g.block_keys, g.dv);
  }

  static HWY_INLINE void Scores(const Part& part, const BlockRows& k, Ahead& ahead) {
    Loops::Scores(part, Words(k), ahead);
  }

  static HWY_INLINE void Accumulate(const Part& part, const BlockValues& v, Ahead& ahead) {
    Loops::Accumulate(part, Words(v.rows), part.g->dv, ahead);
  }

 private:
  static HWY_INLINE WordRows Words(const BlockRows& rows) {
    return {static_cast<const char*>(rows.data), kWordBytes * rows.stride};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
