// One row of a benchmark: a workload on one instruction set and number of threads, beside the
// limits of the machine measured around it.
#ifndef FOVEA_CLI_BENCH_MEASUREMENT_H_
#define FOVEA_CLI_BENCH_MEASUREMENT_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/execution.h"
#include "fovea/attention.h"
#include "fovea/gradient.h"
#include "measure/accuracy.h"
#include "measure/timing.h"
#include "measure/workload.h"
#include "measure/workload_tensors.h"

namespace fovea::cli {

struct MeasurementOptions {
  Target target = Target::kAuto;
  Engine engine = Engine::kAuto;
  Product product = Product::kAuto;
  int threads = 1;
  double seconds = 1;     // of timing, apart from warming up and measuring limits
  double read_gbps = 0;   // of this number of threads; decode workloads measure their own
  bool backward = false;  // gradients of q, k and v in the place of the workload itself
};

struct Measurement {
  measure::Workload workload;
  MeasurementOptions options;
  Engine engine = Engine::kAuto;     // that the plan chose
  Product product = Product::kAuto;  // likewise
  size_t workspace_bytes = 0;
  measure::Accuracy accuracy;  // of sampled rows, checked before timing
  measure::Timing timing;
  double peak_gflops = 0;  // the product on that many threads, mean of before and after; 0: unknown
  // reading memory on that many threads; for decode the memory of K and V, mean of before and after
  double read_gbps = 0;
  // the timing is, or a limit was, or drifted by more than a tenth meanwhile
  bool noisy = false;

  // Of gradients 2.5 times those of the workload: five products in the place of two.
  double Flops() const { return workload.Flops() * (options.backward ? 2.5 : 1); }
  double Gflops() const { return 1e-9 * Flops() / timing.median_s; }
  double KvGbps() const { return 1e-9 * workload.KvBytes() / timing.median_s; }
  // Of what binds the workload: the multiply-add peak, or for decode reading memory. 0 if that is
  // unknown.
  double Share() const;
};

// The gradients of a workload, planned, with tensors and a workspace of their own. lse and out are
// those of the workload's own run.
class BackwardCall {
 public:
  // Throws a Failure if the library refuses. What is given must outlive this.
  BackwardCall(const measure::WorkloadTensors& tensors, const MeasurementOptions& options,
               Executor& executor);
  void Run(int64_t index) const;  // on that copy of K and V
  size_t workspace_bytes() const { return plan_.WorkspaceBytes(executor_->Workers()); }
  measure::Accuracy Compare() const;

 private:
  GradientProblem At(int64_t index) const;

  const measure::WorkloadTensors* tensors_;
  Executor* executor_;
  MutableTensorView lse_, dout_, dq_, dk_, dv_;
  std::vector<std::unique_ptr<char[]>> memory_;
  GradientPlan plan_;
  std::unique_ptr<char[]> workspace_;
};

// A workload with its plan and workspace, run once and checked: ready to be timed.
class CheckedCall {
 public:
  // Throws a Failure if the library refuses the workload. `tensors` and `executor` must outlive
  // this.
  CheckedCall(const measure::Workload& workload, const measure::WorkloadTensors& tensors,
              const MeasurementOptions& options, Executor& executor);
  const Measurement& measurement() const { return measurement_; }  // without times and limits
  void Run(int64_t index) const;                                   // on that copy of K and V

 private:
  Plan plan_;
  const measure::WorkloadTensors* tensors_;
  Executor* executor_;
  OwnedWorkspace workspace_;
  Measurement measurement_;
  std::unique_ptr<BackwardCall> backward_;  // null: the workload itself
};

// Throws a Failure if the library refuses the workload. Untimed where the result is wrong.
Measurement MeasureWorkload(const measure::Workload& workload,
                            const measure::WorkloadTensors& tensors,
                            const MeasurementOptions& options);

// Standard attention, which stores the score matrix, on one thread. Nothing where it cannot compute
// the workload.
struct Baseline {
  measure::Timing timing;
  double matrix_bytes = 0;
};
std::optional<Baseline> MeasureBaseline(const measure::WorkloadTensors& tensors);

// All of it under the names of the documented JSON lines.
nlohmann::ordered_json ToJson(const Measurement& measurement);

// Lines of a table for people.
std::string TableHeader();
std::string TableRow(const Measurement& measurement);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_BENCH_MEASUREMENT_H_
