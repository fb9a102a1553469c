#include "kernels/registry.h"

#include "kernels/targets.h"  // before Highway

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "hwy/highway.h"
#include "hwy/targets.h"

#if HWY_IS_BIG_ENDIAN
#error "Fovea is for little-endian machines: pairs of bf16 and bits of masks are read as words"
#endif
#if (HWY_TARGETS & FOVEA_F32_TARGETS) == 0
#error "No target is left: this build would have no kernels. See FOVEA_FOR_EACH_TARGET"
#endif

namespace fovea {

namespace {

// ---- how CPUs are asked: the columns `supports` and `prefers` ----

bool Any() { return true; }

// What the compiler may use everywhere needs no question.
bool HighwayReports(int64_t highway_target) {
  return ((hwy::SupportedTargets() | HWY_BASELINE_TARGETS) & highway_target) != 0;
}

#if HWY_ARCH_X86
// All that a compiler may use for HWY_AVX3_ZEN4. Highway reports that target on AMD alone, though
// others run its code: AVX3_DL and BF16 are its parts.
bool CpuHasAvx512Bf16(int64_t) {
  __builtin_cpu_init();
  return HighwayReports(HWY_AVX3_DL) && __builtin_cpu_supports("avx512bf16");
}

// AMD's cores multiply twice as many bf16 as f32. Intel's leave that to AMX: VDPBF16PS makes half
// as many products as the multiply-adds that it replaces, so that widening to f32 is the faster
// way there (bench/README.md).
bool CpuIsAmd() { return __builtin_cpu_is("amd"); }
#else
bool CpuHasAvx512Bf16(int64_t) { return false; }
bool CpuIsAmd() { return false; }
#endif

// Whether CPU and system have AMX's tiles and bf16 products and this process may use them. Linux
// wants to be asked, once per process: it then makes room for the tiles where it saves a thread's
// state.
bool MayUseAmx([[maybe_unused]] int64_t highway_target) {
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
  return HighwayReports(highway_target) && may;
#else
  return false;
#endif
}

// ---- the tables ----

struct TargetRow {
  Target target;
  int64_t own, f32;  // Highway's targets
  bool (*supports)(int64_t highway_target);
  bool (*prefers)();
  bool adds_product() const { return own != f32; }
};
#define FOVEA_TARGET_ROW(X, BUILD, TARGET, NAME, OWN, F32, SUPPORTS, PREFERS) \
  {Target::TARGET, HWY_##OWN, HWY_##F32, SUPPORTS, PREFERS},
constexpr TargetRow kTargets[] = {FOVEA_FOR_EACH_TARGET(FOVEA_TARGET_ROW, _)};

struct UnitRow {
  Engine engine;
  Product product;
  KernelsFunction* (*find)(int64_t highway_target) noexcept;
};
#define FOVEA_UNIT_ROW(ENGINE, PRODUCT, UNIT) {Engine::ENGINE, Product::PRODUCT, Find##UNIT},
constexpr UnitRow kUnits[] = {FOVEA_FOR_EACH_UNIT(FOVEA_UNIT_ROW)};

// Null for kAuto and values outside the enumeration.
const TargetRow* RowOf(Target target) {
  for (const TargetRow& row : kTargets) {
    if (row.target == target) return &row;
  }
  return nullptr;
}

}  // namespace

const EngineKernels* FindKernels(Target target, Engine engine, Product product) noexcept {
  for (const UnitRow& unit : kUnits) {
    if (unit.engine != engine || unit.product != product) continue;
    KernelsFunction* const kernels = unit.find(HighwayTarget(target, product));
    if (kernels != nullptr) return kernels();
  }
  return nullptr;
}

bool HasProduct(Target target, Product product) noexcept {
  for (const UnitRow& unit : kUnits) {
    if (unit.product == product && unit.find(HighwayTarget(target, product)) != nullptr)
      return true;
  }
  return false;
}

bool IsNativeProduct(Target target, Product product) noexcept {
  const TargetRow* const row = RowOf(target);
  return product == Product::kF32 ||
         (product == Product::kBF16 && row != nullptr && row->adds_product());
}

int64_t HighwayTarget(Target target, Product product) noexcept {
  const TargetRow* const row = RowOf(target);
  if (row == nullptr) return 0;
  return product == Product::kF32 ? row->f32 : row->own;
}

bool IsCompiled(Target target) noexcept {
  const TargetRow* const row = RowOf(target);
  return row != nullptr && HasProduct(target, Product::kF32) &&
         (!row->adds_product() || HasProduct(target, Product::kBF16));
}

bool CpuSupports(Target target) noexcept {
  const TargetRow* const row = RowOf(target);
  return row != nullptr && row->supports(row->own);
}

bool CpuPrefers(Target target) noexcept {
  const TargetRow* const row = RowOf(target);
  return row == nullptr || row->prefers();
}

}  // namespace fovea
