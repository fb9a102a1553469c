// Floating-point states that a host may be in when it calls.
#ifndef FOVEA_TESTS_SUPPORT_FLOAT_STATES_H_
#define FOVEA_TESTS_SUPPORT_FLOAT_STATES_H_

#include <cfenv>
#include <cstdint>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace fovea::test {

struct FloatState {
  const char* name;
  bool (*enter)();  // false where this machine has no such state
};

// Sets bits of the register that rules arithmetic.
inline bool SetControlBits([[maybe_unused]] uint64_t x86, [[maybe_unused]] uint64_t arm) {
#if defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | static_cast<uint32_t>(x86));
  return x86 != 0;
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | arm));
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return arm != 0 && (control & arm) == arm;  // a machine may lack some
#else
  return false;
#endif
}

template <int kRounding>
bool Round() {
  return std::fesetround(kRounding) == 0;
}

// As solvers do that look for the operation that went wrong.
inline bool TrapEverything() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() & ~0x1f80u);
  return true;
#elif defined(__GLIBC__) && (defined(__i386__) || defined(__powerpc__))
  std::feclearexcept(FE_ALL_EXCEPT);  // x87 traps at once if one is raised already
  return feenableexcept(FE_ALL_EXCEPT) != -1;
#else
  return false;
#endif
}

inline std::vector<FloatState> FloatStates() {
  return {
#ifdef FE_UPWARD
      {"upward", Round<FE_UPWARD>},
      {"downward", Round<FE_DOWNWARD>},
      {"toward zero", Round<FE_TOWARDZERO>},
#endif
      {"flush to zero", [] { return SetControlBits(0x8000, 1 << 24); }},
      {"subnormals are zeros", [] { return SetControlBits(0x0040, 0); }},
      {"both", [] { return SetControlBits(0x8040, 0); }},
      {"default NaN", [] { return SetControlBits(0, 1 << 25); }},
      {"flush f16", [] { return SetControlBits(0, 1 << 19); }},
      {"alternative f16", [] { return SetControlBits(0, 1 << 26); }},
      {"traps", TrapEverything},
  };
}

// All of the calling thread's state, flags included, as far as this machine's registers are known.
inline std::vector<uint64_t> FloatRegisters() {
#if defined(__x86_64__)
  return {_mm_getcsr()};
#elif defined(__aarch64__)
  uint64_t control, flags;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("mrs %0, fpsr" : "=r"(flags));
  return {control, flags};
#else
  std::vector<uint64_t> registers = {static_cast<uint64_t>(std::fegetround()),
                                     static_cast<uint64_t>(std::fetestexcept(FE_ALL_EXCEPT))};
#if defined(__SSE__)
  registers.push_back(_mm_getcsr());
#endif
  return registers;
#endif
}

// In `state` for as long as this lives, with no flag raised but, where nothing traps, one. Look at
// `entered` first.
class InState {
 public:
  explicit InState(const FloatState& state) {
    std::fegetenv(&before_);
    std::feclearexcept(FE_ALL_EXCEPT);
#ifdef FE_DIVBYZERO
    std::feraiseexcept(FE_DIVBYZERO);
#endif
    entered = state.enter();
    registers_ = FloatRegisters();
  }
  ~InState() { std::fesetenv(&before_); }
  // Nothing has changed since.
  bool Unchanged() const { return FloatRegisters() == registers_; }

  bool entered;

 private:
  std::fenv_t before_;
  std::vector<uint64_t> registers_;
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_FLOAT_STATES_H_
