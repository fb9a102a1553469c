// Times two revisions of the library in turns, and the old one a second time from a copy of its
// file: how far those two lie apart is what this machine cannot tell. All three compute on the same
// tensors in one process, on one thread.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/text.h"
#include "measure/timing.h"
#include "measure/workload_tensors.h"
#include "timed.h"

namespace fovea::turns {
namespace {

// What is always allowed: two builds of one source differ by so much in where code lies.
constexpr double kAlwaysAllowed = 0.02;
constexpr double kPercentile = 0.95;
// Of calls that are short against reading a clock.
constexpr int64_t kTimes = 200;
constexpr char kLatencyWorkload[] = "1,1,1x64,64";
constexpr char kWorkloads[] = "P1,P2,P3,P4,P5,P6,D1,D2,D3,X0";
constexpr char kTypes[] = "f32,bf16";

enum { kOld, kOldAgain, kNew, kLibraries };

// All orders of the libraries: whoever follows another one meets what that one left in the caches.
constexpr int kOrders[][kLibraries] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0},
                                       {0, 2, 1}, {2, 0, 1}, {1, 0, 2}};
constexpr size_t kOrderCount = sizeof(kOrders) / sizeof(kOrders[0]);

const TimedLibrary* Load(const char* file) {
  void* const module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw std::runtime_error(dlerror());
  void* const symbol = dlsym(module, kGetTimedLibrary);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<GetTimedLibrary>(symbol)();
}

template <class Pointer>
View ViewOf(const BasicView<Pointer>& from) {
  View to = {};
  to.data = const_cast<void*>(static_cast<const void*>(from.data));
  to.dtype = static_cast<int32_t>(from.dtype);
  to.rank = from.rank;
  std::copy_n(from.shape, from.rank, to.shape);
  std::copy_n(from.stride, from.rank, to.stride);
  return to;
}

TimedProblem ProblemOf(const Problem& from) {
  TimedProblem to = {};
  to.q = ViewOf(from.q), to.k = ViewOf(from.k), to.v = ViewOf(from.v), to.out = ViewOf(from.out);
  const Score& score = from.score;
  to.alibi_slopes = ViewOf(score.alibi_slopes);
  to.bias = ViewOf(score.bias);
  to.mask = ViewOf(score.mask);
  to.sinks = ViewOf(score.sinks);
  to.softcap = score.softcap;
  to.causal = static_cast<int32_t>(score.causal);
  to.window_left = score.window.left, to.window_right = score.window.right;
  to.has_offset = score.query_offset.has_value();
  to.offset = score.query_offset.value_or(0);
  return to;
}

struct Result {
  size_t rounds = 0;
  double old_s = 0;  // the median of a call
  double ratio = 0;  // of new to old, the median over the rounds
  double noise = 0;  // the percentile of |old again / old − 1| over the rounds
  double Allowed() const { return std::max(kAlwaysAllowed, noise); }
  bool Slower() const { return ratio > 1 + Allowed(); }
  bool Faster() const { return ratio < 1 - Allowed(); }
};

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Times run(library, index) in turns, `seconds` in all. The index rises from run to run whoever
// runs, so that nobody finds in the caches what another one has just read.
Result TimeInTurns(double seconds, const std::function<void(int library, int64_t index)>& run) {
  size_t rounds = 0;
  std::vector<std::function<void(int64_t)>> calls;
  for (int slot = 0; slot < kLibraries; ++slot) {
    calls.push_back(
        [&, slot](int64_t index) { run(kOrders[(rounds - 1) % kOrderCount][slot], index); });
  }
  measure::TimingOptions options;
  options.seconds = seconds / kLibraries;
  const measure::Turns turns = measure::MeasureInTurns(options, calls, [&] { ++rounds; });

  std::vector<double> old_s, ratios, noises;
  for (const bool all : {false, true}) {
    for (size_t round = 0; round < turns.samples.size(); ++round) {
      double time[kLibraries] = {};
      bool owned = true;
      for (int slot = 0; slot < kLibraries; ++slot) {
        const measure::Sample& sample = turns.samples[round][static_cast<size_t>(slot)];
        time[kOrders[round % kOrderCount][slot]] = sample.seconds;
        owned &= sample.owned;
      }
      if (!all && !owned) continue;
      old_s.push_back(time[kOld]);
      ratios.push_back(time[kNew] / time[kOld]);
      noises.push_back(std::fabs(time[kOldAgain] / time[kOld] - 1));
    }
    // Rounds that lost their core do not count, unless hardly any kept it.
    if (2 * ratios.size() >= turns.samples.size()) break;
    old_s.clear(), ratios.clear(), noises.clear();
  }
  return {ratios.size(), Quantile(old_s, 0.5), Quantile(ratios, 0.5),
          Quantile(noises, kPercentile)};
}

struct Request {
  std::vector<measure::Workload> workloads;
  double seconds = 600;  // for everything
};

class Program {
 public:
  explicit Program(const char* const* files) {
    for (int n = 0; n < kLibraries; ++n) libraries_[n] = Load(files[n]);
  }

  // False if something became slower.
  bool Run(const Request& request) {
    const double seconds = request.seconds / static_cast<double>(request.workloads.size() + 1);
    std::printf("| workload | kernel | rounds | old µs | new / old | old / old | allowed | |\n");
    std::printf("|---|---|--:|--:|--:|--:|--:|---|\n");
    for (const measure::Workload& workload : request.workloads) TimeWorkload(workload, seconds);
    const double mean = std::exp(sum_of_logs_ / static_cast<double>(request.workloads.size()));
    TimeLatency(seconds / 2);
    std::printf("\nnew / old, geometric mean of the workloads: %.4f; %d slower, %d faster\n", mean,
                slower_, faster_);
    return slower_ == 0;
  }

 private:
  struct Calls {
    explicit Calls(Program* program, const TimedProblem& problem) : libraries(program->libraries_) {
      for (int n = 0; n < kLibraries; ++n) {
        call[n] = libraries[n]->make_call(problem);
        if (call[n] == nullptr) throw std::runtime_error("a library refuses the problem");
      }
    }
    ~Calls() {
      for (int n = 0; n < kLibraries; ++n) libraries[n]->release_call(call[n]);
    }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

    std::string Kernel() const {
      const std::string of_old = libraries[kOld]->kernel(call[kOld]);
      const std::string of_new = libraries[kNew]->kernel(call[kNew]);
      return of_old == of_new ? of_new : of_old + " → " + of_new;
    }

    const TimedLibrary* const* libraries;
    void* call[kLibraries] = {};
  };

  static void Check(bool ok) {
    if (!ok) throw std::runtime_error("a library reports an error");
  }

  static measure::WorkloadTensors MakeTensors(const measure::Workload& workload) {
    measure::WorkloadTensors tensors(workload, /*seed=*/1);
    if (!tensors.ok()) throw std::runtime_error(workload.name + ": not enough memory");
    return tensors;
  }

  void TimeWorkload(const measure::Workload& workload, double seconds) {
    if (workload.head_scales || workload.documents)
      throw std::runtime_error(workload.name + ": TimedProblem has no such modifier");
    const measure::WorkloadTensors tensors = MakeTensors(workload);
    const Calls calls(this, ProblemOf(tensors.At(0)));
    const Result result = TimeInTurns(seconds, [&](int n, int64_t index) {
      Check(libraries_[n]->run(calls.call[n], ProblemOf(tensors.At(index)), 1));
    });
    sum_of_logs_ += std::log(result.ratio);
    Print(workload.name, calls.Kernel(), result, 1);
  }

  void TimeLatency(double seconds) {
    measure::Workload workload;
    std::string error;
    if (!measure::ParseWorkload(kLatencyWorkload, &workload, &error))
      throw std::runtime_error(error);
    const measure::WorkloadTensors tensors = MakeTensors(workload);
    const TimedProblem problem = ProblemOf(tensors.At(0));
    const Calls calls(this, problem);
    Print("one planned call of 1 × 64", calls.Kernel(),
          TimeInTurns(
              seconds,
              [&](int n, int64_t) { Check(libraries_[n]->run(calls.call[n], problem, kTimes)); }),
          kTimes);
    Print("one one-shot call of 1 × 64", calls.Kernel(),
          TimeInTurns(seconds,
                      [&](int n, int64_t) { Check(libraries_[n]->run_one_shot(problem, kTimes)); }),
          kTimes);
  }

  void Print(const std::string& name, const std::string& kernel, const Result& r, int64_t times) {
    slower_ += r.Slower(), faster_ += r.Faster();
    std::printf("| %s | %s | %zu | %.3f | %.4f | ±%.1f %% | ±%.1f %% | %s |\n", name.c_str(),
                kernel.c_str(), r.rounds, 1e6 * r.old_s / static_cast<double>(times), r.ratio,
                100 * r.noise, 100 * r.Allowed(),
                r.Slower()   ? "**slower**"
                : r.Faster() ? "faster"
                             : "same");
    std::fflush(stdout);
  }

  const TimedLibrary* libraries_[kLibraries] = {};
  double sum_of_logs_ = 0;
  int slower_ = 0, faster_ = 0;
};

// Names or sets, or shapes separated by semicolons, as for fovea bench; each in all types, unless
// its name has one.
std::vector<measure::Workload> ParseWorkloads(const std::string& text, const std::string& types) {
  std::vector<measure::Workload> workloads, typed;
  const bool names = text.find(';') == std::string::npos && std::isalpha(text[0]) != 0;
  for (const std::string& name : measure::Split(text, names ? ',' : ';')) {
    const std::vector<measure::Workload> set = measure::WorkloadSet(name);
    workloads.insert(workloads.end(), set.begin(), set.end());
    if (!set.empty()) continue;
    measure::Workload workload;
    std::string error;
    if (!measure::ParseWorkload(name, &workload, &error)) throw std::runtime_error(error);
    workloads.push_back(workload);
  }
  for (const measure::Workload& workload : workloads) {
    if (workload.type != DType::kF32) {
      typed.push_back(workload);
      continue;
    }
    for (const std::string& type : measure::Split(types, ',')) {
      for (const DType known : {DType::kF32, DType::kF16, DType::kBF16}) {
        if (type == Name(known)) typed.push_back(measure::InType(workload, known));
      }
    }
  }
  if (typed.empty()) throw std::runtime_error("--types: expected f32, f16 or bf16");
  return typed;
}

int Main(int argc, char** argv) {
  std::string workloads = kWorkloads, types = kTypes;
  Request request;
  int a = 1 + kLibraries;
  for (; a + 1 < argc; a += 2) {
    const std::string name = argv[a];
    if (name == "--workloads") {
      workloads = argv[a + 1];
    } else if (name == "--types") {
      types = argv[a + 1];
    } else if (name == "--seconds") {
      request.seconds = std::atof(argv[a + 1]);
    } else {
      break;
    }
  }
  if (argc < 1 + kLibraries || a < argc || request.seconds <= 0) {
    std::fprintf(stderr,
                 "usage: turns OLD.so COPY-OF-OLD.so NEW.so [--workloads LIST] [--types LIST] "
                 "[--seconds X]\n"
                 "  --workloads  as for fovea bench (default %s)\n"
                 "  --types      default %s\n"
                 "  --seconds    for everything (default %.0f)\n",
                 kWorkloads, kTypes, Request().seconds);
    return 2;
  }
  request.workloads = ParseWorkloads(workloads, types);
  return Program(argv + 1).Run(request) ? 0 : 1;
}

}  // namespace
}  // namespace fovea::turns

int main(int argc, char** argv) {
  try {
    return fovea::turns::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "turns: %s\n", error.what());
    return 2;
  }
}
