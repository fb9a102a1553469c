#include "problem.h"

#include <cstdint>
#include <utility>

namespace fovea::same_bits {
namespace {

constexpr int kWorkers = 2;

void RunTasks(const BoundCall& call) {
  for (int phase = 0; phase < call.Phases(); ++phase) {
    for (int64_t task = call.Tasks(phase); task-- > 0;) {
      call.RunTask(phase, task, static_cast<int>(task % kWorkers));
    }
  }
}

}  // namespace

TensorView Case::Own(Tensor tensor) {
  inputs.push_back(std::move(tensor));
  return inputs.back().view();
}

void Case::OwnOutputs(Tensor new_out, Tensor new_lse, Tensor new_weights, Tensor new_scores) {
  out = std::move(new_out), lse = std::move(new_lse);
  weights = std::move(new_weights), scores = std::move(new_scores);
  problem.out = out.mutable_view();
  problem.lse = lse.mutable_view();
  problem.weights = weights.mutable_view();
  problem.scores = scores.mutable_view();
}

void Case::MakeBefore() {
  before = problem;
  Score& score = before.score;
  for (TensorView* view : {&score.q_lengths, &score.kv_lengths, &score.query_offsets}) {
    if (!view->present()) continue;
    Tensor zeros(view->dtype, {view->shape[0]});
    zeros.Fill([] { return 0.0; });
    *view = Own(std::move(zeros));
  }
}

Status RunCase(Case* c, const PlanOptions& options) {
  for (Tensor* tensor : {&c->out, &c->lse, &c->weights, &c->scores}) tensor->Reset();
  if (!c->parts.empty()) {
    return Merge(c->parts.data(), static_cast<int64_t>(c->parts.size()), c->problem.out,
                 c->problem.lse);
  }
  if (c->way == Way::kOneShot) return Attention(c->problem, options, SerialExecutor());

  Plan plan;
  Status status = Plan::Create(c->way == Way::kUpdate ? c->before : c->problem, options, &plan);
  if (status.ok() && c->way == Way::kUpdate) status = plan.Update(c->problem);
  if (!status.ok()) return status;
  const int workers = c->way == Way::kTasks ? kWorkers : 1;
  // NaN, so that what a kernel reads before it writes shows.
  std::vector<char> memory(plan.WorkspaceBytes(workers), static_cast<char>(0xFF));
  const Workspace workspace = {memory.data(), memory.size()};
  if (c->way != Way::kTasks) return Run(plan, c->problem, workspace);
  BoundCall call;
  status = Bind(plan, c->problem, workspace, workers, &call);
  if (status.ok()) RunTasks(call);
  return status;
}

}  // namespace fovea::same_bits
