// The namespace of the instruction set that a unit is compiled for, and of the options that change
// what the header compiles to. Everything of the header-only edition lies in it, so that a program
// may hold units for different ones: without it the linker would keep the functions of one of them
// for all.
#ifndef FOVEA_EMBEDDED_ISA_H_
#define FOVEA_EMBEDDED_ISA_H_

#if defined(__AVX512F__)
#define FOVEA_EMBEDDED_ISA_NAME avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define FOVEA_EMBEDDED_ISA_NAME avx2_fma_f16c
#elif defined(__AVX2__) && defined(__FMA__)
#define FOVEA_EMBEDDED_ISA_NAME avx2_fma
#elif defined(__AVX2__)
#define FOVEA_EMBEDDED_ISA_NAME avx2
#elif defined(__AVX__) && defined(__FMA__)
#define FOVEA_EMBEDDED_ISA_NAME avx_fma
#elif defined(__AVX__)
#define FOVEA_EMBEDDED_ISA_NAME avx
#elif defined(__SSE4_1__)
#define FOVEA_EMBEDDED_ISA_NAME sse4
#elif defined(__SSE2__)
#define FOVEA_EMBEDDED_ISA_NAME sse2
#elif defined(__aarch64__)
#define FOVEA_EMBEDDED_ISA_NAME neon64
#else
#define FOVEA_EMBEDDED_ISA_NAME other
#endif

#ifdef FOVEA_EMBEDDED_DEFAULT_FP_STATE
#define FOVEA_EMBEDDED_PASTE(name) name##_default_state
#define FOVEA_EMBEDDED_PASTE_NAME_OF(name) FOVEA_EMBEDDED_PASTE(name)
#define FOVEA_EMBEDDED_ISA FOVEA_EMBEDDED_PASTE_NAME_OF(FOVEA_EMBEDDED_ISA_NAME)
#else
#define FOVEA_EMBEDDED_ISA FOVEA_EMBEDDED_ISA_NAME
#endif

#endif  // FOVEA_EMBEDDED_ISA_H_
