// The bf16 engine on AMX's tiles, compiled for FOVEA_AMX_TARGETS.
#define FOVEA_UNIT_TARGETS FOVEA_AMX_TARGETS
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/registry.h"
#include "kernels/tile_amx-inl.h"

#if HWY_TARGET & FOVEA_AMX_TARGETS
HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

const EngineKernels* TileAmxKernels() {
  static const EngineKernels kernels = [] {
    EngineKernels k = TileKernels<TileAmxEngine, kAmxRows / kLanes>();
    k.item_rows = kAmxItemRows;
    k.usual_scratch = size_t{512} << 10;  // CPUs with AMX have 2 MiB of L2
    return k;
  }();
  return &kernels;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(TileAmxKernels)
}  // namespace fovea
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace fovea {
FOVEA_DEFINE_FIND(KernelsFunction, TileAmxKernels)
}  // namespace fovea
#endif  // HWY_ONCE
