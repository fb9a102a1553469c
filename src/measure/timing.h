// Times repeated calls on a machine that others use too.
#ifndef FOVEA_MEASURE_TIMING_H_
#define FOVEA_MEASURE_TIMING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace fovea::measure {

struct TimingOptions {
  // that the call uses; with more than one, lost cores cannot be told from waiting, and every run
  // counts
  int threads = 1;
  double seconds = 1;  // keeps timing for so long, and for ten runs; gives up at four times that
};

struct Timing {
  double median_s = 0;
  double min_s = 0;
  int runs = 0;     // that count
  int dropped = 0;  // in which the thread did not have its core to itself
  bool noisy =
      // hardly any run kept its core, so that times are CPU times of those that did not; or the
      // median is far from the fastest
      false;
};

// Calls run(index), index rising by one, first to warm up, then timed.
Timing Measure(const TimingOptions& options, const std::function<void(int64_t)>& run);

// One run: its wall time, or its CPU time if the thread did not have its core to itself.
struct Sample {
  double seconds = 0;
  bool owned = true;
};

// Several calls that took turns, round after round.
struct Turns {
  std::vector<Timing> timings;               // of each call, a turn for a run
  std::vector<std::vector<Sample>> samples;  // [round][call]: the median of the turn
};

// Times calls in rounds: each call in turn, A B C A B C …, so that whatever slows the machine down
// for a while slows all of them. A turn is one run to bring the call's memory into the caches, then
// runs for some milliseconds. `options.seconds` is for each call; before_round() is called before
// each round. The index of each call rises by one from run to run.
Turns MeasureInTurns(const TimingOptions& options,
                     const std::vector<std::function<void(int64_t)>>& calls,
                     const std::function<void()>& before_round);

// Quartiles of `values`, which are not empty.
struct Quartiles {
  double low = 0, median = 0, high = 0;
};
Quartiles QuartilesOf(std::vector<double> values);

// The time of a call over that of another in the same round, over the rounds in which both had
// their core; over all rounds if there are hardly any.
Quartiles RatioOf(const Turns& turns, size_t call, size_t base);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_TIMING_H_
