#include "measure/timing.h"

#include <algorithm>

#include "measure/clock.h"

namespace fovea::measure {
namespace {

constexpr double kWarmUpSeconds = 0.05;  // clocks rise and wide units wake within milliseconds
constexpr size_t kEnoughRuns = 10, kFewestRuns = 3;
constexpr double kPatience = 4;        // in units of TimingOptions::seconds
constexpr double kNoisySpread = 1.25;  // median over minimum
// long against reading clocks, short against what a neighbour does
constexpr double kTurnSeconds = 0.01;

Sample TimeOnce(const TimingOptions& options, const std::function<void(int64_t)>& run,
                int64_t index) {
  const double wall = WallSeconds(), cpu = ThreadSeconds();
  run(index);
  const double wall_s = WallSeconds() - wall, cpu_s = ThreadSeconds() - cpu;
  const bool owned = options.threads > 1 || cpu_s >= kOwnedShare * wall_s;
  return {owned ? wall_s : cpu_s, owned};
}

size_t OwnedCount(const std::vector<Sample>& samples) {
  return static_cast<size_t>(std::count_if(samples.begin(), samples.end(),
                                           [](const Sample& sample) { return sample.owned; }));
}

// The times that count, ascending: of the runs that kept their core, or of all where fewer than
// `fewest` did.
std::vector<double> CountingTimes(const std::vector<Sample>& samples, size_t fewest) {
  const bool all = OwnedCount(samples) < fewest;
  std::vector<double> times;
  for (const Sample& sample : samples) {
    if (all || sample.owned) times.push_back(sample.seconds);
  }
  std::sort(times.begin(), times.end());
  return times;
}

Timing Summarize(const std::vector<Sample>& samples) {
  const size_t owned = OwnedCount(samples);
  const std::vector<double> times = CountingTimes(samples, kFewestRuns);
  Timing timing;
  timing.dropped = static_cast<int>(samples.size() - owned);
  timing.runs = static_cast<int>(times.size());
  timing.median_s = times[times.size() / 2];
  timing.min_s = times[0];
  timing.noisy = owned < kFewestRuns || timing.median_s > kNoisySpread * timing.min_s;
  return timing;
}

Sample TakeTurn(const TimingOptions& options, const std::function<void(int64_t)>& run,
                int64_t* index) {
  run((*index)++);
  std::vector<Sample> samples;
  const double start = WallSeconds();
  do samples.push_back(TimeOnce(options, run, (*index)++));
  while (WallSeconds() - start < kTurnSeconds);
  const std::vector<double> times = CountingTimes(samples, 1);
  return {times[times.size() / 2], OwnedCount(samples) > 0};
}

}  // namespace

Timing Measure(const TimingOptions& options, const std::function<void(int64_t)>& run) {
  int64_t index = 0;
  const double warm_up = WallSeconds();
  do run(index++);
  while (WallSeconds() - warm_up < std::min(kWarmUpSeconds, options.seconds));

  std::vector<Sample> samples;
  size_t owned = 0;
  for (const double start = WallSeconds();;) {
    samples.push_back(TimeOnce(options, run, index++));
    if (samples.back().owned) ++owned;
    const double elapsed = WallSeconds() - start;
    if (owned >= kEnoughRuns && elapsed >= options.seconds) break;
    if (elapsed >= kPatience * options.seconds && samples.size() >= kFewestRuns) break;
  }
  return Summarize(samples);
}

Turns MeasureInTurns(const TimingOptions& options,
                     const std::vector<std::function<void(int64_t)>>& calls,
                     const std::function<void()>& before_round) {
  Turns turns;
  std::vector<int64_t> indices(calls.size(), 0);
  std::vector<std::vector<Sample>> of_call(calls.size());
  const double seconds = options.seconds * static_cast<double>(calls.size());
  for (const double start = WallSeconds();;) {
    before_round();
    turns.samples.emplace_back();
    size_t fewest_owned = turns.samples.size();
    for (size_t n = 0; n < calls.size(); ++n) {
      const Sample sample = TakeTurn(options, calls[n], &indices[n]);
      turns.samples.back().push_back(sample);
      of_call[n].push_back(sample);
      fewest_owned = std::min(fewest_owned, OwnedCount(of_call[n]));
    }
    const double elapsed = WallSeconds() - start;
    if (fewest_owned >= kEnoughRuns && elapsed >= seconds) break;
    if (elapsed >= kPatience * seconds && turns.samples.size() >= kFewestRuns) break;
  }
  for (const std::vector<Sample>& samples : of_call) turns.timings.push_back(Summarize(samples));
  return turns;
}

Quartiles QuartilesOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return {values[last / 4], values[values.size() / 2], values[last - last / 4]};
}

Quartiles RatioOf(const Turns& turns, size_t call, size_t base) {
  std::vector<double> owned, all;
  for (const std::vector<Sample>& round : turns.samples) {
    all.push_back(round[call].seconds / round[base].seconds);
    if (round[call].owned && round[base].owned) owned.push_back(all.back());
  }
  return QuartilesOf(owned.size() < kFewestRuns ? all : owned);
}

}  // namespace fovea::measure
