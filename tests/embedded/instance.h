// The header-only edition as one unit compiled it: behind plain functions, so that a program for
// any CPU can hold units for several instruction sets.
#ifndef FOVEA_TESTS_EMBEDDED_INSTANCE_H_
#define FOVEA_TESTS_EMBEDDED_INSTANCE_H_

#include <cstddef>
#include <cstdint>

#include "fovea/embedded/problem.h"

namespace fovea::test {

struct EmbeddedInstance {
  const char* isa;  // the inline namespace of its functions
  int lanes;
  embedded::Error (*attention)(const embedded::Problem& problem, void* scratch,
                               size_t scratch_bytes);
  size_t (*scratch_bytes)(int64_t dk, int64_t dv, int64_t rows);
  size_t (*least_scratch_bytes)(int64_t dk, int64_t dv, int64_t rows);
  float (*widened)(uint16_t);
  uint16_t (*narrowed)(float);
  void (*load_row)(embedded::Type type, const char* row, int64_t stride, int64_t n, float* to);
};

// Defined by instance.cc, once for each value of FOVEA_EMBEDDED_INSTANCE that it is compiled with.
extern const EmbeddedInstance kEmbeddedUnderTest;  // of a test program, which is for one
extern const EmbeddedInstance kEmbeddedSse2, kEmbeddedAvx2, kEmbeddedAvx512, kEmbeddedNeon;

}  // namespace fovea::test

#endif  // FOVEA_TESTS_EMBEDDED_INSTANCE_H_
