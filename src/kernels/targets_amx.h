// Which of Highway's targets the unit of bf16 tile products is compiled for; included before any
// Highway header, in the place of targets.h.
//
// AVX3_SPR: every CPU with AMX has what that target may use. The tests' copy of the library has
// AVX2 besides, with the tile instructions emulated, so that machines without AMX test packing and
// loops. The baseline is there because every unit must have it: no kernels are made for it.
#ifndef FOVEA_SRC_KERNELS_TARGETS_AMX_H_
#define FOVEA_SRC_KERNELS_TARGETS_AMX_H_

// What a build leaves out besides (CMake: FOVEA_TARGETS).
#ifndef FOVEA_DISABLED_TARGETS
#define FOVEA_DISABLED_TARGETS 0
#endif

#ifdef HWY_COMPILE_ALL_ATTAINABLE
#define FOVEA_EMULATED_AMX_TARGETS HWY_AVX2
#else
#define FOVEA_EMULATED_AMX_TARGETS 0
#endif

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                    \
  (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX2 & ~FOVEA_EMULATED_AMX_TARGETS) | HWY_AVX3 | HWY_AVX3_DL |   \
   HWY_AVX3_ZEN4 | HWY_NEON | HWY_NEON_BF16 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_SCALAR | FOVEA_DISABLED_TARGETS)
#endif

#endif  // FOVEA_SRC_KERNELS_TARGETS_AMX_H_
