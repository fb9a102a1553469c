// fovea demo: attention of real models on every usable instruction set, a picture of what a head
// attends to, and speed.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cli/bench/machine_info.h"
#include "cli/bench/measurement.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/heatmap.h"
#include "cli/progress.h"
#include "cli/real_problem.h"
#include "fovea/fovea.h"
#include "measure/workload.h"
#include "reference/reference.h"

namespace fovea::cli {
namespace {

constexpr double kSecondsPerWorkload = 0.4;

// Of the first captured problem with tokens; this head looks at the token before and at the start
// of the sentence.
constexpr size_t kPictureSequence = 2;
constexpr int64_t kPictureHead = 5;

// The contract's bounds of each row, from the reference: of out and of lse.
struct Bounds {
  std::vector<double> out, lse;  // [B, Hq, Tq]
};

Bounds BoundsOf(const Problem& problem) {
  const reference::Sizes sizes = reference::SizesOf(problem);
  Bounds bounds;
  for (int64_t row = 0; row < sizes.B * sizes.Hq * sizes.Tq; ++row) {
    const reference::Row r = reference::ForwardRow(problem, row / (sizes.Hq * sizes.Tq),
                                                   row / sizes.Tq % sizes.Hq, row % sizes.Tq);
    const double tolerance = reference::RelativeTolerance(r);
    // The stored values are rounded to f32 once more.
    bounds.out.push_back((tolerance + std::ldexp(1.0, -24)) * r.max_abs_value);
    bounds.lse.push_back(tolerance + std::ldexp(std::fabs(r.lse), -23));
  }
  return bounds;
}

struct Error {
  double max = 0;    // of out against the stored values
  bool fine = true;  // every row of out and lse within its bounds
};

Error ErrorOn(const RealProblem& real, const Bounds& bounds, Target target) {
  Problem problem = real.View();
  const std::vector<int64_t>& s = real.out.info.shape;
  std::vector<float> out(static_cast<size_t>(s[0] * s[1] * s[2] * s[3])),
      lse(static_cast<size_t>(s[0] * s[1] * s[2]));
  problem.out = View(out.data(), {s[0], s[1], s[2], s[3]});
  problem.lse = View(lse.data(), {s[0], s[1], s[2]});
  PlanOptions options;
  options.target = target;
  Compute(problem, options, SerialExecutor());

  const float* const stored_out = reinterpret_cast<const float*>(real.out.buffer.data());
  const float* const stored_lse = reinterpret_cast<const float*>(real.lse.buffer.data());
  const size_t dv = static_cast<size_t>(s[3]);
  Error error;
  for (size_t n = 0; n < out.size(); ++n) {
    const double difference = std::fabs(double{out[n]} - double{stored_out[n]});
    error.fine &= difference <= bounds.out[n / dv];
    if (!(difference <= error.max)) error.max = difference;
  }
  for (size_t n = 0; n < lse.size(); ++n) {
    error.fine &= lse[n] == stored_lse[n] ||
                  std::fabs(double{lse[n]} - double{stored_lse[n]}) <= bounds.lse[n];
  }
  return error;
}

bool ShowErrors(const std::vector<std::unique_ptr<RealProblem>>& problems) {
  std::printf("\nLargest error of the output against the stored float64 results:\n%-24s", "");
  for (const Target target : UsableTargets()) std::printf("  %9s", Name(target));
  std::printf("\n");
  bool fine = true;
  for (const auto& real : problems) {
    const Bounds bounds = BoundsOf(real->View());
    std::printf("%-24s", real->name.c_str());
    bool row_fine = true;
    for (const Target target : UsableTargets()) {
      const Error error = ErrorOn(*real, bounds, target);
      std::printf("  %9.2g", error.max);
      row_fine &= error.fine;
    }
    std::printf("  %s\n", row_fine ? "within bounds" : "OUT OF BOUNDS");
    std::fflush(stdout);
    fine &= row_fine;
  }
  return fine;
}

// The weights of one head over the tokens of one sentence.
void ShowPicture(const RealProblem& real, int64_t head) {
  Problem problem = real.View();
  const int64_t B = problem.q.shape[0], Hq = problem.q.shape[1], Tq = problem.q.shape[2],
                Tk = problem.k.shape[2], dv = problem.v.shape[3];
  std::vector<float> out(static_cast<size_t>(B * Hq * Tq * dv)),
      all(static_cast<size_t>(B * Hq * Tq * Tk));
  problem.out = View(out.data(), {B, Hq, Tq, dv});
  problem.weights = View(all.data(), {B, Hq, Tq, Tk});
  Compute(problem, PlanOptions(), SerialExecutor());

  const size_t sequence = std::min(kPictureSequence, real.tokens.size() - 1);
  const std::vector<std::string>& tokens = real.tokens[sequence];
  const int64_t n = std::min<int64_t>({static_cast<int64_t>(tokens.size()), Tq, Tk});
  const int64_t h = std::min<int64_t>(head, Hq - 1);
  std::vector<float> weights;
  for (int64_t i = 0; i < n; ++i) {
    const float* const row = all.data() + ((static_cast<int64_t>(sequence) * Hq + h) * Tq + i) * Tk;
    weights.insert(weights.end(), row, row + n);
  }
  const std::vector<std::string> labels(tokens.begin(), tokens.begin() + n);
  std::printf("\nWhat head %lld of %s attends to (rows: queries, columns: keys):\n\n%s",
              static_cast<long long>(h), real.name.c_str(),
              HeatMap(weights, labels, labels, isatty(STDOUT_FILENO) != 0).c_str());
}

bool ShowSpeed() {
  Target best;
  Check(ActiveTarget(&best));
  std::printf(
      "\nSpeed on %s, one thread, f32; share of the multiply-add peak, for D1 of what reading "
      "memory reaches:\n",
      Name(best));
  static constexpr const char* kWorkloads[] = {"P1", "P2", "P3", "P4", "P5", "P6", "D1"};
  Progress progress(std::size(kWorkloads));
  bool fine = true;
  for (const char* name : kWorkloads) {
    progress.Step(name);
    measure::Workload workload;
    std::string error;
    if (!measure::ParseWorkload(name, &workload, &error)) throw Failure(error);
    const measure::WorkloadTensors tensors(workload, /*seed=*/1);
    if (!tensors.ok()) throw Failure(std::string("workload ") + name + ": not enough memory");
    MeasurementOptions options;
    options.target = best;
    options.seconds = kSecondsPerWorkload;
    const Measurement m = MeasureWorkload(workload, tensors, options);
    progress.Clear();
    if (m.accuracy.ok()) {
      std::printf(
          "%s  B %2lld  Hq/Hkv %2lld/%-2lld  T %4lldx%-4lld  d %3lld %s  %8.2f ms  %7.1f GFLOP/s  "
          "%6.2f GB/s  %3.0f%%%s\n",
          name, static_cast<long long>(workload.B), static_cast<long long>(workload.Hq),
          static_cast<long long>(workload.Hkv), static_cast<long long>(workload.Tq),
          static_cast<long long>(workload.Tk), static_cast<long long>(workload.dk),
          workload.causal ? "causal" : "      ", 1e3 * m.timing.median_s, m.Gflops(), m.KvGbps(),
          100 * m.Share(), m.noisy ? " noisy" : "");
    } else {
      std::printf("%s  WRONG: error %.3g, bound %.3g\n", name, m.accuracy.max_error,
                  m.accuracy.bound);
      fine = false;
    }
    std::fflush(stdout);
  }
  return fine;
}

int RunDemo(const Args& args) {
  const std::vector<std::unique_ptr<RealProblem>> problems =
      LoadRealProblems(args.Text("--data", std::string(FOVEA_SOURCE_DIR) + "/tests/data/real"));
  std::printf("%s, %d cores, %s\n", GetMachineInfo().cpu.c_str(), GetMachineInfo().cores,
              CompilerName().c_str());
  bool fine = ShowErrors(problems);
  for (const auto& real : problems) {
    if (real->tokens.empty()) continue;
    ShowPicture(*real, args.Integer("--head", kPictureHead, 0, INT64_MAX));
    break;
  }
  if (!args.Has("--no-speed")) fine &= ShowSpeed();
  return fine ? kFine : kWrong;
}

}  // namespace

Command DemoCommand() {
  return {"demo",
          "Shows attention of real models on every usable instruction set, with errors; a head's "
          "weights as a picture; and speed.",
          {
              {"--data", "FOLDER",
               "the captured problems (default tests/data/real of the source tree)"},
              {"--head", "N", "of the picture (default 5)"},
              {"--no-speed", nullptr, "leave out the workloads"},
          },
          RunDemo};
}

}  // namespace fovea::cli
