// Which of Highway's targets the units of bf16 products are compiled for; included before any
// Highway header, in the place of targets.h.
//
// Those with dot products of bf16, AVX3_ZEN4 and NEON_BF16 (AVX3_SPR adds only f16 arithmetic), and
// the baseline, which every unit must have: it emulates the product, so that every machine tests
// packing and loops. What lies between has no such instruction and multiplies bf16 widened to f32.
#ifndef FOVEA_SRC_KERNELS_TARGETS_BF16_H_
#define FOVEA_SRC_KERNELS_TARGETS_BF16_H_

// What a build leaves out besides (CMake: FOVEA_TARGETS).
#ifndef FOVEA_DISABLED_TARGETS
#define FOVEA_DISABLED_TARGETS 0
#endif

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                      \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_AVX3_SPR | HWY_NEON | HWY_SVE | \
   HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SCALAR | FOVEA_DISABLED_TARGETS)
#endif

#endif  // FOVEA_SRC_KERNELS_TARGETS_BF16_H_
