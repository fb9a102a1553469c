// Which of Highway's targets Fovea compiles; included before any Highway header.
//
// Left out: SSSE3 (nothing that SSE2's fallbacks or SSE4 lack matters here), AVX3_DL, AVX3_ZEN4 and
// AVX3_SPR (for f32 the same instructions as AVX3), NEON and NEON_BF16 (the baseline
// NEON_WITHOUT_AES has all that f32 needs; for products of bf16 see targets_bf16.h), and the SVE
// family (vectors without a compile-time size cannot be members or arrays; 128-bit SVE cores gain
// nothing over NEON in f32).
#ifndef FOVEA_SRC_KERNELS_TARGETS_H_
#define FOVEA_SRC_KERNELS_TARGETS_H_

// What a build leaves out besides (CMake: FOVEA_TARGETS).
#ifndef FOVEA_DISABLED_TARGETS
#define FOVEA_DISABLED_TARGETS 0
#endif

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                     \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_NEON | HWY_NEON_BF16 | HWY_SVE | \
   HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SCALAR | FOVEA_DISABLED_TARGETS)
#endif

#endif  // FOVEA_SRC_KERNELS_TARGETS_H_
