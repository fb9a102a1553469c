// Repeated runs: all of them are counted, and by a rising index.
#include "bench/timing.h"

#include <gtest/gtest.h>

namespace fovea::bench {
namespace {

TEST(TimingTest, CountsRuns) {
  int64_t calls = 0, last = -1;
  TimingOptions options;
  options.seconds = 0.01;
  const Timing timing = Measure(options, [&](int64_t index) { ++calls, last = index; });
  EXPECT_GE(timing.runs, 3);
  EXPECT_GE(timing.median_s, timing.min_s);
  EXPECT_EQ(last, calls - 1);
}

}  // namespace
}  // namespace fovea::bench
