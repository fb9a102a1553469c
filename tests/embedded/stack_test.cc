// The stack that the header-only edition uses of its own.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "embedded/support.h"
#include "support/random.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)  // as Clang says it
#define FOVEA_TEST_HAS_LARGE_FRAMES
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FOVEA_TEST_HAS_LARGE_FRAMES
#endif

#if defined(__linux__) && defined(__OPTIMIZE__) && !defined(FOVEA_TEST_HAS_LARGE_FRAMES)
#include <ucontext.h>

namespace fovea::test {
namespace {

// A call on a stack of its own that is full of a pattern.
struct Call {
  ucontext_t caller, callee;
  embedded::Problem problem;
  std::vector<char> scratch;
  bool is_empty = true;  // returns at once
  Error error = Error::kOk;
} call;

void Enter() {
  if (!call.is_empty)
    call.error = Attention(Instance(), call.problem, call.scratch.data(), call.scratch.size());
}

// The bytes of it that a call has written to.
size_t StackBytes(bool is_empty) {
  constexpr unsigned char kPattern = 0xA5;
  std::vector<unsigned char> stack(size_t{1} << 18, kPattern);
  call.is_empty = is_empty;
  getcontext(&call.callee);
  call.callee.uc_stack.ss_sp = stack.data();
  call.callee.uc_stack.ss_size = stack.size();
  call.callee.uc_link = &call.caller;
  makecontext(&call.callee, Enter, 0);
  swapcontext(&call.caller, &call.callee);
  size_t untouched = 0;
  while (untouched < stack.size() && stack[untouched] == kPattern) ++untouched;
  return stack.size() - untouched;
}

TEST_F(Embedded, StackStaysBelow4KiB) {
  for (int64_t Tq : {1, 4, 20, 200}) {
    for (bool has_everything : {false, true}) {
      ProblemSpec spec;
      spec.Hq = 2, spec.Tq = Tq, spec.Tk = 1200, spec.dk = 70, spec.dv = 75;
      if (has_everything) {
        spec.bias = Axes::kHQK, spec.bias_type = DType::kF16, spec.bias_scales = true;
        spec.head_scales = true, spec.causal = Causal::kBottomRight, spec.window.left = 500;
        spec.q_type = spec.k_type = spec.v_type = spec.out_type = DType::kF16;
        spec.key_ranges = DType::kI32, spec.kv_lengths = spec.q_lengths = DType::kI32;
      }
      RandomProblem p(spec, BaseSeed());
      if (has_everything) p.v.SetAt({0, 0, 700, 3}, kNan);
      const auto converted = Convert(p.problem);
      call.problem = converted->problem;
      call.scratch.resize(Instance().scratch_bytes(70, 75, 2 * Tq));
      const size_t around = StackBytes(true);
      const size_t bytes = StackBytes(false) - around;
      ASSERT_EQ(call.error, Error::kOk);
      EXPECT_LT(bytes, 4096u) << Tq << " queries";
      RecordProperty("bytes", static_cast<int>(bytes));
    }
  }
}

}  // namespace
}  // namespace fovea::test

#endif
