// What a run wrote, bit for bit: for tests of things that must not change results at all.
#ifndef FOVEA_TESTS_SUPPORT_OUTCOME_H_
#define FOVEA_TESTS_SUPPORT_OUTCOME_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea::test {

// Each kernel, and what each target chooses by itself.
inline std::vector<Kernel> KernelsAndAuto() {
  std::vector<Kernel> kernels = Kernels();
  for (Target target : UsableTargets()) kernels.push_back({target, Engine::kAuto});
  return kernels;
}

struct Outcome {
  std::vector<unsigned char> out, lse, weights, scores;
  bool operator==(const Outcome& other) const {
    return out == other.out && lse == other.lse && weights == other.weights &&
           scores == other.scores;
  }
};

inline Outcome OutcomeOf(const RandomProblem& p) {
  const auto bytes = [](const OwnedTensor& tensor) {
    return tensor.present() ? tensor.Bytes() : std::vector<unsigned char>();
  };
  return {bytes(p.out), bytes(p.lse), bytes(p.weights), bytes(p.scores)};
}

// A serial run on outputs as new.
inline Outcome RunSerial(const Kernel& kernel, RandomProblem& p, PlanOptions options = {}) {
  options.target = kernel.target;
  options.engine = kernel.engine;
  options.fixed_mask = options.fixed_mask || p.spec.fixed_mask;
  p.ResetOutputs();
  const Status status = Attention(p.problem, options, SerialExecutor());
  EXPECT_TRUE(status.ok()) << ToString(kernel) << ": " << status.message();
  return OutcomeOf(p);
}

// Whether the bits are the same; the result names the first f32 that is not.
inline testing::AssertionResult Same(const Outcome& got, const Outcome& want) {
  for (const auto& [name, tensor] :
       {std::pair<const char*, std::vector<unsigned char> Outcome::*>{"out", &Outcome::out},
        {"lse", &Outcome::lse},
        {"weights", &Outcome::weights},
        {"scores", &Outcome::scores}}) {
    const std::vector<unsigned char>&x = got.*tensor, &y = want.*tensor;
    if (x == y) continue;
    if (x.size() != y.size())
      return testing::AssertionFailure()
             << name << ": " << x.size() << " bytes, expected " << y.size();
    for (size_t n = 0; n < x.size(); ++n) {
      if (x[n] == y[n]) continue;
      const size_t element = n / 4 * 4;
      return testing::AssertionFailure()
             << name << " element " << n / 4 << " = "
             << DecodeElement(DType::kF32, x.data() + element) << ", expected the bits of "
             << DecodeElement(DType::kF32, y.data() + element);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_OUTCOME_H_
