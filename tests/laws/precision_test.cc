// Precision that does not depend on length: however many keys a row has, and however they are
// ordered, out and lse err no more than over a few of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/random.h"
#include "support/structured_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Kernel;
using test::ScorePattern;
using test::StructuredProblem;
using test::StructuredSpec;
using test::ValuePattern;

// Of max|v|, where scores are exact. What one chain over all keys loses is beyond it from 300 keys
// on.
//
// f32 products: 1.5e-6, which sums of segments reach where roundings differ. Numbers that repeat
// round the same way at each step: a chain of 128 of them errs by up to 32·2⁻²⁴ (1.9e-6), and
// behind a dominant key, where each addition may lose half a unit, a chain of 64 by up to 64·2⁻²⁴.
// PyTorch's flash kernel errs by 1.7e-6 and 8.6e-6 there from 1,000 keys on. bf16 products: the
// contract's bound, beside what rounding the weights does.
double OutTolerance(const StructuredSpec& spec, Product product) {
  if (product == Product::kBF16) return 1e-5;
  const bool repeats =
      spec.values == ValuePattern::kConstant || spec.values == ValuePattern::kTwoValued;
  if (!repeats) return 1.5e-6;
  return spec.scores == ScorePattern::kDominantFirst ? 64 * 0x1p-24 : 2.1e-6;
}

// By kernel, what lies furthest outside its bound: one failure for each instead of thousands.
class Worst {
 public:
  ~Worst() {
    for (const auto& [kernel, worst] : by_kernel_) {
      EXPECT_LE(worst.share, 1) << kernel << ": " << worst.share << " times the bound, "
                                << worst.where;
    }
  }
  void Look(const std::string& kernel, double got, double want, double bound,
            const std::function<std::string()>& where) {
    double share = std::fabs(got - want) / bound;
    if (std::isnan(share)) share = INFINITY;
    Element& worst = by_kernel_[kernel];
    if (share <= worst.share) return;
    worst.share = share;
    std::ostringstream text;
    text.precision(9);
    text << where() << " = " << got << ", expected " << want << " ± " << bound;
    worst.where = text.str();
  }

 private:
  struct Element {
    double share = 0;
    std::string where;
  };
  std::map<std::string, Element> by_kernel_;
};

// Those of one row, and of a plan that chooses for itself on each target.
std::vector<Kernel> KernelsAndPlans(const Problem& problem) {
  std::vector<Kernel> kernels = test::KernelsFor(problem);
  std::vector<Kernel> plans;
  for (const Kernel& kernel : kernels) {
    if (kernel.engine == Engine::kTile && kernel.product == Product::kF32)
      plans.push_back({kernel.target, Engine::kAuto, Product::kAuto});
  }
  kernels.insert(kernels.end(), plans.begin(), plans.end());
  return kernels;
}

// What rounding the weights to bf16 before they multiply V does to each channel, all sums exact.
std::vector<double> TextbookErrorBF16(const Problem& problem, const reference::Row& row) {
  const double m = *std::max_element(row.scores.begin(), row.scores.end());
  std::vector<double> out(row.out.size(), 0.0);
  double sum = 0;
  for (size_t j = 0; j < row.scores.size(); ++j) {
    const double p = reference::Rounded(DType::kBF16, std::exp(row.scores[j] - m));
    sum += p;
    for (size_t c = 0; c < out.size(); ++c)
      out[c] +=
          p * reference::At(problem.v, 0, 0, static_cast<int64_t>(j), static_cast<int64_t>(c));
  }
  for (size_t c = 0; c < out.size(); ++c) out[c] = std::fabs(out[c] / sum - row.out[c]);
  return out;
}

// Runs `p` on every kernel with `options` otherwise: |error of out| ≤ OutTolerance·max|v|, of bf16
// products beside it twice the error of a textbook computation; lse: 1e-5, or 1e-6 of it.
void Hold(StructuredProblem& p, const PlanOptions& options, Worst& worst) {
  const reference::Row row = reference::ForwardRow(p.problem, 0, 0, 0);
  std::vector<double> textbook;
  if (p.spec.type == DType::kBF16) {
    textbook = TextbookErrorBF16(p.problem, row);
    // A channel may be lucky; all channels of a pattern are of one kind.
    std::fill(textbook.begin(), textbook.end(),
              *std::max_element(textbook.begin(), textbook.end()));
  }
  for (const Kernel& kernel : KernelsAndPlans(p.problem)) {
    p.out.Reset(), p.lse.Reset();
    Plan plan;
    const Status status = Plan::Create(p.problem, test::Options(kernel, options), &plan);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<char> workspace(plan.WorkspaceBytes(1));
    ASSERT_TRUE(Run(plan, p.problem, {workspace.data(), workspace.size()}).ok());
    const std::string name = ToString(kernel);
    const auto where = [&](const char* tensor) {
      return [&p, &options, tensor] {
        return std::string(tensor) + " of " + ToString(p.spec) +
               (options.split_keys == 0 ? "" : ", splits of " + std::to_string(options.split_keys));
      };
    };
    for (int64_t r = 0; r < p.lse.size(); ++r) {
      worst.Look(name, p.lse.Get(r), row.lse, std::max(1e-5, 1e-6 * std::fabs(row.lse)),
                 where("lse"));
      for (int64_t c = 0; c < p.spec.dv; ++c) {
        double bound = OutTolerance(p.spec, plan.product()) * row.max_abs_value;
        if (plan.product() == Product::kBF16) bound += 2 * textbook[static_cast<size_t>(c)];
        worst.Look(name, p.out.Get(r * p.spec.dv + c), row.out[static_cast<size_t>(c)], bound,
                   where("out"));
      }
    }
  }
}

StructuredSpec Spec(ScorePattern scores, ValuePattern values, int64_t Tq, int64_t Tk) {
  StructuredSpec s;
  s.scores = scores, s.values = values, s.Tq = Tq, s.Tk = Tk;
  return s;
}

// ---- long rows ----

TEST(LongRowTest, NoPatternOfScoresAndValuesErrsMoreWithMoreKeys) {
  Worst worst;
  uint64_t seed = test::BaseSeed();
  for (ScorePattern scores : test::kScorePatterns) {
    for (ValuePattern values : test::Thinned(test::kValuePatterns)) {
      for (int64_t Tk : {1000, 8192, 40000}) {
        StructuredSpec s = Spec(scores, values, 1, Tk);
        s.dv = 3;
        StructuredProblem p(s, ++seed);
        Hold(p, {}, worst);
      }
    }
  }
}

TEST(LongRowTest, AHundredThousandKeysAreNoWorse) {
  Worst worst;
  uint64_t seed = test::BaseSeed();
  for (auto [scores, values] : test::Thinned({
           std::pair(ScorePattern::kEqual, ValuePattern::kTwoValued),
           std::pair(ScorePattern::kEqual, ValuePattern::kOneSign),
           std::pair(ScorePattern::kDominantFirst, ValuePattern::kConstant),
           std::pair(ScorePattern::kDominantNoise, ValuePattern::kNearOne),
           std::pair(ScorePattern::kRising, ValuePattern::kOneSign),
           std::pair(ScorePattern::kLastDecides, ValuePattern::kTwoValued),
       })) {
    StructuredProblem p(Spec(scores, values, 1, 131072 + 5), ++seed);
    Hold(p, {}, worst);
  }
}

TEST(LongRowTest, ManyQueriesHeadsAndChannels) {
  // Whole tiles without splits, groups of heads in one tile, head sizes that engines unroll by.
  Worst worst;
  uint64_t seed = test::BaseSeed();
  for (auto [Hq, Tq, dk, dv] : test::Thinned(std::vector<std::tuple<int, int, int, int>>{
           {1, 130, 1, 1}, {4, 1, 128, 64}, {1, 35, 64, 128}, {8, 3, 5, 17}, {2, 20, 80, 1}})) {
    for (auto [scores, values] : test::Thinned({
             std::pair(ScorePattern::kEqual, ValuePattern::kTwoValued),
             std::pair(ScorePattern::kDominantNoise, ValuePattern::kNearOne),
             std::pair(ScorePattern::kRising, ValuePattern::kConstant),
         })) {
      StructuredSpec s = Spec(scores, values, Tq, 12000);
      s.Hq = Hq, s.dk = dk, s.dv = dv;
      StructuredProblem p(s, ++seed);
      Hold(p, {}, worst);
    }
  }
}

TEST(LongRowTest, NarrowTypesAndTheirProducts) {
  Worst worst;
  uint64_t seed = test::BaseSeed();
  for (DType type : {DType::kF16, DType::kBF16}) {
    for (ScorePattern scores : test::Thinned(test::kScorePatterns)) {
      for (auto [values, Tq, Tk] : test::Thinned({
               std::tuple(ValuePattern::kTwoValued, 1, 20000),
               std::tuple(ValuePattern::kOneSign, 20, 9000),
               std::tuple(ValuePattern::kConstant, 1, 70000),
           })) {
        StructuredSpec s = Spec(scores, values, Tq, Tk);
        s.type = type, s.dk = 2, s.dv = 3;
        StructuredProblem p(s, ++seed);
        Hold(p, {}, worst);
      }
    }
  }
}

TEST(LongRowTest, HoweverTheKeysAreSplit) {
  Worst worst;
  uint64_t seed = test::BaseSeed();
  for (int64_t split : {int64_t{64}, int64_t{1000}, int64_t{4096}, int64_t{1} << 40}) {
    for (auto [scores, values] : test::Thinned({
             std::pair(ScorePattern::kEqual, ValuePattern::kTwoValued),
             std::pair(ScorePattern::kDominantFirst, ValuePattern::kConstant),
             std::pair(ScorePattern::kDominantNoise, ValuePattern::kNearOne),
             std::pair(ScorePattern::kLastDecides, ValuePattern::kOneSign),
             std::pair(ScorePattern::kSteep, ValuePattern::kNormal),
         })) {
      StructuredSpec s = Spec(scores, values, 1, 65536);
      s.dv = 2;
      StructuredProblem p(s, ++seed);
      PlanOptions options;
      options.split_keys = split;
      Hold(p, options, worst);
    }
  }
}

TEST(LongRowTest, ASinkIsOneMoreWeight) {
  // As heavy as all keys together, and far heavier than each of them.
  Worst worst;
  for (float sink : {11.0f, 17.0f}) {
    for (ValuePattern values : test::Thinned({ValuePattern::kTwoValued, ValuePattern::kNearOne})) {
      StructuredProblem p(Spec(ScorePattern::kEqual, values, 1, 60000), test::BaseSeed());
      p.problem.score.sinks = View(static_cast<const float*>(&sink), {1});
      Hold(p, {}, worst);
    }
  }
}

TEST(LongRowTest, WeightsSumToOne) {
  const int64_t Tk = 65536;
  for (ScorePattern scores : test::Thinned(test::kScorePatterns)) {
    StructuredProblem p(Spec(scores, ValuePattern::kConstant, 1, Tk), test::BaseSeed());
    test::OwnedTensor weights(DType::kF32, {1, 1, 1, Tk});
    p.problem.weights = weights.mutable_view();
    for (const Kernel& kernel : test::Kernels()) {
      ASSERT_TRUE(Attention(p.problem, test::Options(kernel), SerialExecutor()).ok());
      double sum = 0;
      for (double w : weights.Dense()) sum += w;
      EXPECT_NEAR(sum, 1, 1e-5) << ToString(kernel) << ", " << Name(scores) << " scores";
    }
  }
}

TEST(LongRowTest, SlowAMillionKeysAndManySeeds) {
  Worst worst;
  for (ScorePattern scores : test::kScorePatterns) {
    for (ValuePattern values : test::Thinned(test::kValuePatterns)) {
      StructuredProblem p(Spec(scores, values, 1, int64_t{1} << 20), test::BaseSeed());
      Hold(p, {}, worst);
      for (uint64_t n = 0; n < 20; ++n) {
        StructuredSpec s = Spec(scores, values, n % 2 == 0 ? 1 : 17, 32768);
        s.dv = 4;
        StructuredProblem seeded(s, test::BaseSeed() + n);
        Hold(seeded, {}, worst);
      }
    }
  }
}

}  // namespace
}  // namespace fovea
