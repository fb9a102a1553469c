// Problems whose scores and values follow patterns.
#ifndef FOVEA_TESTS_SUPPORT_STRUCTURED_PROBLEM_H_
#define FOVEA_TESTS_SUPPORT_STRUCTURED_PROBLEM_H_

#include <cstdint>
#include <string>

#include "fovea/attention.h"
#include "support/owned_tensor.h"
#include "support/patterns.h"

namespace fovea::test {

struct StructuredSpec {
  ScorePattern scores = ScorePattern::kEqual;
  ValuePattern values = ValuePattern::kTwoValued;
  int64_t Hq = 1, Tq = 1, Tk = 1, dk = 1, dv = 1;
  DType type = DType::kF32;  // of q, k and v
};
std::string ToString(const StructuredSpec& spec);

// One KV head; all Hq·Tq rows are the same row. Its scores are exact in f32 in any order of the
// channels: q is all 1 and each key has one channel that is not 0. out and lse are f32.
struct StructuredProblem {
  StructuredSpec spec;
  OwnedTensor q, k, v, out, lse;
  Problem problem;

  StructuredProblem(const StructuredSpec& spec, uint64_t seed);
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_STRUCTURED_PROBLEM_H_
