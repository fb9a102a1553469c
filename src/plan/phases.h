// The phases of a call: each is a number of tasks that may run in any order, and is over before the
// next begins. Those without tasks are left out of a plan.
#ifndef FOVEA_SRC_PLAN_PHASES_H_
#define FOVEA_SRC_PLAN_PHASES_H_

#include <cstdint>

#include "plan/state.h"

namespace fovea {

// What all tasks of a run share.
struct RunContext {
  const Plan::State* plan;
  const Problem* problem;  // settled: validate.h
  char* workspace;         // aligned
  float scale;
};

inline float ScaleOf(const Plan::State& plan, const Problem& problem) {
  return problem.score.scale.has_value() ? *problem.score.scale : plan.default_scale;
}

struct Phase {
  const char* name;
  int64_t (*tasks)(const Plan::State& plan);
  void (*run)(const RunContext& context, int64_t task, int worker);
};

// Of a plan: sums in double.
Cost CostOf(const Plan::State& state) noexcept;

// What kernels are told, of a problem in tiles of that geometry.
KernelCall CallOf(const RunContext& context, const Geometry& geometry);

// In the order in which they run: map, trees, items, merges, weights, scores.
extern const Phase kPhases[kPhaseCount];
// The first ones, which write nothing but what kernels look up in the workspace: maps and trees.
constexpr int kPreparingPhases = 2;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_PHASES_H_
