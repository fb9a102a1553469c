// The floating-point state in which Fovea computes, whatever the caller's is: to nearest, nothing
// trapped, nothing flushed to zero. The same bits then come out of every thread of every host, and
// no flag that kernels raise is seen outside. Knows no attention.
#ifndef FOVEA_SRC_FLOAT_STATE_H_
#define FOVEA_SRC_FLOAT_STATE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if !defined(__aarch64__) && !defined(__wasm__)
#include <cfenv>
#endif

namespace fovea {

// Puts the calling thread into the default state, and back into its own at the end, flags included.
// Registers are written only where they differ. For InDefaultFloatState alone.
class DefaultFloatState {
 public:
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

#if defined(__x86_64__)
  // MXCSR rules Fovea's own arithmetic. x87 rules what the C library says of the state, and long
  // double in a caller's score function: where it is as usual, it is left alone.
  DefaultFloatState() noexcept : mxcsr_(_mm_getcsr()) {
    uint16_t x87;
    asm volatile("fnstcw %0" : "=m"(x87) : : "memory");
    x87_differs_ = (x87 & kX87Bits) != kX87Default;
    if (x87_differs_) {
      std::fegetenv(&caller_);
      std::fesetenv(FE_DFL_ENV);
    }
    if ((mxcsr_ & kMxcsrBits) != kMxcsrDefault) _mm_setcsr(kMxcsrDefault);
  }
  ~DefaultFloatState() {
    asm volatile("" : : : "memory");  // what reads memory alone is not moved behind it either
    if (x87_differs_) std::fesetenv(&caller_);
    if (_mm_getcsr() != mxcsr_) _mm_setcsr(mxcsr_);
  }

 private:
  static constexpr uint32_t kMxcsrDefault = 0x1f80;  // all exceptions masked
  static constexpr uint32_t kMxcsrBits = 0xffc0;     // flush to zero, rounding, masks, DAZ
  static constexpr int kX87Default = 0x003f;         // all exceptions masked
  static constexpr int kX87Bits = 0x0c3f;  // rounding and masks; precision is the system's
  const uint32_t mxcsr_;
  bool x87_differs_;
  std::fenv_t caller_;
#elif defined(__aarch64__)
  // By default FPCR is 0: of RMode, FZ, FZ16, DN, AHP, AH, FIZ, NEP, EBF and the traps.
  DefaultFloatState() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(control_) : : "memory");
    asm volatile("mrs %0, fpsr" : "=r"(flags_) : : "memory");
    if (control_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~DefaultFloatState() {
    uint64_t flags;
    if (control_ != 0) asm volatile("msr fpcr, %0" : : "r"(control_) : "memory");
    asm volatile("mrs %0, fpsr" : "=r"(flags) : : "memory");
    if (flags != flags_) asm volatile("msr fpsr, %0" : : "r"(flags_) : "memory");
  }

 private:
  uint64_t control_, flags_;
#elif defined(__wasm__)
  // There is one state, and it has no flags.
  DefaultFloatState() noexcept {}
  ~DefaultFloatState() {}
#else
  // On 32-bit x86 the C library's environment is that of x87 and MXCSR both.
  DefaultFloatState() noexcept {
    std::fegetenv(&caller_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatState() { std::fesetenv(&caller_); }

 private:
  std::fenv_t caller_;
#endif
};

namespace internal {
template <class F>
__attribute__((noinline)) auto CallOutOfLine(const F& f) {
  return f();
}
}  // namespace internal

// f() in the default state. Compilers may move arithmetic across a change of the state, but not a
// call that reads or writes memory: f is called as a function of its own, on captures that they
// must take to be read there.
template <class F>
auto InDefaultFloatState(const F& f) {
  const DefaultFloatState state;
  const F* called = &f;
  asm volatile("" : "+r"(called) : : "memory");
  return internal::CallOutOfLine(*called);
}

}  // namespace fovea

#endif  // FOVEA_SRC_FLOAT_STATE_H_
