// Repeated runs: all of them are counted, and by a rising index; calls that take turns, and what is
// made of their rounds.
#include "measure/timing.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "measure/clock.h"

namespace fovea::measure {
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

void Spin(double seconds) {
  for (const double start = ThreadSeconds(); ThreadSeconds() - start < seconds;) {
  }
}

TEST(TimingTest, CallsTakeTurns) {
  std::vector<int> order;  // of turns: −1 where a round begins, else the call
  std::vector<int64_t> next(3, 0);
  std::vector<std::function<void(int64_t)>> calls;
  for (int n = 0; n < 3; ++n) {
    calls.push_back([&, n](int64_t index) {
      EXPECT_EQ(index, next[static_cast<size_t>(n)]++);
      if (order.back() != n) order.push_back(n);
      Spin(n == 2 ? 4e-3 : 1e-3);
    });
  }
  TimingOptions options;
  options.seconds = 0.01;
  const Turns turns = MeasureInTurns(options, calls, [&] { order.push_back(-1); });
  ASSERT_EQ(turns.timings.size(), 3u);
  ASSERT_GE(turns.samples.size(), 3u);
  std::vector<int> expected;
  for (size_t round = 0; round < turns.samples.size(); ++round) {
    expected.insert(expected.end(), {-1, 0, 1, 2});
    EXPECT_EQ(turns.samples[round].size(), 3u);
  }
  EXPECT_EQ(order, expected);
  EXPECT_EQ(RatioOf(turns, 0, 0).median, 1);
  EXPECT_GT(RatioOf(turns, 2, 1).median, 1);
  EXPECT_GE(turns.timings[2].min_s, 4e-3);
}

TEST(TimingTest, RatiosAreOfRoundsWhereBothHadTheirCore) {
  Turns turns;
  turns.samples = {{{1, true}, {2, true}},
                   {{1, true}, {3, true}},
                   {{2, true}, {8, true}},
                   {{1, false}, {90, true}},
                   {{1, true}, {90, false}}};
  const Quartiles ratio = RatioOf(turns, 1, 0);
  EXPECT_EQ(ratio.low, 2);
  EXPECT_EQ(ratio.median, 3);
  EXPECT_EQ(ratio.high, 4);
  turns.samples[0][0].owned = false;  // two rounds are hardly any: all count
  EXPECT_EQ(RatioOf(turns, 1, 0).high, 90);
}

TEST(TimingTest, QuartilesOfFewAndMany) {
  const Quartiles one = QuartilesOf({7});
  EXPECT_EQ(one.low, 7);
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.high, 7);
  const Quartiles nine = QuartilesOf({9, 1, 8, 2, 7, 3, 6, 4, 5});
  EXPECT_EQ(nine.low, 3);
  EXPECT_EQ(nine.median, 5);
  EXPECT_EQ(nine.high, 7);
}

}  // namespace
}  // namespace fovea::measure
