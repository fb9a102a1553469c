// Holds what a kernel wrote against the double reference, with the contract's bounds.
#ifndef FOVEA_TESTS_SUPPORT_CHECK_H_
#define FOVEA_TESTS_SUPPORT_CHECK_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/target.h"
#include "kernels/registry.h"
#include "reference/reference.h"
#include "support/random_problem.h"

namespace fovea::test {

// A way to compute a problem: the tests go through all of them.
struct Kernel {
  Target target;
  Engine engine;
  Product product = Product::kAuto;
};
// Those of any problem. Targets that add products of their own have the code of another target for
// the rest.
inline std::vector<Kernel> Kernels() {
  std::vector<Kernel> kernels;
  for (Target target : UsableTargets()) {
    if (IsNativeProduct(target, Product::kBF16)) continue;
    for (Engine engine : {Engine::kTile, Engine::kRow})
      kernels.push_back({target, engine, Product::kF32});
  }
  return kernels;
}
// Those of problems whose q, k and v are bf16.
inline std::vector<Kernel> BF16Kernels() {
  std::vector<Kernel> kernels;
  for (Target target : UsableTargets()) {
    if (HasProduct(target, Product::kBF16))
      kernels.push_back({target, Engine::kTile, Product::kBF16});
  }
  return kernels;
}
inline std::vector<Kernel> KernelsFor(const Problem& problem) {
  std::vector<Kernel> kernels = Kernels();
  if (problem.q.dtype == DType::kBF16 && problem.k.dtype == DType::kBF16 &&
      problem.v.dtype == DType::kBF16) {
    for (const Kernel& kernel : BF16Kernels()) kernels.push_back(kernel);
  }
  return kernels;
}
inline std::string ToString(const Kernel& kernel) {
  return std::string(fovea::Name(kernel.target)) + " " + fovea::Name(kernel.engine) + " " +
         fovea::Name(kernel.product);
}
inline PlanOptions Options(const Kernel& kernel, PlanOptions options = {}) {
  options.target = kernel.target;
  options.engine = kernel.engine;
  options.product = kernel.product;
  return options;
}

// Whether out, lse, weights and scores (where present) of `problem` are `expected` to the
// contract's precision:
//   |out error| ≤ (t + weight_tolerance)·max|v|    before it is rounded to a 16-bit type
//   |weights error| ≤ t                             a weight is the out of a one-hot V
//   |lse error| ≤ t + 1e-6·|lse|
//   |scores error| ≤ t of the pair                  a score is the lse of a row with one key
// exact for empty rows and removed pairs; NaN where and only where the reference has it. Rows and
// pairs with an infinite t are not looked at. The result names the worst element, by the row of [B,
// Hq, Tq].
testing::AssertionResult Matches(const Problem& problem, const reference::ForwardResult& expected,
                                 double weight_tolerance = 0);

// Runs `p` on every kernel with `options` otherwise, checks it against the reference, and that
// nothing outside the outputs' elements changed. One failure per kernel.
void ExpectMatchesReference(RandomProblem& p, const PlanOptions& options = {});
// The same for a random problem of seed BaseSeed() + number, which a failure shows.
void ExpectMatchesReference(const ProblemSpec& spec, uint64_t number,
                            const PlanOptions& options = {});

// Runs `p` on one kernel, its outputs untouched before. An error is a failure.
void RunOn(const Kernel& kernel, RandomProblem& p, const PlanOptions& options = {});

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_CHECK_H_
