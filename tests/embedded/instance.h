// The header-only edition as one unit compiled it: behind plain functions, so that a program for
// any CPU can hold units for several instruction sets.
#ifndef FOVEA_TESTS_EMBEDDED_INSTANCE_H_
#define FOVEA_TESTS_EMBEDDED_INSTANCE_H_

#include <cstddef>
#include <cstdint>

namespace fovea::test {

// Problems and errors cross as the plain data that they are, since their types lie in a namespace
// of each unit's instruction set.
struct EmbeddedInstance {
  const char* isa;  // that namespace
  int lanes;
  int (*attention)(const void* problem, void* scratch, size_t scratch_bytes);
  size_t (*scratch_bytes)(int64_t dk, int64_t dv, int64_t rows);
  size_t (*least_scratch_bytes)(int64_t dk, int64_t dv, int64_t rows);
  float (*widened)(uint16_t);
  uint16_t (*narrowed)(float);
  void (*load_halves)(const uint16_t* from, int64_t n, float* to);
};

// Defined by instance.cc, once for each value of FOVEA_EMBEDDED_INSTANCE that it is compiled with.
extern const EmbeddedInstance kEmbeddedUnderTest;  // of a test program, which is for one
// the same with FOVEA_EMBEDDED_DEFAULT_FP_STATE
extern const EmbeddedInstance kEmbeddedInDefaultState;
extern const EmbeddedInstance kEmbeddedSse2, kEmbeddedAvx2, kEmbeddedAvx512, kEmbeddedNeon;

}  // namespace fovea::test

#endif  // FOVEA_TESTS_EMBEDDED_INSTANCE_H_
