#include "bench/timing.h"

#include <algorithm>
#include <vector>

#include "bench/clock.h"

namespace fovea::bench {
namespace {

constexpr double kWarmUpSeconds = 0.05;  // clocks rise and wide units wake within milliseconds
constexpr size_t kEnoughRuns = 10, kFewestRuns = 3;
constexpr double kPatience = 4;        // in units of TimingOptions::seconds
constexpr double kNoisySpread = 1.25;  // median over minimum

}  // namespace

Timing Measure(const TimingOptions& options, const std::function<void(int64_t)>& run) {
  int64_t index = options.first_index;
  const double warm_up = WallSeconds();
  do run(index++);
  while (WallSeconds() - warm_up < std::min(kWarmUpSeconds, options.seconds));

  std::vector<double> owned, all;
  for (const double start = WallSeconds();;) {
    const double wall = WallSeconds(), cpu = ThreadSeconds();
    run(index++);
    const double wall_s = WallSeconds() - wall, cpu_s = ThreadSeconds() - cpu;
    all.push_back(options.threads > 1 ? wall_s : cpu_s);
    if (options.threads > 1 || cpu_s >= kOwnedShare * wall_s) owned.push_back(wall_s);
    const double elapsed = WallSeconds() - start;
    if (owned.size() >= kEnoughRuns && elapsed >= options.seconds) break;
    if (elapsed >= kPatience * options.seconds && all.size() >= kFewestRuns) break;
  }

  Timing timing;
  timing.dropped = static_cast<int>(all.size() - owned.size());
  timing.noisy = owned.size() < kFewestRuns;
  std::vector<double>& runs = timing.noisy ? all : owned;
  std::sort(runs.begin(), runs.end());
  timing.runs = static_cast<int>(runs.size());
  timing.median_s = runs[runs.size() / 2];
  timing.min_s = runs[0];
  timing.noisy |= timing.median_s > kNoisySpread * timing.min_s;
  return timing;
}

}  // namespace fovea::bench
