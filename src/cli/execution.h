// Where a command computes: instruction sets, engines and threads by the names of the command line.
#ifndef FOVEA_CLI_EXECUTION_H_
#define FOVEA_CLI_EXECUTION_H_

#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/executor.h"
#include "fovea/target.h"

namespace fovea::cli {

// "best": the one that plans use by default; "all": every usable one, best first; else names.
// Throws on names that this machine cannot run.
std::vector<Target> TargetsFor(const std::string& names);
Target TargetFor(const std::string& name);  // one of the names, "auto" included

Engine EngineFor(const std::string& name);    // "auto", "tile", "row"
Product ProductFor(const std::string& name);  // "auto", "f32", "bf16"

// One thread is the serial executor; more need oneTBB and throw where the program was built without
// it.
class Threads {
 public:
  explicit Threads(int threads);
  Executor& executor() const;

 private:
  std::unique_ptr<Executor> pool_;
};

// Memory for runs of a plan with that executor. Throws std::bad_alloc.
class OwnedWorkspace {
 public:
  OwnedWorkspace(const Plan& plan, const Executor& executor);
  Workspace get() const { return {memory_.get(), bytes_}; }

 private:
  size_t bytes_;
  std::unique_ptr<char[]> memory_;
};

// Plans and runs `problem`; throws on any error.
void Compute(const Problem& problem, const PlanOptions& options, Executor& executor);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_EXECUTION_H_
