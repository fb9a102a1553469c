// Whole calls on every workload, instruction set and number of threads: the time of Run with a plan
// made before. The result is checked first.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "measure/accuracy.h"
#include "measure/roofline.h"
#include "measure/workload.h"
#include "measure/workload_tensors.h"
#if FOVEA_BENCH_TBB
#include "fovea/tbb.h"
#endif

namespace fovea::measure {
namespace {

std::unique_ptr<Executor> MakeExecutor(int threads) {
#if FOVEA_BENCH_TBB
  if (threads > 1) return MakeTbbExecutor(threads);
#endif
  static_cast<void>(threads);
  return nullptr;
}

// Rates besides time: GFLOP/s and its share of the multiply-add peak around the run, and for decode
// GB/s of K and V and its share of what reading the same memory reaches.
void BenchAttention(benchmark::State& state, const Workload& workload, Target target, int threads) {
  const WorkloadTensors tensors(workload, /*seed=*/1);
  if (!tensors.ok()) return state.SkipWithError("out of memory");
  PlanOptions options;
  options.target = target;
  Plan plan;
  if (const Status status = Plan::Create(tensors.At(0), options, &plan); !status.ok())
    return state.SkipWithError(status.message());
  const std::unique_ptr<Executor> pool = MakeExecutor(threads);
  Executor& executor = pool != nullptr ? *pool : SerialExecutor();
  std::vector<char> memory(plan.WorkspaceBytes(executor.Workers()));
  const Workspace workspace{memory.data(), memory.size()};

  if (const Status status = Run(plan, tensors.At(0), workspace, executor); !status.ok())
    return state.SkipWithError(status.message());
  const Accuracy accuracy = CompareSampledRows(tensors.At(0), plan.product());
  if (!accuracy.ok()) return state.SkipWithError("the result is wrong");

  const auto limit = [&] {
    return workload.IsDecode() ? ReadGbps(tensors.kv_data(), tensors.kv_bytes(), threads).median
                               : ProductGflops(target, plan.product(), threads).median;
  };
  const double before = limit();
  int64_t index = 0;
  for (auto _ : state) {
    if (!Run(plan, tensors.At(index++), workspace, executor).ok())
      return state.SkipWithError("Run failed");
  }
  const double mean_limit = 1e9 * (before + limit()) / 2;

  using benchmark::Counter;
  const double work = workload.IsDecode() ? workload.KvBytes() : workload.Flops();
  state.counters[workload.IsDecode() ? "KV_B/s" : "FLOP/s"] =
      Counter(work, Counter::kIsIterationInvariantRate);
  if (mean_limit > 0)
    state.counters["share"] = Counter(work / mean_limit, Counter::kIsIterationInvariantRate);
  state.counters["max_err"] = accuracy.max_error;
  state.counters["workspace"] =
      Counter(static_cast<double>(memory.size()), Counter::kDefaults, Counter::kIs1024);
  state.SetLabel(Name(plan.engine()));
}

const bool kRegistered = [] {
  std::vector<Workload> workloads = NamedWorkloads();
  for (const Workload& workload : WorkloadSet("modifiers")) {
    if (!workload.modifiers.empty()) workloads.push_back(workload);
  }
  for (const Workload& workload : NamedWorkloads()) {
    for (const DType type : {DType::kBF16, DType::kF16})
      workloads.push_back(InType(workload, type));
  }
  for (const Workload& workload : workloads) {
    for (const Target target : UsableTargets()) {
      for (const int threads : {1, 2}) {
        if (threads > 1 && !FOVEA_BENCH_TBB) continue;
        const std::string name = "attention/" + workload.name + "/" + Name(target) +
                                 "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), BenchAttention, workload, target, threads)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace fovea::measure
