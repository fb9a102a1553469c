// The floating-point state in which a call computes.
#ifndef FOVEA_EMBEDDED_FP_STATE_H_
#define FOVEA_EMBEDDED_FP_STATE_H_

#include "fovea/embedded/load.h"

#ifdef FOVEA_EMBEDDED_DEFAULT_FP_STATE
#if !defined(__SSE2_MATH__) && !defined(__aarch64__) && !(defined(__arm__) && defined(__ARM_FP))
#error "FOVEA_EMBEDDED_DEFAULT_FP_STATE: the state of this processor is not known"
#endif
#endif

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

#ifdef FOVEA_EMBEDDED_DEFAULT_FP_STATE

// Puts the thread into the default state (to nearest, nothing flushed or trapped), and back into
// its own at the end, flags included.
class ScopedFpState {
 public:
  ScopedFpState(const ScopedFpState&) = delete;
  ScopedFpState& operator=(const ScopedFpState&) = delete;

#if defined(__SSE2_MATH__)
  ScopedFpState() : control_(_mm_getcsr()) { _mm_setcsr(0x1F80u); }  // all exceptions masked
  ~ScopedFpState() { _mm_setcsr(control_); }

 private:
  unsigned control_;
#elif defined(__aarch64__)
  ScopedFpState() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(control_) : : "memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags_) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~ScopedFpState() {
    __asm__ volatile("msr fpcr, %0" : : "r"(control_) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(flags_) : "memory");
  }

 private:
  uint64_t control_, flags_;
#elif defined(__arm__)
  ScopedFpState() {
    __asm__ volatile("vmrs %0, fpscr" : "=r"(control_) : : "memory");
    __asm__ volatile("vmsr fpscr, %0" : : "r"(0) : "memory");
  }
  ~ScopedFpState() { __asm__ volatile("vmsr fpscr, %0" : : "r"(control_) : "memory"); }

 private:
  uint32_t control_;
#endif
};

#else

// The caller's state is taken as it is.
struct ScopedFpState {
  ScopedFpState() {}
};

#endif

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_FP_STATE_H_
