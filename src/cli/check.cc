// fovea check: is this build right on this machine? Every usable instruction set and engine against
// the reference in double.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "cli/awkward_problem.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "fovea/fovea.h"
#include "measure/accuracy.h"

namespace fovea::cli {
namespace {

// What the problems showed of one instruction set and engine.
struct Verdict {
  int computed = 0, unsupported = 0, wrong = 0;
  double max_error = 0, max_lse_error = 0, max_weights_error = 0, worst_share = 0;
  std::string first_wrong, refusal;
};

void Judge(AwkwardProblem& awkward, const PlanOptions& options, Executor& executor,
           Verdict* verdict) {
  awkward.ClearOutputs();
  Plan plan;
  Status status = Plan::Create(awkward.problem(), options, &plan);
  if (status.code() == StatusCode::kUnsupported) {
    ++verdict->unsupported;
    if (verdict->refusal.empty()) verdict->refusal = status.message();
    return;
  }
  if (status.ok())
    status = Run(plan, awkward.problem(), OwnedWorkspace(plan, executor).get(), executor);
  if (!status.ok()) throw Failure(awkward.description() + ": " + status.message());
  const measure::Accuracy accuracy = measure::CompareAllRows(awkward.problem(), plan.product());
  ++verdict->computed;
  verdict->max_error = std::max(verdict->max_error, accuracy.max_error);
  verdict->max_lse_error = std::max(verdict->max_lse_error, accuracy.max_lse_error);
  verdict->max_weights_error = std::max(verdict->max_weights_error, accuracy.max_weights_error);
  verdict->worst_share = std::max(verdict->worst_share, accuracy.worst_share);
  if (!accuracy.ok() && verdict->wrong++ == 0) verdict->first_wrong = awkward.description();
}

void PrintVerdict(const PlanOptions& options, const Verdict& verdict) {
  std::printf("%-11s  %-6s  %8d  %9.2g  %9.2g  %9.2g  %10.0f%%  %s", Name(options.target),
              Name(options.engine), verdict.computed, verdict.max_error, verdict.max_lse_error,
              verdict.max_weights_error, 100 * verdict.worst_share,
              verdict.wrong == 0 ? "fine" : "WRONG");
  if (verdict.unsupported > 0)
    std::printf(" (%d not supported: %s)", verdict.unsupported, verdict.refusal.c_str());
  if (verdict.wrong > 0)
    std::printf(" in %d; first %s", verdict.wrong, verdict.first_wrong.c_str());
  std::printf("\n");
}

int RunCheck(const Args& args) {
  const uint64_t seed = static_cast<uint64_t>(args.Integer("--seed", 1, 0, INT64_MAX));
  const int problems = static_cast<int>(args.Integer("--problems", 128, 1, 1000000));
  const std::vector<Target> targets = TargetsFor(args.Text("--isa", "all"));
  const Threads threads(static_cast<int>(args.Integer("--threads", 1, 1, 1024)));

  std::printf("%d problems of seed %llu against the reference in double\n", problems,
              static_cast<unsigned long long>(seed));
  std::printf("%-11s  %-6s  %8s  %9s  %9s  %9s  %11s\n", "isa", "engine", "problems", "max error",
              "of lse", "of weights", "of bound");
  std::fflush(stdout);
  Progress progress(targets.size() * 2);
  bool all_fine = true;
  for (const Target target : targets) {
    for (const Engine engine : {Engine::kTile, Engine::kRow}) {
      progress.Step(std::string(Name(target)) + " " + Name(engine));
      PlanOptions options;
      options.target = target;
      options.engine = engine;
      Verdict verdict;
      for (int index = 0; index < problems; ++index) {
        AwkwardProblem awkward(seed, index);
        Judge(awkward, options, threads.executor(), &verdict);
      }
      progress.Clear();
      PrintVerdict(options, verdict);
      std::fflush(stdout);
      all_fine &= verdict.wrong == 0;
    }
  }
  return all_fine ? kFine : kWrong;
}

}  // namespace

Command CheckCommand() {
  return {"check",
          "Tests this build on this machine: small awkward problems on every usable instruction "
          "set and engine against the reference.\n"
          "Exit code 1 if any result is out of its bound.",
          {
              {"--isa", "all|best|NAMES", "instruction sets (default all)"},
              {"--seed", "N", "of the problems (default 1)"},
              {"--problems", "N", "how many (default 128)"},
              {"--threads", "N", "default 1"},
          },
          RunCheck};
}

}  // namespace fovea::cli
