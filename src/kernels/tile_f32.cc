// The f32 tile engine, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/tile_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

EngineKernels TileF32Kernels() { return TileKernels<TileEngine>(); }

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/registry.h"
namespace fovea {
FOVEA_DEFINE_KERNELS(TileF32Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
