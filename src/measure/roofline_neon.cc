// AArch64 loops of the roofline; what roofline_x86.cc says holds here.
#if defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include "measure/roofline_loops.h"

namespace fovea::measure {
namespace {

// 24 sums cover a latency of four cycles on four pipes with room to spare; v30 and v31 are the
// factors.
#define FOVEA_ZERO(r) "movi v" #r ".4s, #0\n\t"
// clang-format off
#define FOVEA_0_TO_11(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define FOVEA_12_TO_23(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define FOVEA_0_TO_23(X) FOVEA_0_TO_11(X) FOVEA_12_TO_23(X)
// clang-format on
#define FOVEA_LOOP_NEON(STEP)                                                                      \
  __asm__ volatile(                                                                                \
      FOVEA_0_TO_23(FOVEA_ZERO) FOVEA_ZERO(30)                                                     \
          FOVEA_ZERO(31) ".p2align 5\n1:\n\t" FOVEA_0_TO_23(STEP) "subs %0, %0, #1\n\tb.ne 1b\n\t" \
      : "+r"(iterations)                                                                           \
      :                                                                                            \
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",     \
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31")
#define FOVEA_STEP(r) "fmla v" #r ".4s, v30.4s, v31.4s\n\t"
void MultiplyAddNeon(int64_t iterations) { FOVEA_LOOP_NEON(FOVEA_STEP); }
#undef FOVEA_STEP
// BFDOT by its encoding: assemblers know the name only where the build's baseline has the
// instruction. Vd in bits 0, Vn (v31) in bits 5, Vm (v30) in bits 16.
#define FOVEA_STEP(r) ".inst 0x6e5effe0 + " #r "\n\t"
void DotBF16Neon(int64_t iterations) { FOVEA_LOOP_NEON(FOVEA_STEP); }
#undef FOVEA_STEP
#undef FOVEA_LOOP_NEON
#undef FOVEA_0_TO_23
#undef FOVEA_ZERO

// exp(x) = 2^n · 2^f with n = round(x·log2 e), the polynomial in f with the coefficients ln(2)^k /
// k!. Good for timing, not for use.
constexpr float kCoefficient[7] = {1.0f,           0.693147181f,   0.240226507f,   0.0555041087f,
                                   0.00961812911f, 0.00133335581f, 0.000154035304f};

inline float32x4_t Exp(float32x4_t x) {
  const float32x4_t y = vmulq_n_f32(x, 1.44269504f);
  const int32x4_t n = vcvtnq_s32_f32(y);
  const float32x4_t f = vsubq_f32(y, vcvtq_f32_s32(n));
  float32x4_t p = vdupq_n_f32(kCoefficient[6]);
  for (int i = 5; i >= 0; --i) p = vfmaq_f32(vdupq_n_f32(kCoefficient[i]), p, f);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(n, 23)));
}

// Eight independent vectors an iteration hide the latency of the polynomial; the empty assembly
// keeps inputs unknown and results alive.
constexpr int kExpVectors = 8;
void ExpNeon(int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    float32x4_t x[kExpVectors];
    for (auto& v : x) v = vdupq_n_f32(-0.7f);
    __asm__ volatile(""
                     : "+w"(x[0]), "+w"(x[1]), "+w"(x[2]), "+w"(x[3]), "+w"(x[4]), "+w"(x[5]),
                       "+w"(x[6]), "+w"(x[7]));
    for (auto& v : x) v = Exp(v);
    __asm__ volatile(""
                     :
                     : "w"(x[0]), "w"(x[1]), "w"(x[2]), "w"(x[3]), "w"(x[4]), "w"(x[5]), "w"(x[6]),
                       "w"(x[7]));
  }
}

// As Linux tells programs: bit 14 of the second word of capabilities is BF16.
bool HasBF16() { return (getauxval(AT_HWCAP2) & (1ul << 14)) != 0; }

bool IsNeon(Target target) {
  return target == Target::kNeonBf16 || target == Target::kNeon || target == Target::kEmu128;
}

}  // namespace

Loop MultiplyAddLoop(Target target) {
  if (IsNeon(target)) return {MultiplyAddNeon, 24 * 4 * 2};
  return {};
}

Loop DotBF16Loop(Target target) {
  return target == Target::kNeonBf16 && HasBF16() ? Loop{DotBF16Neon, 24 * 4 * 4} : Loop{};
}

Loop ExpLoop(Target target) {
  if (IsNeon(target)) return {ExpNeon, kExpVectors * 4};
  return {};
}

void ReadAscending(const char* data, size_t bytes) {
  if (bytes == 0) return;
  const char* const end = data + bytes;
  __asm__ volatile(
      "1:\n\t"
      "ldp q0, q1, [%0]\n\t ldp q2, q3, [%0, #32]\n\t ldp q4, q5, [%0, #64]\n\t ldp q6, q7, [%0, "
      "#96]\n\t"
      "add %0, %0, #128\n\t cmp %0, %1\n\t b.lo 1b\n\t"
      : "+r"(data)
      : "r"(end)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
}

}  // namespace fovea::measure

#endif  // __aarch64__
