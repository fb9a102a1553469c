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

const EngineKernels* RowF32Kernels() {
  static const EngineKernels kernels = [] {
    EngineKernels k;
    k.segment_keys = RowEngine::kSegmentKeys;
    k.block_keys = RowEngine::kBlockKeys;
    k.max_tile_rows = LanesAreKeys::kRows;
    k.scratch_bytes = [](const Geometry& g) { return CarveScratch<RowEngine>(g, nullptr).bytes; };
    k.attend = Attend<RowEngine>;
    k.matrix = EmitMatrix<RowEngine>;
    k.merge = MergeParts<RowEngine>;
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
