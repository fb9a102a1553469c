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
    } else if (std::isinf(bound)) {  // infinity is among what is right
      ratio = std::isnan(got) ? std::numeric_limits<double>::infinity() : 0;
    } else {
      ratio = std::fabs(got - want) / bound;
      if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    }
    if (ratio <= excess) return;
    excess = ratio;
    std::ostringstream text;
    text.precision(9);
    text << name << "[row " << row << ", " << column << "] = " << got << ", expected " << want
         << " ± " << bound;
    where = text.str();
  }
};

}  // namespace

testing::AssertionResult Matches(const Problem& problem, const reference::ForwardResult& expected,
                                 double weight_tolerance) {
  const reference::Sizes size = reference::SizesOf(problem);
  Worst worst;
  // Below the normal range of f32 a sum loses half a unit of what is left for each key; products of
  // bf16 all that is below it.
  const double kSmallest =
      static_cast<double>(size.Tk) * (weight_tolerance == 0 ? 0x1p-149 : 0x1p-126);
  int64_t row = 0;
  for (int64_t b = 0; b < size.B; ++b) {
    const reference::Rows queries = reference::SequenceOf(problem, b).queries;
    for (int64_t h = 0; h < size.Hq; ++h) {
      for (int64_t i = 0; i < size.Tq; ++i, ++row) {
        // Where packed sequences differ in length, some rows are of weights and scores alone.
        const bool exists = i < queries.count;
        const size_t r =
            exists ? static_cast<size_t>((queries.batch * size.Hq + h) * problem.q.shape[2] +
                                         queries.first + i)
                   : 0;
        const double lse = exists ? expected.lse[r] : -std::numeric_limits<double>::infinity();
        const bool empty = lse == -std::numeric_limits<double>::infinity();
        const double t = empty ? 0 : expected.relative_tolerance[r];
        const double smallest = empty ? 0 : kSmallest;
        // Of rows with an infinite t nothing is promised: their scores overflow float32, or the
        // test does not want to look.
        if (exists && !std::isinf(t)) {
          for (int64_t c = 0; c < size.dv; ++c) {
            const double got = reference::At(problem.out, queries.batch, h, queries.first + i, c);
            const double want =
                expected.out[r * static_cast<size_t>(size.dv) + static_cast<size_t>(c)];
            const double bound =
                (empty ? 0 : t + weight_tolerance) * expected.max_abs_value[r] + smallest;
            worst.Look(got, want, reference::StoredBound(problem.out.dtype, got, want, bound),
                       "out", row, c);
          }
          if (problem.lse.present()) {
            worst.Look(reference::At(problem.lse, queries.batch, h, queries.first + i), lse,
                       t + 1e-6 * std::fabs(lse), "lse", row, 0);
          }
        }
        const auto look_at_weight = [&](double got, int64_t j, const char* name) {
          if (std::isinf(t)) return;
          const size_t n = static_cast<size_t>(row * size.Tk + j);
          // A removed pair has weight 0, not nearly 0; in a NaN row either is right: 0/NaN is NaN.
          if (!expected.visible[n] && std::isnan(lse) && std::isnan(got)) return;
          worst.Look(got, expected.weights[n], expected.visible[n] ? t + smallest : 0, name, row,
                     j);
        };
        for (int64_t j = 0; j < size.Tk && problem.weights.present(); ++j) {
          look_at_weight(reference::At(problem.weights, b, h, i, j), j, "weights");
        }
        for (int64_t j = 0; j < size.Tk && problem.scores.present(); ++j) {
          const double got = reference::At(problem.scores, b, h, i, j);
          if (problem.score_stage == ScoreStage::kWeights) {
            look_at_weight(got, j, "scores");
            continue;
          }
          const size_t n = static_cast<size_t>(row * size.Tk + j);
          const double tolerance = expected.stage.tolerance[n];
          if (!std::isinf(tolerance))
            worst.Look(got, expected.stage.scores[n], tolerance, "scores", row, j);
        }
      }
    }
  }
  if (worst.where.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << worst.where << " (" << worst.excess << " times the bound)";
}

void ExpectMatchesReference(RandomProblem& p, const PlanOptions& options) {
  const reference::ForwardResult expected = reference::Forward(p.problem);
  for (const Kernel& kernel : KernelsFor(p.problem)) {
    PlanOptions all = Options(kernel, options);
    all.fixed_mask = all.fixed_mask || p.spec.fixed_mask;
    p.ResetOutputs();
    const Status status = Attention(p.problem, all, SerialExecutor());
    if (!status.ok()) {
      ADD_FAILURE() << ToString(kernel) << ": " << status.message() << "\n" << ToString(p.spec);
      continue;
    }
    EXPECT_TRUE(Matches(p.problem, expected, reference::WeightTolerance(kernel.product)))
        << ToString(kernel) << "\n"
        << ToString(p.spec);
    EXPECT_TRUE(p.OutputPaddingUntouched())
        << "wrote outside its outputs: " << ToString(kernel) << "\n"
        << ToString(p.spec);
  }
}

void ExpectMatchesReference(const ProblemSpec& spec, uint64_t number, const PlanOptions& options) {
  const uint64_t seed = BaseSeed() + number;
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomProblem p(spec, seed);
  ExpectMatchesReference(p, options);
}

void RunOn(const Kernel& kernel, RandomProblem& p, const PlanOptions& options) {
  p.ResetOutputs();
  const Status status = Attention(p.problem, Options(kernel, options), SerialExecutor());
  ASSERT_TRUE(status.ok()) << ToString(kernel) << ": " << status.message();
}

}  // namespace fovea::test
