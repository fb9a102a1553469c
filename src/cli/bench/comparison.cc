#include "cli/bench/comparison.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/execution.h"
#include "measure/roofline.h"

namespace fovea::cli {
namespace {

// between quartiles of the peak: more, and shares of its median say little
constexpr double kDrift = 0.1;

size_t PlaceOf(const measure::Workload& workload, std::vector<Contender>* contenders) {
  for (size_t n = 0; n < contenders->size(); ++n) {
    if ((*contenders)[n].workload.name == workload.name) return n;
  }
  contenders->push_back({workload, contenders->size()});
  return contenders->size() - 1;
}

measure::Quartiles Scaled(const measure::Quartiles& quartiles, double factor) {
  return {quartiles.low * factor, quartiles.median * factor, quartiles.high * factor};
}

}  // namespace

std::vector<Contender> WithBases(const std::vector<measure::Workload>& workloads,
                                 const measure::Workload* base) {
  std::vector<Contender> contenders;
  for (const measure::Workload& workload : workloads) {
    const size_t place_of_base =
        PlaceOf(base != nullptr ? *base : measure::BaseOf(workload), &contenders);
    contenders[PlaceOf(workload, &contenders)].base = place_of_base;
  }
  return contenders;
}

std::vector<Comparison> Compare(const std::vector<Contender>& contenders,
                                const std::vector<measure::WorkloadTensors>& tensors,
                                const MeasurementOptions& options,
                                const std::function<void()>& begin) {
  const Threads threads(options.threads);
  std::vector<std::unique_ptr<CheckedCall>> calls;
  std::vector<std::function<void(int64_t)>> runs;
  std::vector<Comparison> comparisons;
  bool all_ok = true;
  for (size_t n = 0; n < contenders.size(); ++n) {
    calls.push_back(std::make_unique<CheckedCall>(contenders[n].workload, tensors[n], options,
                                                  threads.executor()));
    runs.push_back([call = calls.back().get()](int64_t index) { call->Run(index); });
    comparisons.push_back(
        {calls.back()->measurement(), contenders[contenders[n].base].workload, {}, {}});
    all_ok &= comparisons.back().measurement.accuracy.ok();
  }
  begin();
  if (!all_ok) return comparisons;

  measure::TimingOptions timing;
  timing.threads = options.threads;
  timing.seconds = options.seconds;
  std::map<Product, std::vector<double>> peaks;
  for (const Comparison& comparison : comparisons) peaks[comparison.measurement.product];
  bool noisy_peak = false;
  const measure::Turns turns = measure::MeasureInTurns(timing, runs, [&] {
    for (auto& [product, rates] : peaks) {
      const measure::Rate peak = measure::ProductGflops(options.target, product, options.threads);
      rates.push_back(peak.median);
      noisy_peak |= peak.noisy;
    }
  });
  for (const auto& product : peaks) {
    const measure::Quartiles peak = measure::QuartilesOf(product.second);
    noisy_peak |= peak.high - peak.low > kDrift * peak.median;
  }

  for (size_t n = 0; n < contenders.size(); ++n) {
    Comparison& comparison = comparisons[n];
    Measurement& m = comparison.measurement;
    m.timing = turns.timings[n];
    m.peak_gflops = measure::QuartilesOf(peaks[m.product]).median;
    m.read_gbps = options.read_gbps;
    m.noisy = m.timing.noisy || noisy_peak;
    comparison.time = measure::RatioOf(turns, n, contenders[n].base);
    comparison.cost = Scaled(comparison.time, comparison.base.Flops() / m.workload.Flops());
  }
  return comparisons;
}

nlohmann::ordered_json ToJson(const Comparison& comparison) {
  nlohmann::ordered_json line = ToJson(comparison.measurement);
  line["base"] = comparison.base.name;
  if (!comparison.measurement.accuracy.ok()) return line;
  line["relative_cost"] = comparison.cost.median;
  line["relative_cost_quartiles"] = {comparison.cost.low, comparison.cost.high};
  line["relative_share"] = 1 / comparison.cost.median;
  line["overhead"] = comparison.HasShapeOfBase()
                         ? nlohmann::ordered_json(comparison.time.median - 1)
                         : nlohmann::ordered_json(nullptr);
  return line;
}

ComparisonTable::ComparisonTable(const std::vector<Contender>& contenders)
    : name_width_(std::string("workload").size()), base_width_(std::string("base").size()) {
  for (const Contender& contender : contenders) {
    name_width_ = std::max(name_width_, contender.workload.name.size());
    base_width_ = std::max(base_width_, contenders[contender.base].workload.name.size());
  }
}

std::string ComparisonTable::Names(const std::string& name, const std::string& base) const {
  return name + std::string(name_width_ - name.size() + 2, ' ') + base +
         std::string(base_width_ - base.size() + 2, ' ');
}

std::string ComparisonTable::Header() const {
  return Names("workload", "base") +
         "isa          engine  thr  median ms     min ms  GFLOP/s     peak  share  of base's       "
         "overhead  max error\n";
}

std::string ComparisonTable::Row(const Comparison& comparison) const {
  const Measurement& m = comparison.measurement;
  const std::string names = Names(m.workload.name, comparison.base.name);
  char text[256];
  if (!m.accuracy.ok()) {
    std::snprintf(text, sizeof(text), "%-11s  %-6s  %3d  WRONG: error %.3g, bound %.3g\n",
                  Name(m.options.target), Name(m.engine), m.options.threads, m.accuracy.max_error,
                  m.accuracy.bound);
    return names + text;
  }
  char overhead[64] = "";
  if (comparison.HasShapeOfBase()) {
    const double half_spread = (comparison.time.high - comparison.time.low) / 2;
    std::snprintf(overhead, sizeof(overhead), "%+.1f ±%.1f%%", 100 * (comparison.time.median - 1),
                  100 * half_spread);
  }
  const double share = m.peak_gflops > 0 ? m.Gflops() / m.peak_gflops : 0;
  // ± is two bytes and one column.
  std::snprintf(text, sizeof(text),
                "%-11s  %-6s  %3d  %9.3f  %9.3f  %7.1f  %7.1f  %4.0f%%  %8.1f%%  %*s  %9.2g%s\n",
                Name(m.options.target), Name(m.engine), m.options.threads, 1e3 * m.timing.median_s,
                1e3 * m.timing.min_s, m.Gflops(), m.peak_gflops, 100 * share,
                100 / comparison.cost.median, overhead[0] != '\0' ? 14 : 13, overhead,
                m.accuracy.max_error, m.noisy ? "  noisy" : "");
  return names + text;
}

}  // namespace fovea::cli
