// Fovea's own table of targets and engines: dispatch is a lookup by the plan, never a change of
// Highway's process-wide state. Included after targets.h.
#ifndef FOVEA_SRC_KERNELS_REGISTRY_H_
#define FOVEA_SRC_KERNELS_REGISTRY_H_

#include "fovea/attention.h"
#include "fovea/target.h"
#include "kernels/kernel.h"

namespace fovea {

// The kernels of `engine` (kTile or kRow) and `product` (kF32 or kBF16) for `target`, which must be
// usable: making them runs code of that target. Null where there are none: products of bf16 have a
// tile engine only, on the targets that HasProduct names.
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

// The table of kernels: ROW(engine, product, unit). Of two units with one engine and product, the
// first that a target has is taken. Each defines Find<unit> by FOVEA_DEFINE_FIND.
#define FOVEA_FOR_EACH_UNIT(ROW)     \
  ROW(kTile, kF32, TileF32Kernels)   \
  ROW(kRow, kF32, RowF32Kernels)     \
  ROW(kTile, kBF16, TileBF16Kernels) \
  ROW(kTile, kBF16, TileAmxKernels)

using KernelsFunction = const EngineKernels*();
#define FOVEA_DECLARE_FIND(ENGINE, PRODUCT, UNIT) \
  KernelsFunction* Find##UNIT(int64_t highway_target) noexcept;
FOVEA_FOR_EACH_UNIT(FOVEA_DECLARE_FIND)
#undef FOVEA_DECLARE_FIND

// Names the code of a Highway target, or that of any.
struct AnyCode {};
template <int64_t kHighwayTarget>
struct CodeOf : AnyCode {};

}  // namespace fovea

// In namespace fovea, in every pass of a unit: HWY_NAMESPACE has a function NAME.
#define FOVEA_OFFER(NAME) \
  constexpr auto NAME##In(CodeOf<HWY_TARGET>) { return &HWY_NAMESPACE::NAME; }

// In namespace fovea, under HWY_ONCE: TYPE* Find##NAME(highway_target), the function NAME of that
// pass; null where no pass offered one.
#define FOVEA_DEFINE_FIND(TYPE, NAME)                          \
  constexpr TYPE* NAME##In(AnyCode) { return nullptr; }        \
  TYPE* Find##NAME([[maybe_unused]] int64_t target) noexcept { \
    switch (target) {                                          \
      FOVEA_FOR_EACH_TARGET(FOVEA_FIND_IN, NAME)               \
      default:                                                 \
        return nullptr;                                        \
    }                                                          \
  }
#define FOVEA_FIND_IN(NAME, BUILD, TARGET, TEXT, OWN, ...) \
  case HWY_##OWN:                                          \
    return NAME##In(CodeOf<HWY_##OWN>());

#endif  // FOVEA_SRC_KERNELS_REGISTRY_H_
