// The namespace of the instruction set that a unit is compiled for. Everything of the header-only
// edition lies in it, so that a program may hold units for different ones: without it the linker
// would keep the functions of one of them for all.
#ifndef FOVEA_EMBEDDED_ISA_H_
#define FOVEA_EMBEDDED_ISA_H_

#if defined(__AVX512F__)
#define FOVEA_EMBEDDED_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define FOVEA_EMBEDDED_ISA avx2_fma
#elif defined(__AVX2__)
#define FOVEA_EMBEDDED_ISA avx2
#elif defined(__AVX__)
#define FOVEA_EMBEDDED_ISA avx
#elif defined(__SSE4_1__)
#define FOVEA_EMBEDDED_ISA sse4
#elif defined(__SSE2__)
#define FOVEA_EMBEDDED_ISA sse2
#elif defined(__aarch64__)
#define FOVEA_EMBEDDED_ISA neon64
#else
#define FOVEA_EMBEDDED_ISA other
#endif

#endif  // FOVEA_EMBEDDED_ISA_H_
