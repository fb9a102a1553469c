// Making plans, in memory of the caller's.
#ifndef FOVEA_SRC_PLAN_PLAN_H_
#define FOVEA_SRC_PLAN_PLAN_H_

#include "plan/state.h"

namespace fovea {

// Plans `problem`. *plan was made with it and options that have passed CheckOptions; on an error it
// may only be destroyed. Allocates.
Status MakePlan(const ValidProblem& problem, Plan::State* plan) noexcept;

// Plans again, as Plan::Update says.
Status UpdatePlan(const ValidProblem& problem, LastingState* plan) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_PLAN_H_
