// Wall and CPU clocks. A thread that shares its core shows it by using less CPU time than wall time
// passes.
#ifndef FOVEA_MEASURE_CLOCK_H_
#define FOVEA_MEASURE_CLOCK_H_

#include <ctime>

namespace fovea::measure {

inline double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
inline double WallSeconds() { return Seconds(CLOCK_MONOTONIC); }
inline double ThreadSeconds() { return Seconds(CLOCK_THREAD_CPUTIME_ID); }

// Below this share of CPU time in wall time a measurement is dropped: somebody else had the core.
constexpr double kOwnedShare = 0.97;

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_CLOCK_H_
