// The f32 tile engine, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/attention-inl.h"
#include "kernels/tile_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// One or two vectors of queries: the plan chooses by the number of rows.
template <class F>
HWY_INLINE auto WithTileEngine(const Geometry& g, const F& f) {
  return g.tile_lanes == kLanes ? f(TileEngine<1>()) : f(TileEngine<2>());
}

EngineKernels TileF32Kernels() {
  EngineKernels kernels;
  kernels.lanes = kLanes;
  kernels.max_tile_rows = 2 * kLanes;
  kernels.scratch_bytes = [](const Geometry& g) {
    return WithTileEngine(g, [&](auto engine) { return CarveScratch<decltype(engine)>(g, nullptr).bytes; });
  };
  kernels.attend = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine(call.geometry, [&](auto engine) { Attend<decltype(engine)>(call, item, scratch); });
  };
  kernels.matrix = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine(call.geometry, [&](auto engine) { EmitMatrix<decltype(engine)>(call, item, scratch); });
  };
  kernels.merge = [](const KernelCall& call, const MergeItem& item, char* scratch) {
    WithTileEngine(call.geometry, [&](auto engine) { MergeParts<decltype(engine)>(call, item, scratch); });
  };
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/registry.h"
namespace fovea {
FOVEA_DEFINE_KERNELS(TileF32Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
