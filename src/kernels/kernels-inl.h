// An engine's functions as EngineKernels has them.
#if defined(FOVEA_SRC_KERNELS_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_KERNELS_INL_H_
#undef FOVEA_SRC_KERNELS_KERNELS_INL_H_
#else
#define FOVEA_SRC_KERNELS_KERNELS_INL_H_
#endif

#include "kernels/attention-inl.h"
#include "kernels/matrix-inl.h"
#include "kernels/merge-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// f of the engine that a geometry means: its tiles have kVectors vectors of queries or twice as
// many, which the plan chooses by the number of rows.
template <template <int> class Engine, int kVectors, class F>
HWY_INLINE auto WithTileEngine(const Geometry& g, const F& f) {
  return g.tile_lanes == kVectors * kLanes ? f(Engine<kVectors>()) : f(Engine<2 * kVectors>());
}

template <template <int> class Engine, int kVectors = 1>
EngineKernels TileKernels() {
  EngineKernels kernels;
  kernels.segment_keys = Engine<kVectors>::kSegmentKeys;
  kernels.block_keys = Engine<kVectors>::kBlockKeys;
  kernels.min_tile_rows = kVectors * kLanes;
  kernels.max_tile_rows = 2 * kVectors * kLanes;
  kernels.scratch_bytes = [](const Geometry& g) {
    return WithTileEngine<Engine, kVectors>(
        g, [&](auto engine) { return CarveScratch<decltype(engine)>(g, nullptr).bytes; });
  };
  kernels.attend = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { Attend<decltype(engine)>(call, item, scratch); });
  };
  kernels.matrix = [](const KernelCall& call, const Item& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { EmitMatrix<decltype(engine)>(call, item, scratch); });
  };
  kernels.merge = [](const KernelCall& call, const MergeItem& item, char* scratch) {
    WithTileEngine<Engine, kVectors>(
        call.geometry, [&](auto engine) { MergeParts<decltype(engine)>(call, item, scratch); });
  };
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
