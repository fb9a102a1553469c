// fovea bench: workloads × instruction sets × threads, beside the limits of the machine measured in
// the same run; one after the other, or in turns beside what each is a variant of.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "cli/bench/comparison.h"
#include "cli/bench/machine_info.h"
#include "cli/bench/measurement.h"
#include "cli/bench/records.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "fovea/fovea.h"
#include "measure/roofline.h"
#include "measure/text.h"

namespace fovea::cli {
namespace {

constexpr char kAllWorkloads[] = "P1,P2,P3,P4,P5,P6,D1,D2,D3";

// "P1,P2+softcap,variants", "1,8,2048,64,causal", or several of either kind separated by
// semicolons.
std::vector<measure::Workload> ParseWorkloads(const std::string& text) {
  std::vector<measure::Workload> workloads;
  std::string error;
  const auto add = [&](const std::string& name) {
    const std::vector<measure::Workload> set = measure::WorkloadSet(name);
    workloads.insert(workloads.end(), set.begin(), set.end());
    if (!set.empty()) return true;
    measure::Workload workload;
    const bool ok = measure::ParseWorkload(name, &workload, &error);
    if (ok) workloads.push_back(workload);
    return ok;
  };
  for (const std::string& part : measure::Split(text, ';')) {
    if (add(part)) continue;
    if (part.empty() || part[0] < 'A') throw Failure(error);  // no list of names
    for (const std::string& name : measure::Split(part, ',')) {
      if (!add(name)) throw Failure(error);
    }
  }
  return workloads;
}

DType ParseType(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == Name(type)) return type;
  }
  throw Failure("--types = '" + name + "', expected f32, bf16 or f16");
}

// Each workload once a type, which it must not have by its name.
std::vector<measure::Workload> InTypes(const std::vector<measure::Workload>& workloads,
                                       const std::vector<std::string>& types) {
  std::vector<measure::Workload> result;
  for (const measure::Workload& workload : workloads) {
    for (const std::string& name : types) {
      const DType type = ParseType(name);
      if (workload.type != DType::kF32)
        throw Failure("--types does not go with " + workload.name + ", which has a type");
      result.push_back(measure::InType(workload, type));
    }
  }
  return result;
}

struct Request {
  std::vector<measure::Workload> workloads;
  std::vector<Contender> contenders;  // empty: workloads one after the other; else these in turns
  std::vector<Target> targets;
  std::vector<int> threads;
  Engine engine = Engine::kAuto;
  Product product = Product::kAuto;
  double seconds = 1;
  bool json = false, baseline = false, backward = false;
};

std::vector<Contender> ParseContenders(const Args& args) {
  const std::vector<measure::Workload> workloads = ParseWorkloads(args.Text("--compare"));
  if (!args.Has("--base")) return WithBases(workloads, nullptr);
  measure::Workload base;
  std::string error;
  if (!measure::ParseWorkload(args.Text("--base"), &base, &error))
    throw Failure("--base: " + error);
  return WithBases(workloads, &base);
}

Request ReadRequest(const Args& args) {
  Request request;
  request.workloads = ParseWorkloads(args.Text("--workloads", kAllWorkloads));
  if (args.Has("--compare")) {
    if (args.Has("--workloads")) throw Failure("--compare and --workloads exclude each other");
    request.contenders = ParseContenders(args);
  } else if (args.Has("--base")) {
    throw Failure("--base needs --compare");
  }
  if (args.Has("--types")) {
    if (args.Has("--compare"))
      throw Failure("--compare and --types exclude each other; write P1+bf16");
    request.workloads = InTypes(request.workloads, args.List("--types", ""));
  }
  request.targets = TargetsFor(args.Text("--isa", "best"));
  for (const int64_t n : args.Integers("--threads", "1", 1, 1024)) {
    request.threads.push_back(static_cast<int>(n));
    const Threads available(request.threads.back());  // a Failure now rather than after minutes
  }
  request.engine = EngineFor(args.Text("--engine", "auto"));
  request.product = ProductFor(args.Text("--product", "auto"));
  request.seconds = args.Number("--seconds", 1);
  if (request.seconds <= 0)
    throw Failure("--seconds = " + args.Text("--seconds") + ", expected more than 0");
  request.json = args.Has("--json");
  request.baseline = args.Has("--baseline");
  request.backward = args.Has("--backward");
  if (request.baseline && request.backward)
    throw Failure("--baseline and --backward exclude each other");
  if (request.baseline && !request.contenders.empty())
    throw Failure("--baseline and --compare exclude each other");
  return request;
}

// Limits that no workload measures by itself, once for each number of threads or instruction set.
class Limits {
 public:
  explicit Limits(const Request& request) {
    const measure::HugeBuffer buffer(measure::StreamBytes());
    for (const int threads : request.threads) {
      read_[threads] = measure::ReadGbps(buffer.data(), buffer.bytes(), threads).median;
      for (const Target target : request.targets)
        exp_[{target, threads}] = measure::ExpGeps(target, threads).median;
    }
  }
  double read_gbps(int threads) const { return read_.at(threads); }
  double exp_geps(Target target, int threads) const { return exp_.at({target, threads}); }

  void Print(const Request& request) const {
    for (const int threads : request.threads) {
      std::printf("%d thread%s: reading memory %.1f GB/s", threads, threads > 1 ? "s" : "",
                  read_gbps(threads));
      for (const Target target : request.targets)
        std::printf(", exp %s %.2f G/s", Name(target), exp_geps(target, threads));
      std::printf("\n");
    }
  }

 private:
  std::map<int, double> read_;
  std::map<std::pair<Target, int>, double> exp_;
};

void PrintBaseline(const Baseline& baseline, const Measurement& m) {
  std::printf(
      "%-12s  standard attention: %.3f ms, score matrix %s (Fovea: %.3f ms, workspace %s)\n",
      m.workload.name.c_str(), 1e3 * baseline.timing.median_s,
      ToBytes(baseline.matrix_bytes).c_str(), 1e3 * m.timing.median_s,
      ToBytes(static_cast<double>(m.workspace_bytes)).c_str());
}

// Where results go: a line of JSON or a row of a table for each on stdout, records, and what is
// wrong or noisy on stderr.
class Output {
 public:
  Output(const Request& request, const Limits& limits, const Records* records)
      : request_(request), limits_(limits), records_(records) {}

  void Add(nlohmann::ordered_json line, const std::string& row, const Measurement& m) const {
    line["exp_geps"] = limits_.exp_geps(m.options.target, m.options.threads);
    std::printf("%s", request_.json ? (line.dump() + "\n").c_str() : row.c_str());
    std::fflush(stdout);
    if (records_ != nullptr) records_->Append(line);
    const char* const name = m.workload.name.c_str();
    if (!m.accuracy.ok()) {
      std::fprintf(stderr, "fovea: %s on %s is WRONG: error %.3g, bound %.3g\n", name,
                   Name(m.options.target), m.accuracy.max_error, m.accuracy.bound);
    } else if (m.noisy) {
      std::fprintf(stderr,
                   "fovea: %s on %s is noisy (%d runs counted, %d dropped): something else is "
                   "using this machine\n",
                   name, Name(m.options.target), m.timing.runs, m.timing.dropped);
    }
  }

 private:
  const Request& request_;
  const Limits& limits_;
  const Records* records_;  // null: none are kept
};

measure::WorkloadTensors MakeTensors(const measure::Workload& workload,
                                     const measure::WorkloadTensors* like) {
  measure::WorkloadTensors tensors(workload, /*seed=*/1, like);
  if (!tensors.ok()) throw Failure("workload " + workload.name + ": not enough memory");
  return tensors;
}

std::string Where(Target target, int threads) {
  return std::string(Name(target)) + ", " + std::to_string(threads) +
         (threads > 1 ? " threads" : " thread");
}

// One workload on every instruction set and number of threads. False if a result is wrong.
bool BenchWorkload(const Request& request, const measure::Workload& workload, const Limits& limits,
                   const Output& output, Progress* progress) {
  progress->Step(workload.name + ": making tensors");
  const measure::WorkloadTensors tensors = MakeTensors(workload, nullptr);
  std::optional<Baseline> baseline;
  if (request.baseline) {
    progress->Step(workload.name + ": standard attention");
    baseline = MeasureBaseline(tensors);
  }
  bool all_ok = true;
  for (const Target target : request.targets) {
    for (const int threads : request.threads) {
      progress->Step(workload.name + " " + Where(target, threads));
      const Measurement m =
          MeasureWorkload(workload, tensors,
                          {target, request.engine, request.product, threads, request.seconds,
                           limits.read_gbps(threads), request.backward});
      progress->Clear();
      nlohmann::ordered_json line = ToJson(m);
      if (baseline.has_value()) {
        line["standard_s"] = baseline->timing.median_s;
        line["matrix_bytes"] = baseline->matrix_bytes;
      }
      output.Add(line, TableRow(m), m);
      if (baseline.has_value() && m.accuracy.ok() && !request.json) PrintBaseline(*baseline, m);
      all_ok &= m.accuracy.ok();
    }
  }
  return all_ok;
}

// All contenders in turns on every instruction set and number of threads. False if a result is
// wrong; then only the wrong ones are shown.
bool BenchContenders(const Request& request, const Limits& limits, const Output& output,
                     Progress* progress) {
  progress->Step("making tensors");
  std::vector<measure::WorkloadTensors> tensors;
  for (const Contender& contender : request.contenders) {
    const size_t base = contender.base;
    tensors.push_back(
        MakeTensors(contender.workload, base < tensors.size() ? &tensors[base] : nullptr));
  }
  const ComparisonTable table(request.contenders);
  if (!request.json) std::printf("%s", table.Header().c_str());
  bool all_ok = true;
  for (const Target target : request.targets) {
    for (const int threads : request.threads) {
      progress->Step("checking on " + Where(target, threads));
      const std::vector<Comparison> comparisons =
          Compare(request.contenders, tensors,
                  {target, request.engine, request.product, threads, request.seconds,
                   limits.read_gbps(threads), request.backward},
                  [&] { progress->Step("comparing on " + Where(target, threads)); });
      progress->Clear();
      const bool ok = std::all_of(comparisons.begin(), comparisons.end(),
                                  [](const Comparison& c) { return c.measurement.accuracy.ok(); });
      for (const Comparison& comparison : comparisons) {
        if (ok || !comparison.measurement.accuracy.ok())
          output.Add(ToJson(comparison), table.Row(comparison), comparison.measurement);
      }
      all_ok &= ok;
    }
  }
  return all_ok;
}

size_t Steps(const Request& request) {
  const size_t runs = request.targets.size() * request.threads.size();
  if (!request.contenders.empty()) return 2 + 2 * runs;
  return 1 + request.workloads.size() * (1 + (request.baseline ? 1 : 0) + runs);
}

int RunBench(const Args& args) {
  const Request request = ReadRequest(args);
  std::optional<Records> records;
  if (args.Has("--record")) records.emplace();
  Progress progress(Steps(request));
  progress.Step("limits of this machine");
  const Limits limits(request);
  progress.Clear();
  if (!request.json) {
    std::printf("%s, %s\n", GetMachineInfo().cpu.c_str(), CompilerName().c_str());
    limits.Print(request);
  }
  const Output output(request, limits, records.has_value() ? &*records : nullptr);
  if (!request.contenders.empty())
    return BenchContenders(request, limits, output, &progress) ? kFine : kWrong;

  if (!request.json) std::printf("%s", TableHeader().c_str());
  bool all_ok = true;
  for (const measure::Workload& workload : request.workloads)
    all_ok &= BenchWorkload(request, workload, limits, output, &progress);
  return all_ok ? kFine : kWrong;
}

}  // namespace

Command BenchCommand() {
  return {
      "bench",
      "Times workloads, each as a share of what the machine can do at best, measured around it. "
      "Results are checked first.\n"
      "P1 … P6 are prefill, D1 … D3 decode (keys and values come from memory), F1 a long sequence "
      "without a mask, X0 … X17 variants\n"
      "of shape and score. +MODIFIER behind any of them: softcap, alibi, sinks, headscales; "
      "window=N (keys); ranges (four documents);\n"
      "mask (a tenth of the pairs), padmask, trimask, bandmask, +additive behind one (as a bias of "
      "0 "
      "and -inf); nan (padmask, and NaN behind it); "
      "bias, distbias, keybias;\n"
      "mla (V is part of K); pages=N (keys; pages in no order); kv=TYPE (q8_0, u4 …); bf16, f16. "
      "Sets: modifiers, variants.",
      {
          {"--workloads", "LIST",
           "names, sets, or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal][+MODIFIER]…; separate these by ';' "
           "(default P1 … P6, D1 … D3)"},
          {"--compare", "LIST",
           "instead: all in turns, each beside what it is a variant of (modifiers; variants; "
           "P2+softcap,P2+alibi)"},
          {"--base", "WORKLOAD", "with --compare: that one for all"},
          {"--types", "f32,bf16,f16",
           "types of q, k, v and out, one run each (default f32, or what stands behind a name)"},
          {"--isa", "best|all|NAMES", "instruction sets (default best)"},
          {"--engine", "auto|tile|row", "kernel (default auto)"},
          {"--product", "auto|f32|bf16", "what multiplies (default auto)"},
          {"--threads", "N,M", "numbers of threads, one run each (default 1)"},
          {"--seconds", "X", "time for each run (default 1)"},
          {"--baseline", nullptr,
           "also time standard attention, which stores the score matrix, where no modifier changes "
           "scores"},
          {"--backward", nullptr,
           "gradients of q, k and v in the place of the workloads, counted as 2.5 times their "
           "operations"},
          {"--json", nullptr, "a JSON line for each run instead of a table"},
          {"--record", nullptr,
           "append the lines to bench/records/ of the source tree, with CPU, compiler, date and "
           "revision"},
      },
      RunBench};
}

}  // namespace fovea::cli
