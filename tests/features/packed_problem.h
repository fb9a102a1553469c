// The packed batches that tests look at.
#ifndef FOVEA_TESTS_FEATURES_PACKED_PROBLEM_H_
#define FOVEA_TESTS_FEATURES_PACKED_PROBLEM_H_

#include "support/random_problem.h"

namespace fovea::test {

inline ProblemSpec PackedSpec(DType q = DType::kI32, DType k = DType::kI32) {
  ProblemSpec s;
  s.B = 5, s.Hq = 4, s.Hkv = 2, s.Tq = 40, s.Tk = 150, s.dk = 12, s.dv = 9, s.cu_seqlens_q = q,
  s.cu_seqlens_k = k;
  return s;
}

// Types of cu_seqlens_q and cu_seqlens_k; kNone: dense.
constexpr DType kPackings[][2] = {{DType::kI32, DType::kI32},
                                  {DType::kI64, DType::kNone},
                                  {DType::kNone, DType::kI64},
                                  {DType::kI64, DType::kI32}};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_FEATURES_PACKED_PROBLEM_H_
