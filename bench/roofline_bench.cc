// The limits that the other benchmarks are compared with, in the same process: multiply-adds and
// exponentials of every usable instruction set, and reading memory.
#include <benchmark/benchmark.h>

#include <string>

#include "fovea/target.h"
#include "measure/roofline.h"
#include "measure/roofline_loops.h"

namespace fovea::measure {
namespace {

void BenchLoop(benchmark::State& state, const Loop& loop, const char* unit) {
  constexpr int64_t kIterations = 100000;
  for (auto _ : state) loop.run(kIterations);
  state.counters[unit] =
      benchmark::Counter(loop.work * kIterations, benchmark::Counter::kIsIterationInvariantRate);
}

void BenchRead(benchmark::State& state) {
  const HugeBuffer buffer(StreamBytes());
  if (buffer.data() == nullptr) return state.SkipWithError("out of memory");
  for (auto _ : state) ReadAscending(static_cast<const char*>(buffer.data()), buffer.bytes());
  state.counters["B/s"] = benchmark::Counter(static_cast<double>(buffer.bytes()),
                                             benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (const Target target : UsableTargets()) {
    const std::string isa = Name(target);
    if (const Loop loop = MultiplyAddLoop(target); loop.run != nullptr) {
      benchmark::RegisterBenchmark(("roofline/multiply_add/" + isa).c_str(), BenchLoop, loop,
                                   "FLOP/s");
    }
    if (const Loop loop = DotBF16Loop(target); loop.run != nullptr) {
      benchmark::RegisterBenchmark(("roofline/dot_bf16/" + isa).c_str(), BenchLoop, loop, "FLOP/s");
    }
    if (const Loop loop = ExpLoop(target); loop.run != nullptr) {
      benchmark::RegisterBenchmark(("roofline/exp/" + isa).c_str(), BenchLoop, loop, "exp/s");
    }
  }
  benchmark::RegisterBenchmark("roofline/read", BenchRead)->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace fovea::measure
