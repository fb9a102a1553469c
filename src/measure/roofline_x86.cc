// x86-64 loops of the roofline. Registers are named in assembly where a compiler could spill, fold
// or reorder: the numbers must not depend on it. Function attributes, not build flags, turn
// instruction sets on, and every loop checks the CPU first.
#if defined(__x86_64__)

#include <immintrin.h>
#if defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "measure/roofline_loops.h"

namespace fovea::measure {
namespace {

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }
// With permission to use the tiles, which Linux wants to be asked for.
bool HasAmx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  constexpr unsigned kBF16AndTiles = 1u << 22 | 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBF16AndTiles) != kBF16AndTiles)
    return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// clang-format off
#define FOVEA_0_TO_6(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6)
#define FOVEA_7_TO_13(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define FOVEA_14_TO_23(X) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
// clang-format on
#define FOVEA_CLOBBERS_16                                                                        \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define FOVEA_CLOBBERS_32                                                                    \
  FOVEA_CLOBBERS_16, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", \
      "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

// 24 sums hide the latency of four cycles on two ports three times over; 30 and 31 are the factors.
#define FOVEA_ZERO(r) "vpxord %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n\t"
#define FOVEA_LOOP_AVX512(STEP) \
  __asm__ volatile( \
      FOVEA_0_TO_6(FOVEA_ZERO) FOVEA_7_TO_13(FOVEA_ZERO) FOVEA_14_TO_23(FOVEA_ZERO) \
      FOVEA_ZERO(30) FOVEA_ZERO(31) \
      ".p2align 5\n1:\n\t" \
      FOVEA_0_TO_6(STEP) FOVEA_7_TO_13(STEP) FOVEA_14_TO_23(STEP) \
      "dec %0\n\tjnz 1b\n\t" \
      "vzeroupper\n\t" \
      : "+r"(iterations) \
      : \
      : FOVEA_CLOBBERS_32)
#define FOVEA_STEP(r) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #r "\n\t"
__attribute__((target("avx512f,avx512vl"))) void MultiplyAddAvx512(int64_t iterations) {
  FOVEA_LOOP_AVX512(FOVEA_STEP);
}
#undef FOVEA_STEP
#define FOVEA_STEP(r) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #r "\n\t"
__attribute__((target("avx512f,avx512vl"))) void DotBF16Avx512(int64_t iterations) {
  FOVEA_LOOP_AVX512(FOVEA_STEP);
}
#undef FOVEA_STEP
#undef FOVEA_LOOP_AVX512
#undef FOVEA_ZERO

// Six sums and two factors are all eight tiles.
void DotBF16Amx(int64_t iterations) {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  __asm__ volatile(
      "ldtilecfg %1\n\t"
      "tilezero %%tmm0\n\t tilezero %%tmm1\n\t tilezero %%tmm2\n\t tilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\t tilezero %%tmm5\n\t tilezero %%tmm6\n\t tilezero %%tmm7\n\t"
      ".p2align 5\n1:\n\t"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n\t tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n\t tdpbf16ps %%tmm7, "
      "%%tmm6, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n\t tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n\t tdpbf16ps %%tmm7, "
      "%%tmm6, %%tmm5\n\t"
      "dec %0\n\tjnz 1b\n\t"
      "tilerelease\n\t"
      : "+r"(iterations)
      : "m"(configuration)
      : "cc");
}

// 14 sums and two factors are all sixteen registers.
__attribute__((target("avx2,fma"))) void MultiplyAddAvx2(int64_t iterations) {
#define FOVEA_ZERO(r) "vxorps %%ymm" #r ", %%ymm" #r ", %%ymm" #r "\n\t"
#define FOVEA_STEP(r) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #r "\n\t"
  __asm__ volatile(
      // clang-format off
      FOVEA_0_TO_6(FOVEA_ZERO) FOVEA_7_TO_13(FOVEA_ZERO) FOVEA_ZERO(14) FOVEA_ZERO(15)
      ".p2align 5\n1:\n\t"
      FOVEA_0_TO_6(FOVEA_STEP) FOVEA_7_TO_13(FOVEA_STEP)
      "dec %0\n\tjnz 1b\n\t"
      "vzeroupper\n\t"
      // clang-format on
      : "+r"(iterations)
      :
      : FOVEA_CLOBBERS_16);
#undef FOVEA_STEP
#undef FOVEA_ZERO
}

// Seven products and seven sums, independent of each other, interleaved; all values stay zero.
void MultiplyAddSse(int64_t iterations) {
#define FOVEA_ZERO(r) "xorps %%xmm" #r ", %%xmm" #r "\n\t"
#define FOVEA_STEP(product, sum) \
  "mulps %%xmm14, %%xmm" #product "\n\taddps %%xmm15, %%xmm" #sum "\n\t"
  __asm__ volatile(
      // clang-format off
      FOVEA_0_TO_6(FOVEA_ZERO) FOVEA_7_TO_13(FOVEA_ZERO) FOVEA_ZERO(14) FOVEA_ZERO(15)
      ".p2align 5\n1:\n\t"
      FOVEA_STEP(0, 7) FOVEA_STEP(1, 8) FOVEA_STEP(2, 9) FOVEA_STEP(3, 10)
      FOVEA_STEP(4, 11) FOVEA_STEP(5, 12) FOVEA_STEP(6, 13)
      "dec %0\n\tjnz 1b\n\t"
      // clang-format on
      : "+r"(iterations)
      :
      : FOVEA_CLOBBERS_16);
#undef FOVEA_STEP
#undef FOVEA_ZERO
}

// exp(x) = 2^n · 2^f with n = round(x·log2 e), the polynomial in f with the coefficients ln(2)^k /
// k!. Good for timing, not for use.
constexpr float kLog2E = 1.44269504f;
constexpr float kCoefficient[7] = {1.0f,           0.693147181f,   0.240226507f,   0.0555041087f,
                                   0.00961812911f, 0.00133335581f, 0.000154035304f};

// The masked forms, all lanes on: GCC 12 warns of an uninitialised value inside the plain ones (GCC
// bug 105593; delete with GCC 12).
__attribute__((target("avx512f"), always_inline)) inline __m512 Exp(__m512 x) {
  constexpr __mmask16 kAll = 0xffff;
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(kLog2E));
  const __m512 n = _mm512_maskz_roundscale_ps(kAll, y, 0);
  const __m512 f = _mm512_sub_ps(y, n);
  __m512 p = _mm512_set1_ps(kCoefficient[6]);
  for (int i = 5; i >= 0; --i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kCoefficient[i]));
  return _mm512_maskz_scalef_ps(kAll, p, n);
}

__attribute__((target("avx2,fma"), always_inline)) inline __m256 Exp(__m256 x) {
  const __m256 y = _mm256_mul_ps(x, _mm256_set1_ps(kLog2E));
  const __m256i n = _mm256_cvtps_epi32(y);
  const __m256 f = _mm256_sub_ps(y, _mm256_cvtepi32_ps(n));
  __m256 p = _mm256_set1_ps(kCoefficient[6]);
  for (int i = 5; i >= 0; --i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kCoefficient[i]));
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
}

__attribute__((always_inline)) inline __m128 Exp(__m128 x) {
  const __m128 y = _mm_mul_ps(x, _mm_set1_ps(kLog2E));
  const __m128i n = _mm_cvtps_epi32(y);
  const __m128 f = _mm_sub_ps(y, _mm_cvtepi32_ps(n));
  __m128 p = _mm_set1_ps(kCoefficient[6]);
  for (int i = 5; i >= 0; --i) p = _mm_add_ps(_mm_mul_ps(p, f), _mm_set1_ps(kCoefficient[i]));
  return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(p), _mm_slli_epi32(n, 23)));
}

// Four independent vectors an iteration hide the latency of the polynomial; the empty assembly
// keeps inputs unknown and results alive.
constexpr int kExpVectors = 4;
#define FOVEA_EXP_LOOP(x0)                                     \
  auto x = x0;                                                 \
  for (int64_t i = 0; i < iterations; ++i) {                   \
    auto a = x, b = x, c = x, d = x;                           \
    __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d)); \
    a = Exp(a), b = Exp(b), c = Exp(c), d = Exp(d);            \
    __asm__ volatile("" : : "v"(a), "v"(b), "v"(c), "v"(d));   \
  }
__attribute__((target("avx512f"))) void ExpAvx512(int64_t iterations) {
  FOVEA_EXP_LOOP(_mm512_set1_ps(-0.7f))
}
__attribute__((target("avx2,fma"))) void ExpAvx2(int64_t iterations) {
  FOVEA_EXP_LOOP(_mm256_set1_ps(-0.7f))
}
void ExpSse(int64_t iterations) { FOVEA_EXP_LOOP(_mm_set1_ps(-0.7f)) }
#undef FOVEA_EXP_LOOP

// Eight lines an iteration, in address order, which the assembly fixes: read out of order,
// prefetchers lose up to two thirds on some CPUs.
__attribute__((target("avx512f,avx512vl"))) void ReadAvx512(const char* data, const char* end) {
  __asm__ volatile(
      "1:\n\t"
      "vmovdqa64 (%0), %%zmm0\n\t vmovdqa64 64(%0), %%zmm1\n\t vmovdqa64 128(%0), %%zmm2\n\t "
      "vmovdqa64 192(%0), %%zmm3\n\t"
      "vmovdqa64 256(%0), %%zmm4\n\t vmovdqa64 320(%0), %%zmm5\n\t vmovdqa64 384(%0), %%zmm6\n\t "
      "vmovdqa64 448(%0), %%zmm7\n\t"
      "add $512, %0\n\t cmp %1, %0\n\t jb 1b\n\t vzeroupper\n\t"
      : "+r"(data)
      : "r"(end)
      : "memory", FOVEA_CLOBBERS_16);
}

__attribute__((target("avx2"))) void ReadAvx2(const char* data, const char* end) {
  __asm__ volatile(
      "1:\n\t"
      "vmovdqa (%0), %%ymm0\n\t vmovdqa 32(%0), %%ymm1\n\t vmovdqa 64(%0), %%ymm2\n\t vmovdqa "
      "96(%0), %%ymm3\n\t"
      "vmovdqa 128(%0), %%ymm4\n\t vmovdqa 160(%0), %%ymm5\n\t vmovdqa 192(%0), %%ymm6\n\t vmovdqa "
      "224(%0), %%ymm7\n\t"
      "add $256, %0\n\t cmp %1, %0\n\t jb 1b\n\t vzeroupper\n\t"
      : "+r"(data)
      : "r"(end)
      : "memory", FOVEA_CLOBBERS_16);
}

void ReadSse(const char* data, const char* end) {
  __asm__ volatile(
      "1:\n\t"
      "movaps (%0), %%xmm0\n\t movaps 16(%0), %%xmm1\n\t movaps 32(%0), %%xmm2\n\t movaps 48(%0), "
      "%%xmm3\n\t"
      "movaps 64(%0), %%xmm4\n\t movaps 80(%0), %%xmm5\n\t movaps 96(%0), %%xmm6\n\t movaps "
      "112(%0), %%xmm7\n\t"
      "add $128, %0\n\t cmp %1, %0\n\t jb 1b\n\t"
      : "+r"(data)
      : "r"(end)
      : "memory", FOVEA_CLOBBERS_16);
}

}  // namespace

Loop MultiplyAddLoop(Target target) {
  switch (target) {
    case Target::kAvx512Amx:
    case Target::kAvx512Bf16:
    case Target::kAvx512:
      return HasAvx512() ? Loop{MultiplyAddAvx512, 24 * 16 * 2} : Loop{};
    case Target::kAvx2:
      return HasAvx2() ? Loop{MultiplyAddAvx2, 14 * 8 * 2} : Loop{};
    case Target::kSse4:
    case Target::kSse2:
    case Target::kEmu128:
      return {MultiplyAddSse, 14 * 4};
    default:
      return {};
  }
}

Loop DotBF16Loop(Target target) {
  if (target == Target::kAvx512Bf16 && HasAvx512Bf16()) return {DotBF16Avx512, 24 * 16 * 4};
  if (target == Target::kAvx512Amx && HasAmx()) return {DotBF16Amx, 6 * 16 * 16 * 32 * 2};
  return {};
}

Loop ExpLoop(Target target) {
  switch (target) {
    case Target::kAvx512Amx:
    case Target::kAvx512Bf16:
    case Target::kAvx512:
      return HasAvx512() ? Loop{ExpAvx512, kExpVectors * 16} : Loop{};
    case Target::kAvx2:
      return HasAvx2() ? Loop{ExpAvx2, kExpVectors * 8} : Loop{};
    case Target::kSse4:
    case Target::kSse2:
    case Target::kEmu128:
      return {ExpSse, kExpVectors * 4};
    default:
      return {};
  }
}

void ReadAscending(const char* data, size_t bytes) {
  if (bytes == 0) return;
  if (HasAvx512()) return ReadAvx512(data, data + bytes);
  if (HasAvx2()) return ReadAvx2(data, data + bytes);
  ReadSse(data, data + bytes);
}

}  // namespace fovea::measure

#endif  // __x86_64__
