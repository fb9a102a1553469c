// The baseline: standard attention, which stores the score matrix. "matrix" is that memory;
// attention_bench.cc prints Fovea's as "workspace".
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "measure/accuracy.h"
#include "measure/workload.h"
#include "measure/workload_tensors.h"
#include "reference/standard_attention.h"

namespace fovea::measure {
namespace {

void BenchStandardAttention(benchmark::State& state, const Workload& workload) {
  const WorkloadTensors tensors(workload, /*seed=*/1);
  if (!tensors.ok()) return state.SkipWithError("out of memory");
  std::vector<float> scores;
  reference::StandardAttention(tensors.At(0), &scores);
  const Accuracy accuracy = CompareSampledRows(tensors.At(0), Product::kF32);
  if (!accuracy.ok()) return state.SkipWithError("the result is wrong");
  int64_t index = 0;
  for (auto _ : state) reference::StandardAttention(tensors.At(index++), &scores);

  using benchmark::Counter;
  state.counters["FLOP/s"] = Counter(workload.Flops(), Counter::kIsIterationInvariantRate);
  state.counters["max_err"] = accuracy.max_error;
  const double matrix = static_cast<double>(reference::ScoreMatrixBytes(tensors.At(0)));
  state.counters["matrix"] = Counter(matrix, Counter::kDefaults, Counter::kIs1024);
}

const bool kRegistered = [] {
  for (const Workload& workload : NamedWorkloads()) {
    if (workload.ModifiesScores()) continue;  // it knows nothing of that
    benchmark::RegisterBenchmark(("standard_attention/" + workload.name).c_str(),
                                 BenchStandardAttention, workload)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace fovea::measure
