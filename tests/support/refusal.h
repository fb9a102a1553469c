// Problems that must be refused.
#ifndef FOVEA_TESTS_SUPPORT_REFUSAL_H_
#define FOVEA_TESTS_SUPPORT_REFUSAL_H_

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "fovea/attention.h"
#include "support/random_problem.h"

namespace fovea::test {

// Whether Attention refuses `p.problem` as invalid, with a message that has all of `words`, and
// writes nothing.
inline testing::AssertionResult Refuses(RandomProblem& p,
                                        std::initializer_list<const char*> words) {
  p.ResetOutputs();
  const Status status = Attention(p.problem);
  const std::string message = status.message();
  if (status.code() != StatusCode::kInvalidArgument)
    return testing::AssertionFailure() << "not refused as invalid: \"" << message << "\"";
  for (const char* word : words) {
    if (message.find(word) == std::string::npos)
      return testing::AssertionFailure() << "no \"" << word << "\" in \"" << message << "\"";
  }
  if (!p.OutputsUntouched()) return testing::AssertionFailure() << "an output was written";
  return testing::AssertionSuccess();
}

// Whether a plan of `planned` refuses to run `given`.
inline testing::AssertionResult RefusesToRun(const RandomProblem& planned,
                                             const RandomProblem& given, const char* word) {
  Plan plan;
  const Status created = Plan::Create(planned.problem, {}, &plan);
  if (!created.ok()) return testing::AssertionFailure() << created.message();
  const Memory memory(plan.WorkspaceBytes(1), Placement::kAligned, 1);
  const Status status = Run(plan, given.problem, {memory.data(), memory.bytes()});
  if (status.code() != StatusCode::kInvalidArgument)
    return testing::AssertionFailure() << "not refused as invalid: \"" << status.message() << "\"";
  if (std::string(status.message()).find(word) == std::string::npos)
    return testing::AssertionFailure() << "no \"" << word << "\" in \"" << status.message() << "\"";
  return testing::AssertionSuccess();
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_REFUSAL_H_
