// The f32 row engine, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/registry.h"
#include "kernels/row_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// f of the engine that a geometry means.
template <class F>
HWY_INLINE auto WithRowEngine(const Geometry& g, const F& f) {
  return g.tile_lanes == 1 ? f(RowEngine<1>()) : f(RowEngine<4>());
}

const EngineKernels* RowF32Kernels() {
  static const EngineKernels kernels = [] {
    EngineKernels k;
    k.segment_keys = RowOperands::kSegmentKeys;
    k.block_keys = RowEngine<1>::kBlockKeys;
    k.max_tile_rows = LanesAreKeys<1>::kRows;
    k.row_lanes = 4;
    k.scratch_bytes = [](const Geometry& g) {
      return WithRowEngine(
          g, [&](auto engine) { return CarveScratch<decltype(engine)>(g, nullptr).bytes; });
    };
    k.attend = [](const KernelCall& call, const Item& item, char* scratch) {
      WithRowEngine(call.geometry,
                    [&](auto engine) { Attend<decltype(engine)>(call, item, scratch); });
    };
    k.matrix = [](const KernelCall& call, const Item& item, char* scratch) {
      WithRowEngine(call.geometry,
                    [&](auto engine) { EmitMatrix<decltype(engine)>(call, item, scratch); });
    };
    k.merge = [](const KernelCall& call, const MergeItem& item, char* scratch) {
      WithRowEngine(call.geometry,
                    [&](auto engine) { MergeParts<decltype(engine)>(call, item, scratch); });
    };
    return k;
  }();
  return &kernels;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(RowF32Kernels)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea {
FOVEA_DEFINE_FIND(KernelsFunction, RowF32Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
