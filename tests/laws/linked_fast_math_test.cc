// A program linked with -ffast-math: before main it turns on, for itself and all of its threads,
// what flushes subnormal numbers to zero. Results are those of any other program.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "support/check.h"
#include "support/float_states.h"
#ifdef FOVEA_TEST_TBB
#include "fovea/tbb.h"
#endif

namespace fovea {
namespace {

constexpr float kTiny = 0x1.8p-127f;

// Comparing floats would flush them.
uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

TEST(LinkedFastMathTest, SubnormalNumbersAreNotFlushed) {
#if defined(__x86_64__) && defined(__linux__)
  volatile float tiny = kTiny;
  const float product = tiny * 1.0f;
  ASSERT_EQ(product, 0) << "this program does not flush, and so shows nothing";
#endif
  // Four equal keys: sums and quotients of four are exact.
  const int64_t Hq = 3, Tq = 17, Tk = 4, d = 5;
  const std::vector<float> q(Hq * Tq * d, 1.0f), k(Hq * Tk * d, 1.0f), v(Hq * Tk * d, kTiny);
  std::vector<float> out(q.size()), lse(Hq * Tq);
  Problem p;
  p.q = View(q.data(), {1, Hq, Tq, d});
  p.k = View(k.data(), {1, Hq, Tk, d});
  p.v = View(v.data(), {1, Hq, Tk, d});
  p.out = View(out.data(), {1, Hq, Tq, d});
  p.lse = View(lse.data(), {1, Hq, Tq});
  std::vector<Executor*> executors = {&SerialExecutor()};
#ifdef FOVEA_TEST_TBB
  const std::unique_ptr<Executor> tbb = MakeTbbExecutor(2);
  executors.push_back(tbb.get());
#endif
  for (const test::Kernel& kernel : test::Kernels()) {
    for (Executor* executor : executors) {
      out.assign(out.size(), 0);
      const std::vector<uint64_t> before = test::FloatRegisters();
      ASSERT_TRUE(Attention(p, test::Options(kernel), *executor).ok());
      ASSERT_EQ(test::FloatRegisters(), before)
          << ToString(kernel) << " on " << executor->Workers();
      for (float x : out) ASSERT_EQ(Bits(x), Bits(kTiny)) << ToString(kernel);
    }
  }
  const PartialState part = {p.out, p.lse}, parts[] = {part, part};
  ASSERT_TRUE(Merge(parts, 2, p.out, p.lse).ok());
  for (float x : out) ASSERT_EQ(Bits(x), Bits(kTiny));
}

}  // namespace
}  // namespace fovea
