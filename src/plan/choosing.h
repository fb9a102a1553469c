// Which engine, product, tile, block and splits a sequence gets.
#ifndef FOVEA_SRC_PLAN_CHOOSING_H_
#define FOVEA_SRC_PLAN_CHOOSING_H_

#include "plan/state.h"

namespace fovea {

Status CheckOptions(const PlanOptions& options) noexcept;

// A forced product must be one that target, engine and types have.
Status CheckProduct(const Plan::State& plan) noexcept;

// For sequence b, by its lengths; all but where its tasks are among those of the others. A sequence
// with nothing to read has geometry of the least scratch.
SequencePlan PlanSequence(const Plan::State& plan, int64_t b) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_CHOOSING_H_
