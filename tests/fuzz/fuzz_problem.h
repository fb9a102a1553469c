// From a seed, one valid problem, and what any right kernel makes of it.
#ifndef FOVEA_TESTS_FUZZ_FUZZ_PROBLEM_H_
#define FOVEA_TESTS_FUZZ_FUZZ_PROBLEM_H_

#include <cstdint>
#include <string>

#include "fovea/attention.h"
#include "fuzz/fuzz_spec.h"
#include "reference/reference.h"
#include "support/random_problem.h"

namespace fovea::fuzz {

class FuzzProblem {
 public:
  explicit FuzzProblem(uint64_t seed);

  const FuzzSpec& spec() const { return spec_; }
  std::string ToString() const { return fuzz::ToString(spec_) + extremes_; }
  const Problem& problem() const { return tensors_.problem; }
  test::RandomProblem& tensors() { return tensors_; }

  // The double reference, without the rows that tell nothing (their tolerance is infinite).
  reference::ForwardResult Expected() const;

  // The same problem with lengths and offsets of zero; only for planning.
  Problem WithoutLengths() const;

 private:
  FuzzProblem(uint64_t seed, test::Random random);
  void FillPatterns(test::Random& random);
  void SetExtremes(test::Random& random);
  // Makes of row [b, h, i] of the reference's result what any right kernel matches: an infinite
  // tolerance where the contract leaves a choice.
  void LeaveOpen(int64_t b, int64_t h, int64_t i, reference::ForwardResult* expected) const;

  FuzzSpec spec_;
  test::RandomProblem tensors_;
  std::string extremes_;                 // ", q[17] = nan"
  test::OwnedTensor zeros32_, zeros64_;  // [B]
};

}  // namespace fovea::fuzz

#endif  // FOVEA_TESTS_FUZZ_FUZZ_PROBLEM_H_
