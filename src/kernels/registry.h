// Fovea's own table of targets and engines: dispatch is a lookup by the plan, never a change of Highway's process-wide state.
#ifndef FOVEA_SRC_KERNELS_REGISTRY_H_
#define FOVEA_SRC_KERNELS_REGISTRY_H_

#include "fovea/attention.h"
#include "fovea/target.h"
#include "kernels/kernel.h"

namespace fovea {

// The f32 kernels of `engine` (kTile or kRow) for `target`, which must be usable: making the table runs code of that target.
const EngineKernels* FindKernels(Target target, Engine engine) noexcept;

// Highway's HWY_TARGET of a target; 0 for kAuto.
int64_t HighwayTarget(Target target) noexcept;

bool IsCompiled(Target target) noexcept;

// Whether this CPU and operating system can run the target's code.
bool CpuSupports(Target target) noexcept;

// One of these an engine, defined in the engine's unit by FOVEA_DEFINE_KERNELS.
const EngineKernels* TileF32KernelsFor(Target target) noexcept;
const EngineKernels* RowF32KernelsFor(Target target) noexcept;

}  // namespace fovea

// Defines NAME##For(target) from the functions NAME in the namespaces of all compiled targets. For use in namespace fovea under HWY_ONCE.
#define FOVEA_DEFINE_KERNELS(NAME)                             \
  const EngineKernels* NAME##For(Target target) noexcept {     \
    switch (target) {                                          \
      FOVEA_FOR_EACH_COMPILED_TARGET(FOVEA_KERNELS_CASE, NAME) \
      default:                                                 \
        return nullptr;                                        \
    }                                                          \
  }
#define FOVEA_KERNELS_CASE(TARGET, NAMESPACE, NAME)         \
  case Target::TARGET: {                                    \
    static const EngineKernels kernels = NAMESPACE::NAME(); \
    return &kernels;                                        \
  }

// VISIT(Target enumerator, Highway's namespace, argument) for every target that this unit was compiled for.
#define FOVEA_FOR_EACH_COMPILED_TARGET(VISIT, X) \
  FOVEA_VISIT_AVX512(VISIT, X)                   \
  FOVEA_VISIT_AVX2(VISIT, X) FOVEA_VISIT_SSE4(VISIT, X) FOVEA_VISIT_SSE2(VISIT, X) FOVEA_VISIT_NEON(VISIT, X) FOVEA_VISIT_EMU128(VISIT, X)
#if HWY_TARGETS & HWY_AVX3
#define FOVEA_VISIT_AVX512(VISIT, X) VISIT(kAvx512, N_AVX3, X)
#else
#define FOVEA_VISIT_AVX512(VISIT, X)
#endif
#if HWY_TARGETS & HWY_AVX2
#define FOVEA_VISIT_AVX2(VISIT, X) VISIT(kAvx2, N_AVX2, X)
#else
#define FOVEA_VISIT_AVX2(VISIT, X)
#endif
#if HWY_TARGETS & HWY_SSE4
#define FOVEA_VISIT_SSE4(VISIT, X) VISIT(kSse4, N_SSE4, X)
#else
#define FOVEA_VISIT_SSE4(VISIT, X)
#endif
#if HWY_TARGETS & HWY_SSE2
#define FOVEA_VISIT_SSE2(VISIT, X) VISIT(kSse2, N_SSE2, X)
#else
#define FOVEA_VISIT_SSE2(VISIT, X)
#endif
#if HWY_TARGETS & HWY_NEON_WITHOUT_AES
#define FOVEA_VISIT_NEON(VISIT, X) VISIT(kNeon, N_NEON_WITHOUT_AES, X)
#else
#define FOVEA_VISIT_NEON(VISIT, X)
#endif
#if HWY_TARGETS & HWY_EMU128
#define FOVEA_VISIT_EMU128(VISIT, X) VISIT(kEmu128, N_EMU128, X)
#else
#define FOVEA_VISIT_EMU128(VISIT, X)
#endif

#endif  // FOVEA_SRC_KERNELS_REGISTRY_H_
