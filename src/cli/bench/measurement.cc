#include "cli/bench/measurement.h"

#include <cmath>
#include <cstdio>

#include "cli/failure.h"
#include "fovea/fovea.h"
#include "measure/gradient_accuracy.h"
#include "measure/roofline.h"
#include "reference/standard_attention.h"

namespace fovea::cli {
namespace {

// between the limits before and after: more, and their mean says little about the time between
constexpr double kDrift = 0.1;

// Limits before and after a run become their mean.
double MeanOf(const measure::Rate& before, const measure::Rate& after, bool* noisy) {
  *noisy |= before.noisy || after.noisy ||
            std::fabs(before.median - after.median) > kDrift * before.median;
  return (before.median + after.median) / 2;
}

}  // namespace

double Measurement::Share() const {
  if (workload.IsDecode()) return read_gbps > 0 ? KvGbps() / read_gbps : 0;
  return peak_gflops > 0 ? Gflops() / peak_gflops : 0;
}

namespace {

Plan PlanFor(const measure::WorkloadTensors& tensors, const MeasurementOptions& options) {
  PlanOptions plan_options;
  plan_options.target = options.target;
  plan_options.engine = options.engine;
  plan_options.product = options.product;
  Plan plan;
  Check(Plan::Create(tensors.At(0), plan_options, &plan));
  return plan;
}

}  // namespace

BackwardCall::BackwardCall(const measure::WorkloadTensors& tensors,
                           const MeasurementOptions& options, Executor& executor)
    : tensors_(&tensors), executor_(&executor) {
  const Problem problem = tensors.At(0);
  if (problem.score.sinks.present())
    throw Failure("--backward does not check gradients of workloads with sinks");
  const auto make = [&](DType type, const auto& like, int rank) {
    int64_t size = 1;
    for (int a = 0; a < rank; ++a) size *= like.shape[a];
    memory_.push_back(std::make_unique<char[]>(static_cast<size_t>(size * SizeOf(type))));
    MutableTensorView view;
    view.data = memory_.back().get();
    view.dtype = type;
    view.rank = rank;
    for (int64_t a = rank - 1, step = SizeOf(type); a >= 0; step *= view.shape[a], --a)
      view.shape[a] = like.shape[a], view.stride[a] = step;
    return view;
  };
  const DType type = problem.q.dtype;
  lse_ = make(DType::kF32, problem.q, 3);
  dout_ = make(type, problem.out, 4);
  dq_ = make(type, problem.q, 4);
  dk_ = make(type, problem.k, 4);
  dv_ = make(type, problem.v, 4);
  const int64_t size = dout_.shape[0] * dout_.shape[1] * dout_.shape[2] * dout_.shape[3];
  measure::FillNormal(dout_.data, type, static_cast<size_t>(size), 7);
  PlanOptions plan_options;
  plan_options.target = options.target;
  plan_options.product = options.product;
  Problem forward = problem;
  forward.lse = lse_;
  Compute(forward, plan_options, executor);
  Check(GradientPlan::Create(At(0), plan_options, &plan_));
  workspace_.reset(new char[workspace_bytes()]);
}

GradientProblem BackwardCall::At(int64_t index) const {
  GradientProblem g;
  g.forward = tensors_->At(index);
  g.forward.lse = lse_;
  g.dout = dout_;
  g.dq = dq_, g.dk = dk_, g.dv = dv_;
  return g;
}

void BackwardCall::Run(int64_t index) const {
  Check(fovea::Run(plan_, At(index), {workspace_.get(), workspace_bytes()}, *executor_));
}

measure::Accuracy BackwardCall::Compare() const { return measure::CompareGradients(At(0)); }

CheckedCall::CheckedCall(const measure::Workload& workload, const measure::WorkloadTensors& tensors,
                         const MeasurementOptions& options, Executor& executor)
    : plan_(PlanFor(tensors, options)),
      tensors_(&tensors),
      executor_(&executor),
      workspace_(plan_, executor) {
  measurement_.workload = workload;
  measurement_.options = options;
  measurement_.engine = plan_.engine();
  measurement_.product = plan_.product();
  measurement_.workspace_bytes = plan_.WorkspaceBytes(executor.Workers());
  Run(0);
  measurement_.accuracy = measure::CompareSampledRows(tensors.At(0), plan_.product());
  if (!options.backward || !measurement_.accuracy.ok()) return;
  backward_ = std::make_unique<BackwardCall>(tensors, options, executor);
  backward_->Run(0);
  measurement_.accuracy = backward_->Compare();
  measurement_.product = Product::kF32;
  measurement_.engine = Engine::kTile;
  measurement_.workspace_bytes = backward_->workspace_bytes();
}

void CheckedCall::Run(int64_t index) const {
  if (backward_ != nullptr) return backward_->Run(index);
  Check(fovea::Run(plan_, tensors_->At(index), workspace_.get(), *executor_));
}

Measurement MeasureWorkload(const measure::Workload& workload,
                            const measure::WorkloadTensors& tensors,
                            const MeasurementOptions& options) {
  const Threads threads(options.threads);
  const CheckedCall call(workload, tensors, options, threads.executor());
  Measurement m = call.measurement();
  if (!m.accuracy.ok()) return m;

  const auto peak = [&] {
    return measure::ProductGflops(options.target, m.product, options.threads);
  };
  const auto read = [&] {
    return workload.IsDecode()
               ? measure::ReadGbps(tensors.kv_data(), tensors.kv_bytes(), options.threads)
               : measure::Rate{options.read_gbps, options.read_gbps, false};
  };
  measure::TimingOptions timing;
  timing.threads = options.threads;
  timing.seconds = options.seconds;
  const measure::Rate read_before = read();
  const measure::Rate peak_before = peak();
  m.timing = measure::Measure(timing, [&](int64_t index) { call.Run(index); });
  m.noisy = m.timing.noisy;
  m.peak_gflops = MeanOf(peak_before, peak(), &m.noisy);
  m.read_gbps = MeanOf(read_before, read(), &m.noisy);
  return m;
}

std::optional<Baseline> MeasureBaseline(const measure::WorkloadTensors& tensors) {
  if (!reference::StandardAttentionSupports(tensors.At(0))) return std::nullopt;
  Baseline baseline;
  std::vector<float> scores;
  measure::TimingOptions timing;
  timing.seconds = 0;  // it is slow: no more runs than a median needs
  baseline.timing = measure::Measure(
      timing, [&](int64_t index) { reference::StandardAttention(tensors.At(index), &scores); });
  baseline.matrix_bytes = static_cast<double>(reference::ScoreMatrixBytes(tensors.At(0)));
  return baseline;
}

nlohmann::ordered_json ToJson(const Measurement& m) {
  const measure::Workload& w = m.workload;
  nlohmann::ordered_json line = {{"workload", w.name},
                                 {"B", w.B},
                                 {"Hq", w.Hq},
                                 {"Hkv", w.Hkv},
                                 {"Tq", w.Tq},
                                 {"Tk", w.Tk},
                                 {"dk", w.dk},
                                 {"dv", w.dv},
                                 {"causal", w.causal},
                                 {"modifiers", w.modifiers},
                                 {"type", Name(w.type)},
                                 {"isa", Name(m.options.target)},
                                 {"engine", Name(m.engine)},
                                 {"product", Name(m.product)},
                                 {"threads", m.options.threads},
                                 {"max_err", m.accuracy.max_error},
                                 {"bound", m.accuracy.bound},
                                 {"ok", m.accuracy.ok()},
                                 {"workspace_bytes", m.workspace_bytes}};
  if (!m.accuracy.ok()) return line;
  const auto known = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  line["median_s"] = m.timing.median_s;
  line["min_s"] = m.timing.min_s;
  line["runs"] = m.timing.runs;
  line["dropped"] = m.timing.dropped;
  line["noisy"] = m.noisy;
  line["flops"] = m.Flops();
  if (m.options.backward) line["backward"] = true;
  line["gflops"] = m.Gflops();
  line["peak_gflops"] = known(m.peak_gflops);
  line["share_of_peak"] = known(m.peak_gflops > 0 ? m.Gflops() / m.peak_gflops : 0);
  line["kv_bytes"] = w.KvBytes();
  line["kv_gbps"] = m.KvGbps();
  line["read_gbps"] = known(m.read_gbps);
  line["share_of_read"] = known(m.read_gbps > 0 ? m.KvGbps() / m.read_gbps : 0);
  return line;
}

std::string TableHeader() {
  return "workload      isa          engine  thr  median ms     min ms  GFLOP/s     peak  share   "
         "KV GB/s     read  share  max error\n";
}

std::string TableRow(const Measurement& m) {
  char text[256];
  if (!m.accuracy.ok()) {
    std::snprintf(text, sizeof(text), "%-12s  %-11s  %-6s  %3d  WRONG: error %.3g, bound %.3g\n",
                  m.workload.name.c_str(), Name(m.options.target), Name(m.engine),
                  m.options.threads, m.accuracy.max_error, m.accuracy.bound);
    return text;
  }
  const double share_of_peak = m.peak_gflops > 0 ? m.Gflops() / m.peak_gflops : 0;
  const double share_of_read = m.read_gbps > 0 ? m.KvGbps() / m.read_gbps : 0;
  std::snprintf(text, sizeof(text),
                "%-12s  %-11s  %-6s  %3d  %9.3f  %9.3f  %7.1f  %7.1f  %4.0f%%  %8.2f  %7.2f  "
                "%4.0f%%  %9.2g%s\n",
                m.workload.name.c_str(), Name(m.options.target), Name(m.engine), m.options.threads,
                1e3 * m.timing.median_s, 1e3 * m.timing.min_s, m.Gflops(), m.peak_gflops,
                100 * share_of_peak, m.KvGbps(), m.read_gbps, 100 * share_of_read,
                m.accuracy.max_error, m.noisy ? "  noisy" : "");
  return text;
}

}  // namespace fovea::cli
