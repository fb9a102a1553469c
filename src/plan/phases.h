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

struct Phase {
  const char* name;
  int64_t (*tasks)(const Plan::State& plan);
  void (*run)(const RunContext& context, int64_t task, int worker);
};

// In the order in which they run: map, trees, items, merges, weights, scores.
extern const Phase kPhases[kPhaseCount];

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_PHASES_H_
