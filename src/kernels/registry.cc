#include "kernels/targets.h"  // before Highway

#include "kernels/registry.h"

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace fovea {

const EngineKernels* FindKernels(Target target, Engine engine) noexcept {
  return engine == Engine::kTile ? TileF32KernelsFor(target) : RowF32KernelsFor(target);
}

int64_t HighwayTarget(Target target) noexcept {
  switch (target) {
    case Target::kAvx512:
      return HWY_AVX3;
    case Target::kAvx2:
      return HWY_AVX2;
    case Target::kSse4:
      return HWY_SSE4;
    case Target::kSse2:
      return HWY_SSE2;
    case Target::kNeon:
      return HWY_NEON_WITHOUT_AES;
    case Target::kEmu128:
      return HWY_EMU128;
    case Target::kAuto:
      break;
  }
  return 0;
}

bool IsCompiled(Target target) noexcept { return (HWY_TARGETS & HighwayTarget(target)) != 0; }

bool CpuSupports(Target target) noexcept { return target == Target::kEmu128 || (hwy::SupportedTargets() & HighwayTarget(target)) != 0; }

}  // namespace fovea
