// Gradients of random problems, owning all their memory, and what they may differ by from the
// reference.
#ifndef FOVEA_TESTS_SUPPORT_RANDOM_GRADIENTS_H_
#define FOVEA_TESTS_SUPPORT_RANDOM_GRADIENTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fovea/gradient.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea::test {

struct RandomGradients {
  RandomProblem p;  // of the reference's out and lse, rounded to their types
  OwnedTensor dout, dlse, dq, dk, dv, dbias, dsinks, dhead_scales;
  GradientProblem problem;

  // Every gradient that the problem has; dout and dlse unit-normal, NaN in rows that are not there.
  RandomGradients(const ProblemSpec& spec, uint64_t seed, DType gradient_type = DType::kF32);
  void Refresh();
  void ResetGradients();
  bool Untouched() const;

  struct Gradient {
    const char* name;
    const OwnedTensor* tensor;
  };
  std::vector<Gradient> gradients() const;
  // All gradients' elements.
  std::vector<unsigned char> Bytes() const;
};

// Plans and runs on that target, on so many threads; padding must be as it was.
void RunGradients(RandomGradients& g, Target target, int workers = 1);

// The gradients against those of the reference, within the contract's bounds.
void ExpectGradientsMatch(const RandomGradients& g);

// On all usable targets.
void ExpectGradientsMatchReference(RandomGradients& g);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_RANDOM_GRADIENTS_H_
