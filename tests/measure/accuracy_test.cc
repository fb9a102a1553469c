// Results against the reference: right ones pass, wrong ones are seen wherever they are.
#include "measure/accuracy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "measure/workload.h"
#include "measure/workload_tensors.h"

namespace fovea::measure {
namespace {

TEST(AccuracyTest, SeesRightAndWrongRows) {
  Workload workload;
  std::string error;
  ASSERT_TRUE(ParseWorkload("1,2,4,8", &workload, &error)) << error;
  const WorkloadTensors tensors(workload, 1);
  const Problem problem = tensors.At(0);
  // With one key seen by every query, out is that key's value.
  Problem one = problem;
  one.score.window = {0, 0};
  float* const out = static_cast<float*>(problem.out.data);
  const float* const v = static_cast<const float*>(problem.v.data);
  std::copy(v, v + 2 * 4 * 8, out);
  EXPECT_TRUE(CompareAllRows(one, Product::kF32).ok());
  EXPECT_TRUE(CompareSampledRows(one, Product::kF32).ok());
  out[63] += 0.01f;
  EXPECT_FALSE(CompareAllRows(one, Product::kF32).ok());
  EXPECT_NEAR(CompareAllRows(one, Product::kF32).max_error, 0.01, 1e-6);
  EXPECT_FALSE(CompareSampledRows(one, Product::kF32, 2).ok())
      << "the last row is among the samples";
  out[63] = NAN;
  EXPECT_FALSE(CompareAllRows(one, Product::kF32).ok());
}

}  // namespace
}  // namespace fovea::measure
