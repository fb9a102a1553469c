// The limits of the machine: every loop runs and yields a rate.
#include "measure/roofline.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fovea::measure {
namespace {

TEST(RooflineTest, MeasuresTheBaseline) {
#if defined(__x86_64__)
  const Target baseline = Target::kSse2;
#else
  const Target baseline = Target::kNeon;
#endif
  EXPECT_GT(ProductGflops(baseline, Product::kF32).median, 0);
  EXPECT_EQ(ProductGflops(baseline, Product::kBF16).median, 0) << "emulated";
  for (const Target target : UsableTargets()) {
    EXPECT_GT(ProductGflops(target, Product::kF32).median, 0) << Name(target);
    if (target == Target::kAvx512Amx || target == Target::kAvx512Bf16 ||
        target == Target::kNeonBf16) {
      EXPECT_GT(ProductGflops(target, Product::kBF16).median, 0) << Name(target);
    }
  }
  EXPECT_GT(ExpGeps(baseline).median, 0);
  const HugeBuffer buffer(size_t{4} << 20);
  ASSERT_NE(buffer.data(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size_t{2} << 20), 0u);
  EXPECT_GT(ReadGbps(buffer.data(), buffer.bytes()).median, 0);
  EXPECT_EQ(ReadGbps(nullptr, 100).median, 0);
}

}  // namespace
}  // namespace fovea::measure
