// The tests' own judge: what it must accept and what it must not let pass.
#include "support/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

using test::Matches;
using test::ProblemSpec;
using test::RandomProblem;

// A problem whose outputs hold the reference's answer, rounded.
struct Answered {
  RandomProblem p;
  reference::ForwardResult expected;

  Answered() : p(Spec(), test::BaseSeed()), expected(reference::Forward(p.problem)) {
    for (int64_t n = 0; n < p.out.size(); ++n) p.out.Set(n, expected.out[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < p.lse.size(); ++n) p.lse.Set(n, expected.lse[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < p.weights.size(); ++n) p.weights.Set(n, expected.weights[static_cast<size_t>(n)]);
  }
  static ProblemSpec Spec() {
    ProblemSpec s;
    s.B = 2, s.Hq = 2, s.Tq = 6, s.Tk = 9, s.dk = 4, s.dv = 3, s.Hkv = 1, s.weights = true;
    s.causal = Causal::kTopLeft, s.query_offset = -2;  // two empty rows in each head
    return s;
  }
};

TEST(CheckTest, AcceptsTheRoundedReference) {
  Answered a;
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, RejectsAnErrorOfTwiceTheBoundInAnyElement) {
  Answered a;
  const int64_t row = 5;  // the last of the first head: four visible keys
  const double t = a.expected.relative_tolerance[row], largest = a.expected.max_abs_value[row];
  const struct {
    test::OwnedTensor& tensor;
    int64_t element;
    double bound;
  } places[] = {
      {a.p.out, row * 3 + 1, t * largest}, {a.p.lse, row, t + 1e-5 * std::fabs(a.expected.lse[row])}, {a.p.weights, row * 9 + 2, t}};
  for (const auto& place : places) {
    const double right = place.tensor.Get(place.element);
    for (double wrong : {right + 2 * place.bound, right - 2 * place.bound, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
      place.tensor.Set(place.element, wrong);
      EXPECT_FALSE(Matches(a.p.problem, a.expected)) << wrong;
    }
    place.tensor.Set(place.element, right + 0.5 * place.bound);
    EXPECT_TRUE(Matches(a.p.problem, a.expected));
    place.tensor.Set(place.element, right);
  }
}

TEST(CheckTest, EmptyRowsAndRemovedPairsAreExact) {
  Answered a;
  ASSERT_EQ(a.expected.lse[0], -std::numeric_limits<double>::infinity());
  a.p.out.Set(0, 1e-30);
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.out.Set(0, 0);
  a.p.lse.Set(0, -1e30);
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.lse.Set(0, -std::numeric_limits<double>::infinity());
  a.p.weights.Set(5 * 9 + 8, 1e-30);  // in a row with visible keys, but not this one
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, NaNMustBeThereWhereItIsExpected) {
  Answered a;
  a.expected.out[5 * 3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.out.Set(5 * 3, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, ReportsWritesOutsideTheElements) {
  ProblemSpec s = Answered::Spec();
  s.out.layout = test::Layout::kPadded;
  RandomProblem p(s, 1);
  EXPECT_TRUE(p.OutputPaddingUntouched());
  static_cast<unsigned char*>(p.problem.out.data)[3 * 4 + 1] = 0;  // behind the first row
  EXPECT_FALSE(p.OutputPaddingUntouched());
}

}  // namespace
}  // namespace fovea
