// The table of targets, and which of Highway's targets a unit is compiled for. Included before any
// Highway header, whose names it uses only where macros are expanded.
#ifndef FOVEA_SRC_KERNELS_TARGETS_H_
#define FOVEA_SRC_KERNELS_TARGETS_H_

// ROW(X, …) for every target, the most capable first; of different architectures, those of one are
// never compiled together.
//
//   ROW(X, build, target, name, own, f32, supports, prefers)
//
//   build     ALWAYS: the least of an architecture. CHOSEN: FOVEA_TARGETS of CMake may leave it out
//   target    enumerator of Target
//   name      as in FOVEA_TARGET
//   own       Highway's target, without HWY_, whose code multiplies as only this target does …
//   f32       … and the one whose code does all else: another one for targets that add a product
//   supports  function of registry.cc: whether this CPU and system run the code of `own`
//   prefers   the same: whether this CPU, which does, runs it faster than the next row's
//
// cmake/Targets.cmake reads the rows too: one a line.
//
// Left out of Highway's: SSSE3 (nothing that SSE2's fallbacks or SSE4 lack matters here), AVX3_DL
// (for f32 the same instructions as AVX3), NEON (NEON_WITHOUT_AES has all that f32 needs), the SVE
// family and RVV (vectors without a compile-time size cannot be members or arrays; 128-bit SVE
// cores gain nothing over NEON in f32), PPC10 (for f32 the same instructions as PPC9), Z14 and Z15
// (big-endian), SCALAR (lacks operations).
#define FOVEA_FOR_EACH_TARGET(ROW, X)                                                      \
  ROW(X, CHOSEN, kNeonBf16, "neon_bf16", NEON_BF16, NEON_WITHOUT_AES, HighwayReports, Any) \
  ROW(X, CHOSEN, kAvx512Amx, "avx512_amx", AVX3_SPR, AVX3, MayUseAmx, Any)                 \
  ROW(X, CHOSEN, kAvx512Bf16, "avx512_bf16", AVX3_ZEN4, AVX3, CpuHasAvx512Bf16, CpuIsAmd)  \
  ROW(X, CHOSEN, kAvx512, "avx512", AVX3, AVX3, HighwayReports, Any)                       \
  ROW(X, CHOSEN, kAvx2, "avx2", AVX2, AVX2, HighwayReports, Any)                           \
  ROW(X, CHOSEN, kSse4, "sse4", SSE4, SSE4, HighwayReports, Any)                           \
  ROW(X, ALWAYS, kSse2, "sse2", SSE2, SSE2, HighwayReports, Any)                           \
  ROW(X, ALWAYS, kNeon, "neon", NEON_WITHOUT_AES, NEON_WITHOUT_AES, HighwayReports, Any)   \
  ROW(X, CHOSEN, kPpc9, "ppc9", PPC9, PPC9, HighwayReports, Any)                           \
  ROW(X, ALWAYS, kPpc8, "ppc8", PPC8, PPC8, HighwayReports, Any)                           \
  ROW(X, ALWAYS, kWasm, "wasm", WASM, WASM, HighwayReports, Any)                           \
  ROW(X, ALWAYS, kEmu128, "emu128", EMU128, EMU128, HighwayReports, Any)

// What a build leaves out (CMake: FOVEA_TARGETS).
#ifndef FOVEA_DISABLED_TARGETS
#define FOVEA_DISABLED_TARGETS 0
#endif

// Targets of the units, as Highway's bits. A unit defines FOVEA_UNIT_TARGETS as one of these; those
// with products of f32 need not.
#define FOVEA_OR_F32(X, BUILD, TARGET, NAME, OWN, F32, ...) | HWY_##F32
#define FOVEA_F32_TARGETS (0 FOVEA_FOR_EACH_TARGET(FOVEA_OR_F32, _))
// Those with dot products of bf16 (AVX3_SPR adds only f16 arithmetic). What lies between them and
// the baseline has no such instruction and multiplies bf16 widened to f32; the baseline emulates
// the product, so that every machine tests packing and loops.
#define FOVEA_BF16_TARGETS (HWY_AVX3_ZEN4 | HWY_NEON_BF16)
// AVX3_SPR: every CPU with AMX has what that target may use. The tests' copy of the library has
// AVX2 besides, with the tile instructions emulated, so that machines without AMX test packing and
// loops.
#ifdef HWY_COMPILE_ALL_ATTAINABLE
#define FOVEA_AMX_TARGETS (HWY_AVX3_SPR | HWY_AVX2)
#else
#define FOVEA_AMX_TARGETS HWY_AVX3_SPR
#endif

#ifndef FOVEA_UNIT_TARGETS
#define FOVEA_UNIT_TARGETS FOVEA_F32_TARGETS
#endif

// Every unit must have the best of what the compiler may use everywhere, the lowest bit of these,
// and the tests' copy has the portable target besides.
#define FOVEA_USUAL_TARGETS (HWY_BASELINE_TARGETS & FOVEA_F32_TARGETS & ~(FOVEA_DISABLED_TARGETS))
#define FOVEA_BASELINE_TARGETS ((FOVEA_USUAL_TARGETS & -FOVEA_USUAL_TARGETS) | HWY_EMU128)

#ifdef HWY_DISABLED_TARGETS
#error "HWY_DISABLED_TARGETS is what this header defines: choose targets by CMake's FOVEA_TARGETS"
#endif
#define HWY_DISABLED_TARGETS \
  (~(FOVEA_UNIT_TARGETS | FOVEA_BASELINE_TARGETS) | FOVEA_DISABLED_TARGETS)

#endif  // FOVEA_SRC_KERNELS_TARGETS_H_
