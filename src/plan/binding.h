// What a plan was made for, and whether a problem is one of that kind.
#ifndef FOVEA_SRC_PLAN_BINDING_H_
#define FOVEA_SRC_PLAN_BINDING_H_

#include "plan/state.h"

namespace fovea {

// Notes everything that Run compares, lengths aside.
void BindProblem(const ValidProblem& problem, Plan::State* plan) noexcept;

// Whether Update may take it, lengths aside.
Status CheckUpdate(const Plan::State& plan, const ValidProblem& problem) noexcept;

// Whether Run may take it: sizes, types, lengths, offsets, causal, window and which tensors are
// present. Reads lengths; no allocation.
Status CheckAgainstPlan(const Plan::State& plan, const ValidProblem& problem) noexcept;

// Whether the problem is, as far as any check goes, the one that was planned last: then Run takes
// it without the checks, which would say the same again. False does not mean that it differs: what
// says its lengths by tensors is not looked at here.
struct Repetition {
  bool same = false;
  bool settled = false;  // IsSettled, of all tensors
};
Repetition CompareWithPlanned(const Plan::State& plan, const Problem& problem) noexcept;

// How the map of a view of the problem's lies; all zero where there are no pairs.
MaskMapLayout MapLayoutOf(const MapSource& source, const ValidProblem& problem) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_BINDING_H_
