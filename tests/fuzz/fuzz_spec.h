// What one problem of the fuzzer is, drawn from a seed: anywhere in the space of options, with the
// awkward sizes and values that hand-written tests forget.
#ifndef FOVEA_TESTS_FUZZ_FUZZ_SPEC_H_
#define FOVEA_TESTS_FUZZ_FUZZ_SPEC_H_

#include <cstdint>
#include <string>

#include "fovea/attention.h"
#include "support/patterns.h"
#include "support/problem_spec.h"
#include "support/random.h"

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
  // q is all 1, scores and values go by patterns along the keys
  bool patterned = false;
  test::ScorePattern scores = test::ScorePattern::kEqual;
  test::ValuePattern values = test::ValuePattern::kConstant;
  // V is the first dv channels of K, as in latent attention
  bool v_in_k = false;
  // how many elements of the inputs get NaN, Inf or another value from the edges
  int extremes = 0;
  // the plan is made for other lengths and offsets first
  bool update = false;
  Host host = Host::kSerial;
  int workers = 1;
  // in which of test::FloatStates() the caller is that time; −1: in the usual one
  int float_state = -1;
};
std::string ToString(const FuzzSpec& spec);

// The draw of each field stands in one place, so that a new field of ProblemSpec is a line there.
FuzzSpec DrawSpec(test::Random& random);

}  // namespace fovea::fuzz

#endif  // FOVEA_TESTS_FUZZ_FUZZ_SPEC_H_
