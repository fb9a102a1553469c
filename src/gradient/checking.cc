#include <cinttypes>

#include "gradient/state.h"

namespace fovea {
namespace {

constexpr Shape kOfBias = {4, 1, 0, {Axis::kAny, Axis::kAny, Axis::kAny, Axis::kAny}};
constexpr Shape kOfRows = Exactly(Axis::kAny, Axis::kAny, Axis::kAny);
constexpr Shape kOfHeads = Exactly(Axis::kAny);

// f(row, view, the view that it is like, that one's name).
template <class Problem, class F>
void ForEachGradient(Problem& p, const F& f) {
  f(Input("dout", kSizes, kFloats).Required(), p.dout, p.forward.out, "out");
  f(Input("dlse", kOfRows, kF32), p.dlse, p.forward.lse, "lse");
  f(Output("dq", kSizes, kFloats), p.dq, p.forward.q, "q");
  f(Output("dk", kSizes, kFloats), p.dk, p.forward.k, "k");
  f(Output("dv", kSizes, kFloats), p.dv, p.forward.v, "v");
  f(Output("dbias", kOfBias, kFloats), p.dbias, p.forward.score.bias, "bias");
  f(Output("dsinks", kOfHeads, kF32), p.dsinks, p.forward.score.sinks, "sinks");
  f(Output("dhead_scales", kOfHeads, kF32), p.dhead_scales, p.forward.score.head_scales,
    "head_scales");
}

template <class View>
Status CheckLike(const TensorFacts& t, const View& like, const char* like_name) {
  if (!like.present())
    return Invalid("%s is given without %s, of which it is the gradient", t.name, like_name);
  if (t.rank != like.rank)
    return Invalid("%s.rank = %d, expected %d (that of %s)", t.name, t.rank, like.rank, like_name);
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] != like.shape[a]) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected %" PRId64 " (%s.shape[%d])", t.name, a,
                     t.shape[a], like.shape[a], like_name, a);
    }
  }
  return Status();
}

// What gradients are not made of.
Status CheckSupported(const Problem& forward) {
  if (forward.weights.present())
    return Invalid("weights.rank = %d, expected none: gradients write no weights",
                   forward.weights.rank);
  if (forward.scores.present())
    return Invalid("scores.rank = %d, expected none: gradients write no scores",
                   forward.scores.rank);
  if (!forward.lse.present()) return Invalid("lse.rank = 0, expected 3: gradients read it");
  if (forward.score.function.present())
    return Unsupported("function is given: a score function has no gradients");
  if (forward.pages.table.present())
    return Unsupported("pages.table is given: gradients are made of tensors without pages");
  for (const TensorFacts& t : {Facts("k", forward.k), Facts("v", forward.v)}) {
    if (IsQuantised(t.dtype))
      return Unsupported("%s.dtype = %s: gradients are made of f32, f16 or bf16", t.name,
                         Name(t.dtype));
  }
  if (forward.ring) return Unsupported("ring = true: gradients are made of tensors without rings");
  if (forward.score.key_offsets.present())
    return Unsupported("key_offsets is given: gradients are made of keys from position 0 on");
  return Status();
}

}  // namespace

Status CheckGradients(const GradientProblem& problem, const ValidProblem& valid) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckSupported(*valid));
  Status status;
  bool any = false;
  ForEachGradient(problem, [&](const TensorRow& row, const auto& view, const auto& like,
                               const char* like_name) {
    if (!status.ok() || !(row.required || view.present())) return;
    any = any || row.role == Role::kOutput;
    const TensorFacts t = Facts(row.name, view);
    status = CheckForm(row, t);
    if (status.ok()) status = CheckLike(t, like, like_name);
  });
  FOVEA_RETURN_IF_ERROR(status);
  if (!any) return Invalid("no gradient is given, expected one of dq, dk, dv, dbias, dsinks, …");
  return Status();
}

Status CheckGradientData(const GradientProblem& problem) noexcept {
  Status status;
  ForEachGradient(problem, [&](const TensorRow& row, const auto& view, const auto&, const char*) {
    if (status.ok() && view.present()) status = CheckNotNull(Facts(row.name, view));
  });
  return status;
}

Status CheckBoundGradients(const GradientPlan::State& plan,
                           const GradientProblem& problem) noexcept {
  if (problem.accumulate != plan.bound.accumulate)
    return Invalid("accumulate = %d, expected %d (the plan)", problem.accumulate,
                   plan.bound.accumulate);
  Status status;
  const auto check = [&](const char* name, const auto& given, const auto& bound) {
    if (!status.ok()) return;
    if (given.rank != bound.rank) {
      status = Invalid("%s.rank = %d, expected %d (the plan)", name, given.rank, bound.rank);
    } else if (given.rank > 0 && given.dtype != bound.dtype) {
      status = Invalid("%s.dtype = %s, expected %s (the plan)", name, Name(given.dtype),
                       Name(bound.dtype));
    }
  };
  const GradientProblem& b = plan.bound;
  check("dout", problem.dout, b.dout);
  check("dlse", problem.dlse, b.dlse);
  check("dq", problem.dq, b.dq);
  check("dk", problem.dk, b.dk);
  check("dv", problem.dv, b.dv);
  check("dbias", problem.dbias, b.dbias);
  check("dsinks", problem.dsinks, b.dsinks);
  check("dhead_scales", problem.dhead_scales, b.dhead_scales);
  return status;
}

}  // namespace fovea
