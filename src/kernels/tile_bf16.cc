// The bf16 tile engine, compiled for the targets with dot products of bf16 and for the baseline,
// which emulates them.
#define FOVEA_UNIT_TARGETS FOVEA_BF16_TARGETS
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/registry.h"
#include "kernels/tile_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

const EngineKernels* TileBF16Kernels() {
  static const EngineKernels kernels = TileKernels<TileBF16Engine>();
  return &kernels;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(TileBF16Kernels)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea {
FOVEA_DEFINE_FIND(KernelsFunction, TileBF16Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
