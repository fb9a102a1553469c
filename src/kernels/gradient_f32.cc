// The kernels of gradients in f32, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gradient_f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/gradient_ends-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

const GradientKernels* GradientF32Kernels() {
  using GradientEngine = TileF32Engine<2>;
  static const GradientKernels kernels = [] {
    GradientKernels k;
    k.lanes = GradientEngine::Lanes::kRows;
    k.column_floats = ColumnFloats;
    k.scratch_bytes = [](const Geometry& g) {
      return CarveGradients<GradientEngine>(g, nullptr).bytes;
    };
    k.begin = BeginGradients<GradientEngine>;
    k.add = AddGradients<GradientEngine>;
    k.end = EndGradients<GradientEngine>;
    k.bias_row = StoreBiasRow;
    return k;
  }();
  return &kernels;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(GradientF32Kernels)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea {
using GradientKernelsFunction = const GradientKernels*();
FOVEA_DEFINE_FIND(GradientKernelsFunction, GradientF32Kernels)

const GradientKernels* FindGradientKernels(Target target) noexcept {
  GradientKernelsFunction* const kernels =
      FindGradientF32Kernels(HighwayTarget(target, Product::kF32));
  return kernels == nullptr ? nullptr : kernels();
}
}  // namespace fovea
#endif  // HWY_ONCE
