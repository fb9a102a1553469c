// Random problems on every target and engine against the double reference, to the contract's
// precision: thousands a second, until time or count is used up or a fault is found. A fault prints
// its seed and the problem; --seed repeats exactly that one.
//
// Besides: nothing outside the outputs' elements is written; nothing is read or written outside of
// tensors and workspace (inaccessible pages lie behind many of them); other executors, a plan that
// was updated, and other floating-point states of the caller give the same bits as a serial run.
//
// Each job is a process, so that a crash or a hang of one problem is reported like any other fault.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/fuzz_problem.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/float_states.h"

#ifdef FOVEA_TEST_TBB
#include "fovea/tbb.h"
#endif

namespace fovea::fuzz {
namespace {

// seconds for one problem, which takes milliseconds; minutes under an emulator would still be a
// hang
constexpr unsigned kPatience = 120;

struct Arguments {
  uint64_t first = 0;  // seed of the first problem
  bool one = false;    // only that one
  int64_t count = INT64_MAX;
  double seconds = 1e30;
  int jobs = 1;
  int64_t faults = 1;             // of a job; then it ends
  Target target = Target::kAuto;  // kAuto: all
  Engine engine = Engine::kAuto;  // kAuto: all
};

// ---- one problem ----

// Where plans find their workspace: the last bytes before an inaccessible page, full of NaN.
class GuardedWorkspace {
 public:
  Workspace Take(size_t bytes) {
    if (bytes > memory_.bytes())
      memory_ = test::Memory(2 * bytes, test::Placement::kBeforeGuard, 1);
    unsigned char* const data = memory_.data() + (memory_.bytes() - bytes);
    if (bytes != 0) std::memset(data, 0xFF, bytes);
    return {data, bytes};
  }

 private:
  test::Memory memory_;
};

std::vector<unsigned char> OutputBytes(const test::RandomProblem& p) {
  std::vector<unsigned char> bytes;
  for (const test::OwnedTensor* tensor : {&p.out, &p.lse, &p.weights, &p.scores}) {
    if (!tensor->present()) continue;
    const std::vector<unsigned char> own = tensor->Bytes();
    bytes.insert(bytes.end(), own.begin(), own.end());
  }
  return bytes;
}

// Elsewhere there is no byte between the elements; and this look takes longer than most problems.
bool HavePadding(const test::ProblemSpec& spec) {
  const auto pads = [](const test::Storage& storage) {
    return storage.layout == test::Layout::kPadded || storage.layout == test::Layout::kPage ||
           storage.layout == test::Layout::kSparse;
  };
  return pads(spec.out) || ((spec.lse || spec.weights || spec.scores) && pads(spec.rest)) ||
         spec.cu_seqlens_q != DType::kNone;
}

// Runs `plan` as the specification says, other than serially.
Status RunHosted(const Plan& plan, const FuzzSpec& spec, const Problem& problem, uint64_t seed) {
  if (spec.host == Host::kThreads) return test::RunHostDriven(plan, problem, spec.workers, seed);
#ifdef FOVEA_TEST_TBB
  static const std::unique_ptr<Executor> executors[] = {MakeTbbExecutor(2), MakeTbbExecutor(3)};
  Executor& executor = *executors[spec.workers - 2];
  static GuardedWorkspace memory;
  return Run(plan, problem, memory.Take(plan.WorkspaceBytes(executor.Workers())), executor);
#else
  return test::RunHostDriven(plan, problem, spec.workers, seed);
#endif
}

// In one of test::FloatStates(), if this machine has it. *unchanged: that state is still there.
template <class Function>
Status RunInState(int number, const Function& run, bool* unchanged) {
  const test::InState in(test::FloatStates()[static_cast<size_t>(number)]);
  Status status = run();
  *unchanged = !in.entered || in.Unchanged();
  return status;
}

// Empty, or what is wrong. `again`: also by the specification's host, and updated if it says so.
std::string TryKernel(FuzzProblem& p, const reference::ForwardResult& expected,
                      const PlanOptions& options, bool again, uint64_t seed) {
  const auto failed = [](const char* what, const Status& status) {
    return std::string(what) + ": " + status.message();
  };
  Plan plan;
  if (Status status = Plan::Create(p.problem(), options, &plan); !status.ok())
    return failed("Create", status);
  static GuardedWorkspace memory;
  p.tensors().ResetOutputs();
  if (Status status = Run(plan, p.problem(), memory.Take(plan.WorkspaceBytes(1))); !status.ok())
    return failed("Run", status);
  if (const testing::AssertionResult result =
          test::Matches(p.problem(), expected, reference::WeightTolerance(plan.product()));
      !result) {
    return result.message();
  }
  const FuzzSpec& spec = p.spec();
  const bool padded = HavePadding(spec.problem);
  if (padded && !p.tensors().OutputPaddingUntouched()) return "wrote outside its outputs";

  if (!again || (spec.host == Host::kSerial && !spec.update && spec.float_state < 0)) return "";
  const std::vector<unsigned char> serial = OutputBytes(p.tensors());
  if (spec.update) {
    Plan updated;
    if (Status status = Plan::Create(p.WithoutLengths(), options, &updated); !status.ok())
      return failed("Create without lengths", status);
    if (Status status = updated.Update(p.problem()); !status.ok()) return failed("Update", status);
    plan = std::move(updated);
  }
  p.tensors().ResetOutputs();
  const auto run = [&] {
    return spec.host == Host::kSerial ? Run(plan, p.problem(), memory.Take(plan.WorkspaceBytes(1)))
                                      : RunHosted(plan, spec, p.problem(), seed);
  };
  bool unchanged = true;
  const Status status =
      spec.float_state < 0 ? run() : RunInState(spec.float_state, run, &unchanged);
  if (!status.ok()) return failed("second run", status);
  if (!unchanged) return "the caller's floating-point state is another one behind a run";
  if (OutputBytes(p.tensors()) != serial)
    return "an updated plan, another executor or state gives other bits than a serial run";
  if (padded && !p.tensors().OutputPaddingUntouched())
    return "the second run wrote outside its outputs";
  return "";
}

// False with the fault printed.
bool TryProblem(uint64_t seed, const Arguments& arguments) {
  FuzzProblem p(seed);
  const reference::ForwardResult expected = p.Expected();
  std::vector<test::Kernel> kernels = test::KernelsFor(p.problem());
  // The plan's own choice mixes engines in a batch: on one target, which varies.
  const TargetList targets = UsableTargets();
  kernels.push_back({targets.data[seed % targets.count], Engine::kAuto});
  uint64_t number = seed;
  for (const test::Kernel& kernel : kernels) {
    // How a kernel is called has little to do with which it is: a third of them is called twice.
    const bool again = number++ % 3 == 0;
    if (arguments.target != Target::kAuto && kernel.target != arguments.target) continue;
    if (arguments.engine != Engine::kAuto && kernel.engine != arguments.engine) continue;
    PlanOptions options = p.spec().options;
    options.target = kernel.target;
    options.engine = kernel.engine;
    options.product = kernel.product;
    const std::string fault = TryKernel(p, expected, options, again, seed);
    if (fault.empty()) continue;
    std::printf("FAULT: --seed %" PRIu64 "\n  %s: %s\n  %s\n", seed, test::ToString(kernel).c_str(),
                fault.c_str(), p.ToString().c_str());
    std::fflush(stdout);
    return false;
  }
  return true;
}

// ---- jobs ----

// What the jobs share with the process that started them.
struct Progress {
  struct Job {
    std::atomic<uint64_t> seed{0};  // being tried
    std::atomic<int64_t> done{0};
  };
  static constexpr int kMaxJobs = 256;
  std::atomic<bool> stop{false};
  Job job[kMaxJobs];
};

bool RunJob(int number, const Arguments& arguments, Progress& progress) {
  int64_t faults = 0;
  const auto start = std::chrono::steady_clock::now();
  Progress::Job& job = progress.job[number];
  for (int64_t n = number; n < arguments.count && !progress.stop; n += arguments.jobs) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >=
        arguments.seconds)
      break;
    job.seed = arguments.first + static_cast<uint64_t>(n);
    alarm(kPatience);
    if (!TryProblem(job.seed, arguments) && ++faults == arguments.faults) return false;
    ++job.done;
  }
  return faults == 0;
}

int RunJobs(const Arguments& arguments) {
  void* const shared =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::perror("mmap"), 2;
  Progress& progress = *new (shared) Progress;
  std::printf("attention_fuzz: from seed %" PRIu64 " on, %d jobs\n", arguments.first,
              arguments.jobs);
  std::fflush(stdout);

  const auto start = std::chrono::steady_clock::now();
  std::vector<pid_t> jobs;
  for (int number = 0; number < arguments.jobs; ++number) {
    const pid_t child = fork();
    if (child < 0) return std::perror("fork"), 2;
    if (child == 0) {
      const bool ok = RunJob(number, arguments, progress);
      std::fflush(stdout);
      _exit(ok ? 0 : 1);
    }
    jobs.push_back(child);
  }
  bool ok = true;
  for (size_t waiting = jobs.size(); waiting > 0; --waiting) {
    int status = 0;
    const pid_t child = wait(&status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ok = false;
    progress.stop = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) continue;  // the job has told
    const size_t number =
        static_cast<size_t>(std::find(jobs.begin(), jobs.end(), child) - jobs.begin());
    if (number == jobs.size()) continue;
    FuzzSpec spec;
    test::Random random(progress.job[number].seed);
    spec = DrawSpec(random);
    std::printf("FAULT: --seed %" PRIu64 "\n  the process ended with %s %d\n  %s\n",
                progress.job[number].seed.load(), WIFSIGNALED(status) ? "signal" : "code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                ToString(spec).c_str());
  }
  int64_t done = 0;
  for (int number = 0; number < arguments.jobs; ++number) done += progress.job[number].done;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("attention_fuzz: %" PRId64 " problems in %.1f s, %.0f a second, %s\n", done, seconds,
              static_cast<double>(done) / seconds, ok ? "no fault" : "STOPPED BY A FAULT");
  if (done == 0) return std::printf("attention_fuzz: nothing was tried\n"), 1;
  return ok ? 0 : 1;
}

// ---- the command line ----

void Usage() {
  std::printf(
      "usage: attention_fuzz [--seconds N] [--count N] [--first SEED] [--jobs N] [--seed SEED] "
      "[--faults N] [--target NAME] [--engine "
      "NAME]\n"
      "  --seconds, --count   when to stop; 10 seconds by default\n"
      "  --first              seed of the first problem, the others count up; from the clock by "
      "default\n"
      "  --seed               one problem, exactly\n"
      "  --faults             how many faults end a job; 1 by default\n"
      "  --jobs               processes; all cores by default\n"
      "  --target, --engine   only that one\n");
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  const auto ticks =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  arguments->first = test::Random(ticks).Bits();
  arguments->jobs =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, Progress::kMaxJobs);
  bool limited = false;
  for (int a = 1; a + 1 < argc; a += 2) {
    const std::string name = argv[a];
    const char* const value = argv[a + 1];
    char* end = nullptr;
    if (name == "--seconds") {
      arguments->seconds = std::strtod(value, &end), limited = true;
    } else if (name == "--count") {
      arguments->count = std::strtoll(value, &end, 10), limited = true;
    } else if (name == "--first" || name == "--seed") {
      arguments->first = std::strtoull(value, &end, 10), arguments->one = name == "--seed";
    } else if (name == "--jobs") {
      arguments->jobs =
          std::clamp(static_cast<int>(std::strtol(value, &end, 10)), 1, Progress::kMaxJobs);
    } else if (name == "--faults") {
      arguments->faults = std::strtoll(value, &end, 10);
    } else if (name == "--target") {
      if (const Status status = ParseTarget(value, &arguments->target); !status.ok())
        return std::printf("%s\n", status.message()), false;
    } else if (name == "--engine") {
      for (Engine engine : {Engine::kTile, Engine::kRow}) {
        if (std::strcmp(value, Name(engine)) == 0) arguments->engine = engine;
      }
      if (arguments->engine == Engine::kAuto) return std::printf("no engine: %s\n", value), false;
    } else {
      return std::printf("no option: %s\n", name.c_str()), false;
    }
    if (end != nullptr && (end == value || *end != '\0'))
      return std::printf("%s: no number: %s\n", name.c_str(), value), false;
  }
  if (argc % 2 == 0) return std::printf("no value: %s\n", argv[argc - 1]), false;
  if (!limited) arguments->seconds = 10;
  return true;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) return Usage(), 2;
  if (!arguments.one) return RunJobs(arguments);
  if (!TryProblem(arguments.first, arguments)) return 1;
  test::Random random(arguments.first);
  std::printf("no fault: --seed %" PRIu64 "\n  %s\n", arguments.first,
              ToString(DrawSpec(random)).c_str());
  return 0;
}

}  // namespace
}  // namespace fovea::fuzz

int main(int argc, char** argv) { return fovea::fuzz::Main(argc, argv); }
