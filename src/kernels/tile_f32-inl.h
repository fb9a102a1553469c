// The f32 tile engine: a word is a float. K and V are read in place, never packed.
#if defined(FOVEA_SRC_KERNELS_TILE_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_F32_INL_H_
#endif

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

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return Loops::CallsOf(keys, g.block_keys, g.dv);
  }

  static HWY_INLINE void Scores(const Tile& tile, const Rows& k, const Span& span,
                                const Geometry& g, float* s, Ahead& ahead) {
    Loops::Scores(tile, Words(k), span, g, s, ahead);
  }

  static HWY_INLINE void Accumulate(const Tile& tile, const Values& v, const Span& span,
                                    const Geometry& g, const float* s, Ahead& ahead) {
    Loops::Accumulate(tile, Words(v.rows), span, g.dv, s, ahead);
  }

 private:
  static HWY_INLINE WordRows Words(const Rows& rows) {
    return {static_cast<const char*>(rows.data), kWordBytes * rows.stride};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
