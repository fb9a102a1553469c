// The bf16 engine on AMX's tiles, compiled for the targets of targets_amx.h.
#include "kernels/targets_amx.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/tile_amx-inl.h"

#if HWY_TARGET == HWY_AVX3_SPR || HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

EngineKernels TileAmxKernels() {
  EngineKernels kernels = TileKernels<TileAmxEngine, kAmxRows / kLanes>();
  kernels.item_rows = kAmxItemRows;
  kernels.usual_scratch = size_t{512} << 10;  // CPUs with AMX have 2 MiB of L2
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "kernels/registry.h"
namespace fovea {
#define FOVEA_FOR_EACH_AMX_TARGET(VISIT, X) \
  FOVEA_VISIT_AVX512_AMX(VISIT, X) FOVEA_VISIT_AVX2(VISIT, X)
FOVEA_DEFINE_KERNELS_OF(TileAmxKernels, FOVEA_FOR_EACH_AMX_TARGET)
}  // namespace fovea
#endif  // HWY_ONCE
