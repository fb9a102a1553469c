// What a program and the libraries that it times say to each other. Plain data, because the
// library's own types may differ between revisions. The fields are those of fovea::Problem, the
// numbers of enumerations those of its enumerations.
#ifndef FOVEA_BENCH_TURNS_TIMED_H_
#define FOVEA_BENCH_TURNS_TIMED_H_

#include <cstdint>

namespace fovea::turns {

struct View {
  void* data;
  int32_t dtype;
  int32_t rank;  // 0: absent
  int64_t shape[4];
  int64_t stride[4];
};

struct TimedProblem {
  View q, k, v, out;
  View alibi_slopes, bias, mask, sinks;
  float softcap;
  int32_t causal;
  int64_t window_left, window_right;
  bool has_offset;
  int64_t offset;
};

// One library. Calls run on the calling thread.
struct TimedLibrary {
  // Plan and workspace; null where the library refuses.
  void* (*make_call)(const TimedProblem& problem);
  void (*release_call)(void* call);
  // For example "avx512 tile f32"; lives as long as the call.
  const char* (*kernel)(const void* call);
  // Runs `problem` that many times as planned, or in one-shot calls. False on an error.
  bool (*run)(const void* call, const TimedProblem& problem, int64_t times);
  bool (*run_one_shot)(const TimedProblem& problem, int64_t times);
};

constexpr char kGetTimedLibrary[] = "FoveaTimedLibrary";
using GetTimedLibrary = const TimedLibrary* (*)();

}  // namespace fovea::turns

#endif  // FOVEA_BENCH_TURNS_TIMED_H_
