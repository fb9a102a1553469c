// Plans without the memory of their problems.
#ifndef FOVEA_TESTS_PLAN_MAKE_PLAN_H_
#define FOVEA_TESTS_PLAN_MAKE_PLAN_H_

#include <gtest/gtest.h>

#include "fovea/attention.h"

namespace fovea::test {

// A problem of any size without memory: Create looks at no data.
inline Problem Shapes(int64_t B, int64_t Hq, int64_t Hkv, int64_t Tq, int64_t Tk, int64_t dk,
                      int64_t dv) {
  const void* const in = nullptr;
  void* const out = nullptr;
  Problem p;
  p.q = View(in, DType::kF32, {B, Hq, Tq, dk});
  p.k = View(in, DType::kF32, {B, Hkv, Tk, dk});
  p.v = View(in, DType::kF32, {B, Hkv, Tk, dv});
  p.out = View(out, DType::kF32, {B, Hq, Tq, dv});
  p.lse = View(out, DType::kF32, {B, Hq, Tq});
  return p;
}

inline Plan MakePlan(const Problem& problem, const PlanOptions& options = {}) {
  Plan plan;
  const Status status = Plan::Create(problem, options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_PLAN_MAKE_PLAN_H_
