// Is the output of a timed call right? Sampled rows against the reference in double, so that even the longest workload is checked in no time.
#ifndef FOVEA_BENCH_SAMPLE_CHECK_H_
#define FOVEA_BENCH_SAMPLE_CHECK_H_

#include "fovea/attention.h"

namespace fovea::bench {

struct SampleError {
  double max_error = 0;  // largest |error| of out over the sampled rows; NaN if any is
  double bound = 0;      // what the contract allows the worst of them (worst: the largest error in units of its own row's bound)
  bool ok = true;        // every sampled row is within its bound
};

// `problem.out` holds the result to judge: `rows` rows spread over sequences, heads and queries, the first and the last among them.
SampleError CheckSampledRows(const Problem& problem, int rows = 16);

}  // namespace fovea::bench

#endif  // FOVEA_BENCH_SAMPLE_CHECK_H_
