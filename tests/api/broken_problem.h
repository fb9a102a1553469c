// Problems to break in the tests of validation, what breaks them, and what the error must say.
#ifndef FOVEA_TESTS_API_BROKEN_PROBLEM_H_
#define FOVEA_TESTS_API_BROKEN_PROBLEM_H_

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea::test {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr DType kUnknown = static_cast<DType>(77);

// B 2, Hq 4, Hkv 2, Tq 5, Tk 9, dk 6, dv 7, and everything that a problem can have but packed
// sequences.
ProblemSpec Everything();

// These sizes, and nothing else.
ProblemSpec Plain();

// Lengths of all that there is, so that nothing of a problem is behind them.
RandomProblem FullLengths();

// Everything again, in sequences of 5 and 2 queries among 9 rows, the first of them spare, or of 3
// and 9 keys among 13 rows.
RandomProblem Packed(bool queries, bool keys);

// What Create looks at as well, or only a call with tensors.
enum class Seen { kAlways, kByRuns };

struct Rule {
  const char* name;
  void (*break_it)(Problem&);
  std::vector<const char*> message;  // the field first
  StatusCode code = StatusCode::kInvalidArgument;
  Seen seen = Seen::kAlways;
};

// Writes a Rule: a name, the statement that breaks the problem `p`, and the rest of its members.
#define RULE(name, statement, ...)                   \
  Rule {                                             \
    name, [](Problem& p) { statement; }, __VA_ARGS__ \
  }

// Of FullLengths().
std::vector<Rule> DenseRules();
// Of Packed(true, true), of packed queries and dense keys, and the other way round.
std::vector<Rule> PackedRules();
std::vector<Rule> PackedQueryRules();
std::vector<Rule> PackedKeyRules();

// A legal problem, and the ways to break it.
struct Suite {
  RandomProblem (*make)();
  std::vector<Rule> rules;
};
std::vector<Suite> Suites();

// The message has all of `texts`.
testing::AssertionResult Says(const Status& status, const std::vector<const char*>& texts);

// A plan, its workspace, and what it gave before anybody tried to break it.
struct Planned {
  Plan plan;
  Memory memory;
  Workspace workspace;

  explicit Planned(const RandomProblem& p, const PlanOptions& options = {}) {
    const Status status = Plan::Create(p.problem, options, &plan);
    EXPECT_TRUE(status.ok()) << status.message();
    memory = Memory(plan.WorkspaceBytes(2), Placement::kBeforeGuard, 1);
    workspace = {memory.data(), memory.bytes()};
  }
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_API_BROKEN_PROBLEM_H_
