#include "support/check.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "reference/element.h"

namespace fovea::test {
namespace {

// The element furthest outside its bound, as a multiple of the bound.
struct Worst {
  double excess = 1;
  std::string where;

  void Look(double got, double want, double bound, const char* name, int64_t row, int64_t column) {
    double ratio;
    if (std::isnan(want)) {
      ratio = std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
    } else if (std::isinf(want) || bound == 0) {
      ratio = got == want ? 0 : std::numeric_limits<double>::infinity();
    } else {
      ratio = std::fabs(got - want) / bound;
      if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    }
    if (ratio <= excess) return;
    excess = ratio;
    std::ostringstream text;
    text.precision(9);
    text << name << "[row " << row << ", " << column << "] = " << got << ", expected " << want << " ± " << bound;
    where = text.str();
  }
};

}  // namespace

testing::AssertionResult Matches(const Problem& problem, const reference::ForwardResult& expected) {
  const reference::Sizes size = reference::SizesOf(problem);
  Worst worst;
  int64_t row = 0;
  for (int64_t b = 0; b < size.B; ++b) {
    for (int64_t h = 0; h < size.Hq; ++h) {
      for (int64_t i = 0; i < size.Tq; ++i, ++row) {
        const size_t r = static_cast<size_t>(row);
        const bool empty = expected.lse[r] == -std::numeric_limits<double>::infinity();
        const double t = empty ? 0 : expected.relative_tolerance[r];
        if (std::isinf(t)) continue;  // nothing is promised: the scores overflow float32, or the test does not want to look
        // A result below the normal range of f32 may lose all its bits.
        const double smallest = empty ? 0 : static_cast<double>(std::numeric_limits<float>::min());
        for (int64_t c = 0; c < size.dv; ++c) {
          worst.Look(reference::At(problem.out, b, h, i, c), expected.out[static_cast<size_t>(row * size.dv + c)],
                     t * expected.max_abs_value[r] + smallest, "out", row, c);
        }
        if (problem.lse.present()) {
          // The rule of the conformance suites: t and a relative 1e-5.
          const double lse = expected.lse[r];
          worst.Look(reference::At(problem.lse, b, h, i), lse, t + 1e-5 * std::fabs(lse), "lse", row, 0);
        }
        if (problem.weights.present()) {
          for (int64_t j = 0; j < size.Tk; ++j) {
            const size_t n = static_cast<size_t>(row * size.Tk + j);
            const double weight = reference::At(problem.weights, b, h, i, j);
            // A removed pair has weight 0, not nearly 0; in a NaN row either is right: 0/NaN is NaN.
            if (!expected.visible[n] && std::isnan(expected.lse[r]) && std::isnan(weight)) continue;
            worst.Look(weight, expected.weights[n], expected.visible[n] ? t + smallest : 0, "weights", row, j);
          }
        }
      }
    }
  }
  if (worst.where.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << worst.where << " (" << worst.excess << " times the bound)";
}

void ExpectMatchesReference(RandomProblem& p, const PlanOptions& options) {
  const reference::ForwardResult expected = reference::Forward(p.problem);
  for (const Kernel& kernel : Kernels()) {
    PlanOptions all = options;
    all.target = kernel.target;
    all.engine = kernel.engine;
    p.ResetOutputs();
    const Status status = Attention(p.problem, all, SerialExecutor());
    if (!status.ok()) {
      ADD_FAILURE() << ToString(kernel) << ": " << status.message() << "\n" << ToString(p.spec);
      continue;
    }
    EXPECT_TRUE(Matches(p.problem, expected)) << ToString(kernel) << "\n" << ToString(p.spec);
    EXPECT_TRUE(p.OutputPaddingUntouched()) << "wrote outside its outputs: " << ToString(kernel) << "\n" << ToString(p.spec);
  }
}

}  // namespace fovea::test
