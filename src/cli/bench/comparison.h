// Workloads beside their bases, timed in turns of one run: what a modifier or a shape costs, told
// from the noise of a shared machine.
#ifndef FOVEA_CLI_BENCH_COMPARISON_H_
#define FOVEA_CLI_BENCH_COMPARISON_H_

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/measurement.h"
#include "measure/timing.h"
#include "measure/workload.h"

namespace fovea::cli {

struct Contender {
  measure::Workload workload;
  size_t base = 0;  // its place in the list; a base is its own
};

// The workloads with their bases (measure::BaseOf, or `base` for all), which are put in front of
// the first that needs them where they are not listed.
std::vector<Contender> WithBases(const std::vector<measure::Workload>& workloads,
                                 const measure::Workload* base);

struct Comparison {
  Measurement measurement;
  measure::Workload base;
  // Quartiles over the rounds, in units of the base's in the same round.
  measure::Quartiles time;
  measure::Quartiles cost;  // time over visible pairs · (dk + dv)
  bool HasShapeOfBase() const { return measurement.workload.HasShapeOf(base); }
};

// Times all contenders in turns; nothing is timed if a result is wrong. `tensors` are theirs, in
// order. Memory is read at options.read_gbps for all: what reading reaches is not measured again.
// `begin` is called when checking is over. Throws a Failure if the library refuses a workload.
std::vector<Comparison> Compare(const std::vector<Contender>& contenders,
                                const std::vector<measure::WorkloadTensors>& tensors,
                                const MeasurementOptions& options,
                                const std::function<void()>& begin);

// All of it under the names of the documented JSON lines.
nlohmann::ordered_json ToJson(const Comparison& comparison);

// Lines of a table for people, its first columns as wide as the names in it.
class ComparisonTable {
 public:
  explicit ComparisonTable(const std::vector<Contender>& contenders);
  std::string Header() const;
  std::string Row(const Comparison& comparison) const;

 private:
  std::string Names(const std::string& name, const std::string& base) const;

  size_t name_width_, base_width_;
};

}  // namespace fovea::cli

#endif  // FOVEA_CLI_BENCH_COMPARISON_H_
