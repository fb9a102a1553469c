// The comparison that all conformance tests rest on accepts what it should and nothing else.
#include "support/compare.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace fovea::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool Passes(double got, double want, double atol, double rtol) {
  return bool(Near("x", {got}, {want}, {1}, {atol}, rtol));
}

TEST(Near, ToleranceIsAbsolutePlusRelative) {
  EXPECT_TRUE(Passes(10.9, 10, 0.5, 0.05));
  EXPECT_FALSE(Passes(11.1, 10, 0.5, 0.05));
  EXPECT_TRUE(Passes(1, 1, 0, 0));
  EXPECT_FALSE(Passes(1.001, 1, 0, 0));
}

TEST(Near, NanMatchesNanOnly) {
  EXPECT_TRUE(Passes(kNan, kNan, 0, 0));
  EXPECT_FALSE(Passes(kNan, 1, 1e9, 1e9));
  EXPECT_FALSE(Passes(1, kNan, 1e9, 1e9));
}

TEST(Near, InfinityMatchesItselfOnly) {
  EXPECT_TRUE(Passes(-kInf, -kInf, 1, 1));
  EXPECT_FALSE(Passes(0, -kInf, 1, 1));
  EXPECT_FALSE(Passes(kInf, -kInf, 1, 1));
  EXPECT_FALSE(Passes(kInf, 1, 1, 1));
  EXPECT_TRUE(Passes(1e300, kInf, 1, 1));  // beyond float
}

TEST(Near, FailureShowsTheWorstElement) {
  const auto result =
      Near("out", {0, 1, 7, 3, 4.5, 5}, {0, 1, 2, 3, 4, 5}, {2, 3}, std::vector<double>(6, 0.1), 0);
  EXPECT_NE(std::string(result.message()).find("out[0, 2] = 7, expected 2"), std::string::npos)
      << result.message();
  EXPECT_NE(std::string(result.message()).find("2 of 6"), std::string::npos) << result.message();
}

TEST(Near, SizesMustAgree) { EXPECT_FALSE(Near("x", {1, 2}, {1}, {1}, {0}, 0)); }

}  // namespace
}  // namespace fovea::test
