// A module around the library of one revision, from its public headers alone.
#include "timed.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::turns {
namespace {

struct Call {
  Plan plan;
  std::vector<char> workspace;
  std::string kernel;
};

template <class FoveaView>
void Copy(const View& from, FoveaView* to) {
  if (from.rank == 0) return;
  to->data = from.data;
  to->dtype = static_cast<DType>(from.dtype);
  to->rank = from.rank;
  std::copy_n(from.shape, from.rank, to->shape);
  std::copy_n(from.stride, from.rank, to->stride);
}

Problem ProblemOf(const TimedProblem& from) {
  Problem problem;
  Copy(from.q, &problem.q);
  Copy(from.k, &problem.k);
  Copy(from.v, &problem.v);
  Copy(from.out, &problem.out);
  Score& score = problem.score;
  Copy(from.alibi_slopes, &score.alibi_slopes);
  Copy(from.bias, &score.bias);
  Copy(from.mask, &score.mask);
  Copy(from.sinks, &score.sinks);
  score.softcap = from.softcap;
  score.causal = static_cast<Causal>(from.causal);
  score.window = {from.window_left, from.window_right};
  if (from.has_offset) score.query_offset = from.offset;
  return problem;
}

void* MakeCall(const TimedProblem& problem) {
  Call* const call = new Call;
  if (!Plan::Create(ProblemOf(problem), {}, &call->plan).ok()) {
    delete call;
    return nullptr;
  }
  const Plan& plan = call->plan;
  call->workspace.resize(plan.WorkspaceBytes(1));
  call->kernel =
      std::string(Name(plan.target())) + " " + Name(plan.engine()) + " " + Name(plan.product());
  return call;
}

void ReleaseCall(void* call) { delete static_cast<Call*>(call); }

const char* KernelOf(const void* call) { return static_cast<const Call*>(call)->kernel.c_str(); }

bool RunPlanned(const void* call, const TimedProblem& from, int64_t times) {
  const Call& c = *static_cast<const Call*>(call);
  const Problem problem = ProblemOf(from);
  // One thread calls, so that nobody else uses the workspace.
  const Workspace workspace = {const_cast<char*>(c.workspace.data()), c.workspace.size()};
  bool ok = true;
  for (int64_t n = 0; n < times; ++n) ok &= Run(c.plan, problem, workspace).ok();
  return ok;
}

bool RunOneShot(const TimedProblem& from, int64_t times) {
  const Problem problem = ProblemOf(from);
  bool ok = true;
  for (int64_t n = 0; n < times; ++n) ok &= Attention(problem).ok();
  return ok;
}

}  // namespace
}  // namespace fovea::turns

extern "C" __attribute__((visibility("default"))) const fovea::turns::TimedLibrary*
FoveaTimedLibrary() {
  static const fovea::turns::TimedLibrary kLibrary = {
      fovea::turns::MakeCall, fovea::turns::ReleaseCall, fovea::turns::KernelOf,
      fovea::turns::RunPlanned, fovea::turns::RunOneShot};
  return &kLibrary;
}
