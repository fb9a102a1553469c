// Ways to run a plan: what a host may do with its own threads.
#ifndef FOVEA_TESTS_SUPPORT_EXECUTORS_H_
#define FOVEA_TESTS_SUPPORT_EXECUTORS_H_

#include <atomic>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "support/owned_tensor.h"
#include "support/random.h"

namespace fovea::test {

// Runs the tasks of a bound call in a random order on `workers` threads of its own, a barrier
// (join) behind each phase.
template <class Call>
void RunShuffled(const Call& call, int workers, uint64_t seed) {
  Random random(seed);
  for (int phase = 0; phase < call.Phases(); ++phase) {
    std::vector<int64_t> order(static_cast<size_t>(call.Tasks(phase)));
    for (size_t n = 0; n < order.size(); ++n) order[n] = static_cast<int64_t>(n);
    random.Shuffle(order);
#if defined(__wasi__)  // no threads: the workers take turns
    for (size_t n = 0; n < order.size(); ++n)
      call.RunTask(phase, order[n], static_cast<int>(n % static_cast<size_t>(workers)));
#else
    std::atomic<size_t> next{0};
    const auto work = [&](int worker) {
      for (size_t n; (n = next++) < order.size();) call.RunTask(phase, order[n], worker);
    };
    std::vector<std::thread> threads;
    for (int worker = 1; worker < workers; ++worker) threads.emplace_back(work, worker);
    work(0);
    for (std::thread& thread : threads) thread.join();
#endif
  }
}

// Host-driven in one call: a workspace of exactly the bytes asked for, full of NaN, behind which no
// memory is accessible.
template <class Call, class AnyPlan, class AnyProblem>
Status RunHostDrivenAs(const AnyPlan& plan, const AnyProblem& problem, int workers, uint64_t seed) {
  const Memory memory(plan.WorkspaceBytes(workers), Placement::kBeforeGuard, 1);
  for (size_t n = 0; n < memory.bytes(); ++n) memory.data()[n] = 0xFF;
  Call call;
  const Status status =
      Bind(plan, problem, Workspace{memory.data(), memory.bytes()}, workers, &call);
  if (status.ok()) RunShuffled(call, workers, seed);
  return status;
}
inline Status RunHostDriven(const Plan& plan, const Problem& problem, int workers, uint64_t seed) {
  return RunHostDrivenAs<BoundCall>(plan, problem, workers, seed);
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_EXECUTORS_H_
