#include "cli/execution.h"

#include <algorithm>
#include <new>

#include "cli/failure.h"
#include "measure/text.h"
#if FOVEA_CLI_TBB
#include "fovea/tbb.h"
#endif

namespace fovea::cli {

Target TargetFor(const std::string& name) {
  Target target;
  Check(ParseTarget(name.c_str(), &target));
  if (target == Target::kAuto) {
    Check(ActiveTarget(&target));
    return target;
  }
  const TargetList usable = UsableTargets();
  if (std::find(usable.begin(), usable.end(), target) == usable.end()) {
    std::string names;
    for (const Target t : usable) names += std::string(names.empty() ? "" : ", ") + Name(t);
    throw Failure("instruction set " + name + " cannot be used here; usable: " + names);
  }
  return target;
}

std::vector<Target> TargetsFor(const std::string& names) {
  if (names == "best") return {TargetFor("auto")};
  if (names == "all") return {UsableTargets().begin(), UsableTargets().end()};
  std::vector<Target> targets;
  for (const std::string& name : measure::Split(names, ',')) targets.push_back(TargetFor(name));
  return targets;
}

Engine EngineFor(const std::string& name) {
  for (const Engine engine : {Engine::kAuto, Engine::kTile, Engine::kRow}) {
    if (name == Name(engine)) return engine;
  }
  throw Failure("--engine = '" + name + "', expected auto, tile or row");
}

Product ProductFor(const std::string& name) {
  for (const Product product : {Product::kAuto, Product::kF32, Product::kBF16}) {
    if (name == Name(product)) return product;
  }
  throw Failure("--product = '" + name + "', expected auto, f32 or bf16");
}

Threads::Threads(int threads) {
  if (threads == 1) return;
#if FOVEA_CLI_TBB
  pool_ = MakeTbbExecutor(threads);
  if (pool_ == nullptr) throw std::bad_alloc();
#else
  throw Failure("--threads = " + std::to_string(threads) +
                ": this program was built without oneTBB and has one thread");
#endif
}

Executor& Threads::executor() const { return pool_ != nullptr ? *pool_ : SerialExecutor(); }

OwnedWorkspace::OwnedWorkspace(const Plan& plan, const Executor& executor)
    : bytes_(plan.WorkspaceBytes(executor.Workers())),
      memory_(new char[std::max<size_t>(bytes_, 1)]) {}

void Compute(const Problem& problem, const PlanOptions& options, Executor& executor) {
  Plan plan;
  Check(Plan::Create(problem, options, &plan));
  const OwnedWorkspace workspace(plan, executor);
  Check(Run(plan, problem, workspace.get(), executor));
}

}  // namespace fovea::cli
