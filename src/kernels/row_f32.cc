// The f32 row engine, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernels-inl.h"
#include "kernels/row_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

EngineKernels RowF32Kernels() {
  EngineKernels kernels;
  kernels.max_tile_rows = LanesAreKeys::kRows;
  kernels.scratch_bytes = [](const Geometry& g) {
    return CarveScratch<RowEngine>(g, nullptr).bytes;
  };
  kernels.attend = Attend<RowEngine>;
  kernels.matrix = EmitMatrix<RowEngine>;
  kernels.merge = MergeParts<RowEngine>;
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/registry.h"
namespace fovea {
FOVEA_DEFINE_KERNELS(RowF32Kernels)
}  // namespace fovea
#endif  // HWY_ONCE
