#include "kernels/targets.h"  // before Highway

#include "kernels/registry.h"

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace fovea {

namespace {

// The target whose kernels a target has for what it adds nothing to.
Target WithoutProducts(Target target) {
  switch (target) {
    case Target::kAvx512Amx:
    case Target::kAvx512Bf16:
      return Target::kAvx512;
    case Target::kNeonBf16:
      return Target::kNeon;
    default:
      return target;
  }
}

#if HWY_ARCH_X86
// All that a compiler may use for HWY_AVX3_ZEN4. Highway reports that target on AMD alone, though
// others run its code: AVX3_DL and BF16 are its parts.
bool CpuHasAvx512Bf16() {
  __builtin_cpu_init();
  return (hwy::SupportedTargets() & HWY_AVX3_DL) != 0 && __builtin_cpu_supports("avx512bf16");
}

// Whether CPU and system have AMX's tiles and bf16 products and this process may use them. Linux
// wants to be asked, once per process: it then makes room for the tiles where it saves a thread's
// state.
bool MayUseAmx() {
#if defined(__linux__) && defined(__x86_64__)
  static const bool may = [] {
    constexpr uint32_t kBF16 = 1u << 22, kTiles = 1u << 24;  // CPUID leaf 7, EDX
    // ARCH_REQ_XCOMP_PERM of asm/prctl.h, since Linux 5.16
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    uint32_t a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBF16) == 0 || (d & kTiles) == 0)
      return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return may;
#else
  return false;
#endif
}
#endif

}  // namespace

const EngineKernels* FindKernels(Target target, Engine engine, Product product) noexcept {
  if (product == Product::kBF16) {
    if (engine != Engine::kTile) return nullptr;
    const EngineKernels* kernels = TileBF16KernelsFor(target);
    return kernels != nullptr ? kernels : TileAmxKernelsFor(target);
  }
  target = WithoutProducts(target);
  return engine == Engine::kTile ? TileF32KernelsFor(target) : RowF32KernelsFor(target);
}

bool HasProduct(Target target, Product product) noexcept {
  return product == Product::kBF16 ? HasTileBF16Kernels(target) || HasTileAmxKernels(target)
                                   : (HWY_TARGETS & HighwayTarget(target, product)) != 0;
}

bool IsNativeProduct(Target target, Product product) noexcept {
  return product == Product::kF32 ||
         (product == Product::kBF16 && target != WithoutProducts(target));
}

int64_t HighwayTarget(Target target, Product product) noexcept {
  if (product == Product::kF32) target = WithoutProducts(target);
  switch (target) {
    case Target::kAvx512Amx:
      return HWY_AVX3_SPR;
    case Target::kAvx512Bf16:
      return HWY_AVX3_ZEN4;
    case Target::kAvx512:
      return HWY_AVX3;
    case Target::kAvx2:
      return HWY_AVX2;
    case Target::kSse4:
      return HWY_SSE4;
    case Target::kSse2:
      return HWY_SSE2;
    case Target::kNeonBf16:
      return HWY_NEON_BF16;
    case Target::kNeon:
      return HWY_NEON_WITHOUT_AES;
    case Target::kEmu128:
      return HWY_EMU128;
    case Target::kAuto:
      break;
  }
  return 0;
}

bool IsCompiled(Target target) noexcept {
  return HasProduct(target, Product::kF32) &&
         (target == WithoutProducts(target) || HasProduct(target, Product::kBF16));
}

bool CpuSupports(Target target) noexcept {
  if (target == Target::kEmu128) return true;
#if HWY_ARCH_X86
  if (target == Target::kAvx512Bf16) return CpuHasAvx512Bf16();
  if (target == Target::kAvx512Amx)
    return (hwy::SupportedTargets() & HWY_AVX3_SPR) != 0 && MayUseAmx();
#endif
  return (hwy::SupportedTargets() & HighwayTarget(target, Product::kBF16)) != 0;
}

bool CpuPrefers(Target target) noexcept {
#if HWY_ARCH_X86
  // AMD's cores multiply twice as many bf16 as f32. Intel's leave that to AMX: VDPBF16PS makes half
  // as many products as the multiply-adds that it replaces, so that widening to f32 is the faster
  // way there (bench/README.md).
  if (target == Target::kAvx512Bf16) return __builtin_cpu_is("amd");
#endif
  static_cast<void>(target);
  return true;
}

}  // namespace fovea
