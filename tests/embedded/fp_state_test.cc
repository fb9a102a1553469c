// The floating-point state around a call of the header-only edition: with
// FOVEA_EMBEDDED_DEFAULT_FP_STATE no state of the caller changes a bit, and the caller finds his
// own again; without it one that does not round to nearest is refused.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <string>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fovea::test {
namespace {

// All of the control and status bits, as they stand.
struct State {
  uint64_t control = 0, flags = 0;
  bool operator==(const State& other) const {
    return control == other.control && flags == other.flags;
  }
};
State GetState() {
  State state;
#if defined(__x86_64__)
  state.control = _mm_getcsr();
#elif defined(__aarch64__)
  asm volatile("mrs %0, fpcr" : "=r"(state.control));
  asm volatile("mrs %0, fpsr" : "=r"(state.flags));
#endif
  return state;
}
void SetState(const State& state) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(state.control));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(state.control));
  asm volatile("msr fpsr, %0" : : "r"(state.flags));
#endif
}

struct Named {
  const char* name;
  State state;
  bool rounds_to_nearest;
};
std::vector<Named> States() {
#if defined(__x86_64__)
  return {
      {"upward", {0x1F80 | _MM_ROUND_UP, 0}, false},
      {"downward", {0x1F80 | _MM_ROUND_DOWN, 0}, false},
      {"toward zero", {0x1F80 | _MM_ROUND_TOWARD_ZERO, 0}, false},
      {"flushed", {0x1F80 | _MM_FLUSH_ZERO_ON | 0x40, 0}, true},
      // invalid operations, divisions by zero and overflows trap
      {"trapped", {0x1F80 & ~(_MM_MASK_INVALID | _MM_MASK_DIV_ZERO | _MM_MASK_OVERFLOW), 0}, true},
      {"flags", {0x1F80 | _MM_EXCEPT_INVALID | _MM_EXCEPT_UNDERFLOW, 0}, true},
  };
#elif defined(__aarch64__)
  return {
      {"upward", {1u << 22, 0}, false},      {"downward", {2u << 22, 0}, false},
      {"toward zero", {3u << 22, 0}, false}, {"flushed", {1u << 24, 0}, true},
      {"default NaN", {1u << 25, 0}, true},  {"flags", {0, 0x9}, true},
  };
#else
  return {};
#endif
}

// Ordinary inputs in every corner: removed pairs, empty rows, biases of −inf, values that are
// subnormal.
std::vector<RandomProblem> Problems() {
  std::vector<RandomProblem> problems;
  for (int64_t Tq : {1, 4, 40}) {
    for (bool removes : {false, true}) {
      ProblemSpec spec;
      spec.B = 2, spec.Hq = 4, spec.Hkv = 2, spec.Tq = Tq, spec.Tk = 150, spec.dk = 24,
      spec.dv = 19;
      if (removes) {
        spec.bias = Axes::kHQK, spec.bias_removes = 0.4, spec.bias_scales = true;
        spec.causal = Causal::kTopLeft, spec.query_offset = -2, spec.window.left = 90;
        spec.kv_lengths = spec.q_lengths = DType::kI32;
        spec.k_type = spec.v_type = DType::kF16;
      }
      problems.emplace_back(spec, BaseSeed());
      if (!removes) {
        // scores far below the largest, and products with V below the normal numbers
        OwnedTensor &k = problems.back().k, &v = problems.back().v;
        for (int64_t n = 0; n < k.size(); n += 3) k.Set(n, 20 * k.Get(n));
        for (int64_t n = 0; n < v.size(); n += 2) v.Set(n, 1e-38 * v.Get(n));
      }
    }
  }
  return problems;
}

// The bytes of scratch and the problem are made before the state changes.
Error ComputeIn(const EmbeddedInstance& instance, const State& state, RandomProblem& p,
                State* behind) {
  p.ResetOutputs();
  const auto converted = Convert(p.problem);
  std::vector<unsigned char> scratch(
      instance.scratch_bytes(
          converted->problem.dk, converted->problem.dv,
          converted->problem.Tq * (converted->problem.Hq / converted->problem.Hkv)),
      0xFF);
  const State own = GetState();
  SetState(state);
  const Error error = Attention(instance, converted->problem, scratch.data(), scratch.size());
  *behind = GetState();
  SetState(own);
  return error;
}

TEST_F(Embedded, UnderTheMacroNoStateChangesABit) {
  for (RandomProblem& p : Problems()) {
    ASSERT_EQ(Compute(Convert(p.problem)->problem), Error::kOk);
    const std::vector<unsigned char> out = p.out.Bytes(), lse = p.lse.Bytes();
    for (const Named& named : States()) {
      State behind;
      ASSERT_EQ(ComputeIn(kEmbeddedInDefaultState, named.state, p, &behind), Error::kOk);
      EXPECT_TRUE(p.out.Bytes() == out && p.lse.Bytes() == lse) << named.name;
      EXPECT_TRUE(behind == named.state) << named.name << " is not put back";
    }
  }
}

TEST_F(Embedded, WithoutTheMacroOnlyToNearestWillDo) {
  for (RandomProblem& p : Problems()) {
    p.ResetOutputs();
    const std::vector<unsigned char> untouched = p.out.Bytes();
    for (const Named& named : States()) {
#if defined(__clang__)
      // Clang computes ahead what a condition may leave out: that may trap.
      if (std::string(named.name) == "trapped") continue;
#endif
      State behind;
      const Error error = ComputeIn(Instance(), named.state, p, &behind);
      EXPECT_EQ(error, named.rounds_to_nearest ? Error::kOk : Error::kArithmetic) << named.name;
      if (error != Error::kOk) {
        EXPECT_TRUE(p.out.Bytes() == untouched) << named.name;
      }
    }
  }
}

TEST_F(Embedded, OrdinaryInputRaisesNoFlag) {
#if defined(__clang__)
  GTEST_SKIP() << "Clang computes ahead what a condition may leave out: that may raise flags";
#endif
  for (RandomProblem& p : Problems()) {
    p.ResetOutputs();
    const auto converted = Convert(p.problem);
    std::feclearexcept(FE_ALL_EXCEPT);
    ASSERT_EQ(Compute(converted->problem), Error::kOk);
    EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW), 0) << ToString(p.spec);
  }
}

}  // namespace
}  // namespace fovea::test
