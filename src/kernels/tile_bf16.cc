// The bf16 tile engine, compiled for the targets with dot products of bf16 and for the baseline,
// which emulates them.
#include "kernels/targets_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/tile_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

EngineKernels TileBF16Kernels() { return TileKernels<TileBF16Engine>(); }

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/registry.h"
namespace fovea {
FOVEA_DEFINE_KERNELS(TileBF16Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
