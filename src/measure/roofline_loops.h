// The instruction loops behind roofline.h, one set an architecture (roofline_x86.cc,
// roofline_neon.cc).
#ifndef FOVEA_MEASURE_ROOFLINE_LOOPS_H_
#define FOVEA_MEASURE_ROOFLINE_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "fovea/target.h"

namespace fovea::measure {

struct Loop {
  // null: no such loop in this build, or this CPU cannot run it
  void (*run)(int64_t iterations) = nullptr;
  double work = 0;  // FLOP or exponentials an iteration
};

Loop MultiplyAddLoop(Target target);  // f32
Loop DotBF16Loop(Target target);
Loop ExpLoop(Target target);

// Loads every byte once, lowest address first. `data` is 64-byte aligned, `bytes` a multiple of
// 512.
void ReadAscending(const char* data, size_t bytes);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_ROOFLINE_LOOPS_H_
