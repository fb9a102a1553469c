// From a seed, one valid problem anywhere in the space of options, with the awkward sizes and
// values that hand-written tests forget.
#ifndef FOVEA_TESTS_FUZZ_FUZZ_PROBLEM_H_
#define FOVEA_TESTS_FUZZ_FUZZ_PROBLEM_H_

#include <cstdint>
#include <string>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/random_problem.h"

namespace fovea::fuzz {

// Who runs the plan a second time, to the same bits as serially.
enum class Host { kSerial, kTbb, kThreads };

// What a ProblemSpec cannot say.
struct FuzzSpec {
  test::ProblemSpec problem;
  PlanOptions options;  // target, engine and product are the fuzzer's loop
  // Factors on the unit-normal values.
  double q_size = 1, k_size = 1, v_size = 1;
  unsigned bias_broadcast = 0, mask_broadcast = 0;  // as Storage::broadcast
  // V is the first dv channels of K, as in latent attention
  bool v_in_k = false;
  // how many elements of the inputs get NaN, Inf or another value from the edges
  int extremes = 0;
  // the plan is made for other lengths and offsets first
  bool update = false;
  Host host = Host::kSerial;
  int workers = 1;
};
std::string ToString(const FuzzSpec& spec);

// The draw of each field stands in one place, so that a new field of ProblemSpec is a line there.
FuzzSpec DrawSpec(test::Random& random);

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
