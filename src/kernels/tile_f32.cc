// The f32 tile engine, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/registry.h"
#include "kernels/tile_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

const EngineKernels* TileF32Kernels() {
  static const EngineKernels kernels = TileKernels<TileF32Engine>();
  return &kernels;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(TileF32Kernels)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea {
FOVEA_DEFINE_FIND(KernelsFunction, TileF32Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
