// FOVEA_TARGET: read once, at the first use in a process, so each test asks a child process. The
// parent must not use a target itself.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fovea/attention.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

// Sets FOVEA_TARGET (null: unsets it) in a child process and returns what `answer` says there.
template <class Answer>
std::string InChild(const char* value, Answer answer) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe";
  const pid_t child = fork();
  if (child < 0) return "fork";
  if (child == 0) {
    close(ends[0]);
    if (value == nullptr) {
      unsetenv("FOVEA_TARGET");
    } else {
      setenv("FOVEA_TARGET", value, 1);
    }
    const std::string text = answer();
    const bool written =
        write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int state = 0;
  waitpid(child, &state, 0);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) return "the child died: " + text;
  return text;
}

std::string Active() {
  Target target = Target::kAuto;
  const Status status = ActiveTarget(&target);
  return status.ok() ? Name(target) : std::string("error: ") + status.message();
}

// The target of a default plan, and the message of the one-shot call.
std::string Planned() {
  test::RandomProblem p(test::ProblemSpec(), 1);
  Plan plan;
  const Status status = Plan::Create(p.problem, {}, &plan);
  const Status call = Attention(p.problem);
  if (std::string(status.message()) != call.message()) return "two answers";
  if (!status.ok() && !p.OutputsUntouched()) return "outputs were touched";
  if (!status.ok() && status.code() != StatusCode::kInvalidArgument &&
      status.code() != StatusCode::kUnsupported)
    return "wrong code";
  return status.ok() ? Name(plan.target()) : std::string("error: ") + status.message();
}

TEST(TargetEnvironmentTest, UnsetOrAutoMeansTheBestUsableTarget) {
  const std::string best = Name(UsableTargets().data[0]);
  for (const char* value : {static_cast<const char*>(nullptr), "auto"}) {
    EXPECT_EQ(InChild(value, Active), best);
    EXPECT_EQ(InChild(value, Planned), best);
  }
}

TEST(TargetEnvironmentTest, NamesTheTargetOfAutomaticPlans) {
  for (Target target : UsableTargets()) {
    EXPECT_EQ(InChild(Name(target), Active), Name(target));
    EXPECT_EQ(InChild(Name(target), Planned), Name(target));
  }
}

TEST(TargetEnvironmentTest, AnExplicitTargetWins) {
  const Target first = UsableTargets().data[0],
               last = UsableTargets().data[UsableTargets().count - 1];
  EXPECT_EQ(InChild(Name(first),
                    [last] {
                      test::RandomProblem p(test::ProblemSpec(), 1);
                      PlanOptions options;
                      options.target = last;
                      Plan plan;
                      const Status status = Plan::Create(p.problem, options, &plan);
                      return status.ok() ? std::string(Name(plan.target()))
                                         : std::string(status.message());
                    }),
            Name(last));
}

TEST(TargetEnvironmentTest, ABadNameIsAnErrorFromTheFirstPlanThatListsTheValidOnes) {
  for (const char* value : {"avx9000", " ", "AVX-512", "sse2 "}) {
    for (const std::string& message : {InChild(value, Active), InChild(value, Planned)}) {
      EXPECT_EQ(message.rfind("error: ", 0), 0u) << message;
      EXPECT_NE(message.find("FOVEA_TARGET"), std::string::npos) << message;
      EXPECT_NE(message.find(value), std::string::npos) << message;
      for (Target target : UsableTargets())
        EXPECT_NE(message.find(Name(target)), std::string::npos) << message;
    }
  }
}

TEST(TargetEnvironmentTest, ATargetThatCannotRunHereIsAnErrorAndNotAFallback) {
  for (Target target : {Target::kEmu128, Target::kSse2, Target::kSse4, Target::kAvx2,
                        Target::kAvx512, Target::kNeon, Target::kAvx512Bf16, Target::kNeonBf16,
                        Target::kAvx512Amx, Target::kPpc8, Target::kPpc9, Target::kWasm}) {
    bool usable = false;
    for (Target t : UsableTargets()) usable = usable || t == target;
    if (usable) continue;
    const std::string message = InChild(Name(target), Planned);
    EXPECT_EQ(message.rfind("error: ", 0), 0u) << message;
    EXPECT_NE(message.find(Name(target)), std::string::npos) << message;
    EXPECT_NE(message.find("FOVEA_TARGET"), std::string::npos) << message;
  }
}

TEST(TargetEnvironmentTest, IsReadOnceAndTheErrorIsTheSameFromEveryPlan) {
  const std::string last = Name(UsableTargets().data[UsableTargets().count - 1]);
  EXPECT_EQ(InChild("nonsense",
                    [last] {
                      const std::string first = Planned();
                      setenv("FOVEA_TARGET", last.c_str(), 1);
                      const std::string second = Planned();
                      return first == second ? std::string("same") : first + " / " + second;
                    }),
            "same");
  EXPECT_EQ(InChild(last.c_str(),
                    [] {
                      const std::string first = Active();
                      setenv("FOVEA_TARGET", "nonsense", 1);
                      return first + " " + Active() + " " + Planned();
                    }),
            last + " " + last + " " + last);
}

TEST(TargetEnvironmentTest, ABadNameDoesNotMatterToPlansWithATargetOfTheirOwn) {
  EXPECT_EQ(InChild("nonsense",
                    [] {
                      test::RandomProblem p(test::ProblemSpec(), 1);
                      PlanOptions options;
                      options.target = UsableTargets().data[0];
                      const Status status = Attention(p.problem, options, SerialExecutor());
                      return status.ok() ? std::string("ok") : std::string(status.message());
                    }),
            "ok");
}

}  // namespace
}  // namespace fovea
