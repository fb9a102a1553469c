// The header-only edition on xsimd beside the library on Highway: the same problem, instruction set
// and single thread, calls of both in turn, so that both meet the same moments of the machine. The
// time is that of the header-only edition; `library` is that of the library and `share` the
// quotient of the fastest calls of each. Both results are checked first.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "embedded/instance.h"
#include "fovea/embedded/problem.h"
#include "fovea/fovea.h"
#include "measure/accuracy.h"
#include "measure/clock.h"
#include "measure/workload.h"
#include "measure/workload_tensors.h"

namespace fovea::measure {
namespace {

using test::EmbeddedInstance;

template <class To, class From>
To TensorOf(const From& view) {
  To tensor;
  tensor.data = view.data;
  std::copy_n(view.stride, 4, tensor.stride);
  return tensor;
}

// Of a workload in f32 without modifiers.
embedded::Problem Convert(const Problem& p) {
  embedded::Problem e;
  e.B = p.q.shape[0], e.Hq = p.q.shape[1], e.Hkv = p.k.shape[1], e.Tq = p.q.shape[2],
  e.Tk = p.k.shape[2], e.dk = p.q.shape[3];
  e.dv = p.v.shape[3];
  e.q = TensorOf<embedded::Tensor>(p.q), e.k = TensorOf<embedded::Tensor>(p.k),
  e.v = TensorOf<embedded::Tensor>(p.v);
  e.out = TensorOf<embedded::MutableTensor>(p.out);
  e.causal = static_cast<embedded::Causal>(p.score.causal);
  return e;
}

void BenchEmbedded(benchmark::State& state, const Workload& workload, Target target,
                   const EmbeddedInstance& instance) {
  const WorkloadTensors tensors(workload, /*seed=*/1);
  if (!tensors.ok()) return state.SkipWithError("out of memory");
  PlanOptions options;
  options.target = target;
  Plan plan;
  if (const Status status = Plan::Create(tensors.At(0), options, &plan); !status.ok())
    return state.SkipWithError(status.message());
  std::vector<char> memory(plan.WorkspaceBytes(1));
  std::vector<char> scratch(
      instance.scratch_bytes(workload.dk, workload.dv, workload.Tq * (workload.Hq / workload.Hkv)));
  const auto run_library = [&](const Problem& problem) {
    return Run(plan, problem, Workspace{memory.data(), memory.size()}).ok();
  };
  const auto run_embedded = [&](const Problem& problem) {
    const embedded::Problem converted = Convert(problem);
    return instance.attention(&converted, scratch.data(), scratch.size()) ==
           static_cast<int>(embedded::Error::kOk);
  };
  if (!run_library(tensors.At(0)) || !CompareSampledRows(tensors.At(0), Product::kF32).ok())
    return state.SkipWithError("the library's result is wrong");
  if (!run_embedded(tensors.At(0)) || !CompareSampledRows(tensors.At(0), Product::kF32).ok())
    return state.SkipWithError("the result is wrong");

  double library = std::numeric_limits<double>::infinity(), embedded = library;
  int64_t index = 0;
  for (auto _ : state) {
    const Problem problem = tensors.At(index), next = tensors.At(index + 1);
    index += 2;
    const double start = WallSeconds();
    if (!run_library(problem)) return state.SkipWithError("Run failed");
    const double middle = WallSeconds();
    if (!run_embedded(next)) return state.SkipWithError("Attention failed");
    const double end = WallSeconds();
    library = std::min(library, middle - start);
    embedded = std::min(embedded, end - middle);
    state.SetIterationTime(end - middle);
  }
  using benchmark::Counter;
  state.counters["library"] = library;
  state.counters["embedded"] = embedded;
  state.counters["share"] = library / embedded;
  state.counters["scratch"] =
      Counter(static_cast<double>(scratch.size()), Counter::kDefaults, Counter::kIs1024);
  state.counters["workspace"] =
      Counter(static_cast<double>(memory.size()), Counter::kDefaults, Counter::kIs1024);
}

const bool kRegistered = [] {
  const struct {
    Target target;
    const EmbeddedInstance& instance;
  } isas[] = {
#if defined(__x86_64__)
      {Target::kSse2, test::kEmbeddedSse2},
      {Target::kAvx2, test::kEmbeddedAvx2},
      {Target::kAvx512, test::kEmbeddedAvx512},
#elif defined(__aarch64__)
      {Target::kNeon, test::kEmbeddedNeon},
#endif
  };
  for (const Workload& workload : NamedWorkloads()) {
    if (workload.name != "P1" && workload.name != "P3" && workload.name != "D1") continue;
    for (const auto& isa : isas) {
      for (const Target target : UsableTargets()) {
        if (target != isa.target) continue;
        const std::string name = "embedded/" + workload.name + "/" + Name(target);
        benchmark::RegisterBenchmark(name.c_str(), BenchEmbedded, workload, target, isa.instance)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace fovea::measure
