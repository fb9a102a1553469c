// Fovea's own table of targets and engines: dispatch is a lookup by the plan, never a change of
// Highway's process-wide state.
#ifndef FOVEA_SRC_KERNELS_REGISTRY_H_
#define FOVEA_SRC_KERNELS_REGISTRY_H_

#include "fovea/attention.h"
#include "fovea/target.h"
#include "kernels/kernel.h"

namespace fovea {

// The kernels of `engine` (kTile or kRow) and `product` (kF32 or kBF16) for `target`, which must be
// usable: making the table runs code of that target. Null where there are none: products of bf16
// have a tile engine only, on the targets that HasProduct names.
const EngineKernels* FindKernels(Target target, Engine engine, Product product) noexcept;

// Whether this build has kernels for that target and product.
bool HasProduct(Target target, Product product) noexcept;

// Whether the target is there for this product: its instructions multiply so.
bool IsNativeProduct(Target target, Product product) noexcept;

// The Highway target whose code does this; 0 for kAuto. Targets that add a product to another
// target have that one's code for the rest.
int64_t HighwayTarget(Target target, Product product) noexcept;

bool IsCompiled(Target target) noexcept;

// Whether this CPU and operating system can run the target's code.
bool CpuSupports(Target target) noexcept;

// Whether this CPU, which supports the target, runs what it adds faster than the next lesser target
// does without it.
bool CpuPrefers(Target target) noexcept;

// One of these an engine, defined in the engine's unit by FOVEA_DEFINE_KERNELS.
const EngineKernels* TileF32KernelsFor(Target target) noexcept;
const EngineKernels* RowF32KernelsFor(Target target) noexcept;
const EngineKernels* TileBF16KernelsFor(Target target) noexcept;
bool HasTileBF16Kernels(Target target) noexcept;
const EngineKernels* TileAmxKernelsFor(Target target) noexcept;
bool HasTileAmxKernels(Target target) noexcept;

}  // namespace fovea

// Defines NAME##For(target) from the functions NAME in the namespaces of all targets that the unit
// was compiled for, and Has##NAME. For use in namespace fovea under HWY_ONCE.
#define FOVEA_DEFINE_KERNELS(NAME) FOVEA_DEFINE_KERNELS_OF(NAME, FOVEA_FOR_EACH_COMPILED_TARGET)
// The same where only the targets of FOR_EACH have the function.
#define FOVEA_DEFINE_KERNELS_OF(NAME, FOR_EACH)            \
  const EngineKernels* NAME##For(Target target) noexcept { \
    switch (target) {                                      \
      FOR_EACH(FOVEA_KERNELS_CASE, NAME)                   \
      default:                                             \
        return nullptr;                                    \
    }                                                      \
  }                                                        \
  bool Has##NAME(Target target) noexcept {                 \
    switch (target) {                                      \
      FOR_EACH(FOVEA_HAS_KERNELS, NAME)                    \
      default:                                             \
        return false;                                      \
    }                                                      \
  }
#define FOVEA_HAS_KERNELS(TARGET, NAMESPACE, NAME) \
  case Target::TARGET:                             \
    return true;
#define FOVEA_KERNELS_CASE(TARGET, NAMESPACE, NAME)         \
  case Target::TARGET: {                                    \
    static const EngineKernels kernels = NAMESPACE::NAME(); \
    return &kernels;                                        \
  }

// VISIT(Target enumerator, Highway's namespace, argument) for every target that this unit was
// compiled for.
#define FOVEA_FOR_EACH_COMPILED_TARGET(VISIT, X) \
  FOVEA_VISIT_AVX512_AMX(VISIT, X)               \
  FOVEA_VISIT_AVX512_BF16(VISIT, X)              \
  FOVEA_VISIT_AVX512(VISIT, X)                   \
  FOVEA_VISIT_AVX2(VISIT, X)                     \
  FOVEA_VISIT_SSE4(VISIT, X)                     \
  FOVEA_VISIT_SSE2(VISIT, X)                     \
  FOVEA_VISIT_NEON_BF16(VISIT, X)                \
  FOVEA_VISIT_NEON(VISIT, X)                     \
  FOVEA_VISIT_EMU128(VISIT, X)
#if HWY_TARGETS & HWY_AVX3_SPR
#define FOVEA_VISIT_AVX512_AMX(VISIT, X) VISIT(kAvx512Amx, N_AVX3_SPR, X)
#else
#define FOVEA_VISIT_AVX512_AMX(VISIT, X)
#endif
#if HWY_TARGETS & HWY_AVX3_ZEN4
#define FOVEA_VISIT_AVX512_BF16(VISIT, X) VISIT(kAvx512Bf16, N_AVX3_ZEN4, X)
#else
#define FOVEA_VISIT_AVX512_BF16(VISIT, X)
#endif
#if HWY_TARGETS & HWY_NEON_BF16
#define FOVEA_VISIT_NEON_BF16(VISIT, X) VISIT(kNeonBf16, N_NEON_BF16, X)
#else
#define FOVEA_VISIT_NEON_BF16(VISIT, X)
#endif
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
