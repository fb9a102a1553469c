// Times a repeated call on a machine that others use too.
#ifndef FOVEA_BENCH_TIMING_H_
#define FOVEA_BENCH_TIMING_H_

#include <cstdint>
#include <functional>

namespace fovea::bench {

struct TimingOptions {
  int threads = 1;          // that the call uses; with more than one, lost cores cannot be told from waiting, and every run counts
  double seconds = 1;       // keeps timing for so long, and for ten runs; gives up at four times that
  int64_t first_index = 0;  // of the index that is passed to the call
};

struct Timing {
  double median_s = 0;
  double min_s = 0;
  int runs = 0;        // that count
  int dropped = 0;     // in which the thread did not have its core to itself
  bool noisy = false;  // hardly any run kept its core, so that times are CPU times of all; or the median is far from the fastest
};

// Calls run(index), index rising by one, first to warm up, then timed.
Timing Measure(const TimingOptions& options, const std::function<void(int64_t)>& run);

}  // namespace fovea::bench

#endif  // FOVEA_BENCH_TIMING_H_
