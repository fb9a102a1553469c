#include "running.h"

#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "pool.h"

namespace fovea::python {
namespace {

// One per thread, so that runs of several threads do not meet. Small ones are kept for the next
// call.
struct Memory {
  void* data = nullptr;
  size_t bytes = 0;
  ~Memory() { std::free(data); }
  void Release() {
    std::free(data);
    data = nullptr;
    bytes = 0;
  }
};
thread_local Memory memory;
constexpr size_t kKeep = size_t{1} << 20;

bool IsMainThread() noexcept {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#else
  return true;  // not known: the others look in vain
#endif
}

// Python's handlers of signals run where PyErr_CheckSignals is called, in the main thread alone.
// Looks often enough for a person, and so rarely that waiting for the GIL (5 ms, where another
// thread runs Python) costs little.
class Signals : public Interrupt {
 public:
  bool Asked() noexcept final {
    if (asked_) return true;
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    next_ = now + kPause;
    asked_ = IsMainThread() && Look();
    return asked_;
  }
  bool asked() const { return asked_; }

 private:
  virtual bool Look() noexcept = 0;

  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{100};
  Clock::time_point next_ = Clock::now() + kPause;
  bool asked_ = false;
};

// Leaves the exception set, for who let go of the GIL.
class RaisedSignals final : public Signals {
 public:
  explicit RaisedSignals(WithoutGil* released) : released_(released) {}

 private:
  bool Look() noexcept override {
    const WithoutGil::With gil(*released_);
    return PyErr_CheckSignals() != 0;
  }
  WithoutGil* released_;
};

// Leaves the exception to the next step that Python takes in this thread, the main one.
class PendingSignals final : public Signals {
 private:
  struct Exception {
    PyObject *type, *value, *traceback;
  };
  static int Restore(void* exception) {
    auto* const e = static_cast<Exception*>(exception);
    PyErr_Restore(e->type, e->value, e->traceback);
    delete e;
    return -1;
  }
  bool Look() noexcept override {
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool raised = PyErr_CheckSignals() != 0;
    if (raised) {
      auto* const e = new Exception;
      PyErr_Fetch(&e->type, &e->value, &e->traceback);
      if (Py_AddPendingCall(&Restore, e) != 0) {  // too many are pending
        Restore(e);
        PyErr_WriteUnraisable(nullptr);
      }
    }
    PyGILState_Release(gil);
    return raised;
  }
};

template <class AnyPlan, class AnyProblem>
Status Execute(const AnyPlan& plan, const AnyProblem& problem, Library library, int threads,
               Interrupt& interrupt) noexcept {
  const size_t bytes = plan.WorkspaceBytes(threads);
  if (bytes > memory.bytes) {
    memory.Release();
    memory.data = std::malloc(bytes);
    if (memory.data == nullptr)
      return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
    memory.bytes = bytes;
  }
  Status status;
  if (threads > 1 && library == Library::kTorch && OpenMPExecutor::Available()) {
    OpenMPExecutor executor(threads, interrupt);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  } else {
    PoolExecutor executor(threads, interrupt);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  }
  if (memory.bytes > kKeep) memory.Release();
  return status;
}

}  // namespace

int ThreadsFor(const Cost& cost, int asked) {
  // Waking a thread that sleeps takes some ten microseconds; a core does about 10⁶ operations in it
  // and reads about 2·10⁵ bytes. Below a few times of that a second thread cannot gain anything
  // worth its wake-up.
  constexpr double kFewFlops = 4e6, kFewBytes = 1e6;
  const int threads = asked > 0 ? asked : DefaultThreads();
  if (cost.flops < kFewFlops && cost.kv_bytes < kFewBytes) return 1;
  return static_cast<int>(std::clamp<int64_t>(cost.tasks, 1, threads));
}

Status RunHere(const Plan& plan, const Problem& problem, Library library, int threads,
               WithoutGil* released, bool* interrupted) noexcept {
  RaisedSignals signals(released);
  const Status status = Execute(plan, problem, library, threads, signals);
  *interrupted = signals.asked();
  return status;
}

Status RunHere(const GradientPlan& plan, const GradientProblem& problem, Library library,
               int threads, WithoutGil* released, bool* interrupted) noexcept {
  RaisedSignals signals(released);
  const Status status = Execute(plan, problem, library, threads, signals);
  *interrupted = signals.asked();
  return status;
}

Status AppendHere(const KVCache& cache, const NewTokens& tokens, const AppendOptions& options,
                  AppendResult* result, Library library, int threads, WithoutGil* released,
                  bool* interrupted) noexcept {
  *interrupted = false;
  BoundAppend call;
  const Status bound = BindAppend(cache, tokens, options, result, &call);
  if (!bound.ok()) return bound;
  Cost cost;  // a task writes some 64 KiB
  cost.tasks = call.Tasks();
  cost.kv_bytes = 65536.0 * static_cast<double>(cost.tasks);
  threads = ThreadsFor(cost, threads);
  RaisedSignals signals(released);
  Status status;
  if (threads > 1 && library == Library::kTorch && OpenMPExecutor::Available()) {
    OpenMPExecutor executor(threads, signals);
    status = Append(cache, tokens, options, result, executor);
  } else {
    PoolExecutor executor(threads, signals);
    status = Append(cache, tokens, options, result, executor);
  }
  *interrupted = signals.asked();
  return status;
}

Status RunWithoutPython(const Plan& plan, const Problem& problem, int threads,
                        bool* interrupted) noexcept {
  PendingSignals signals;
  const Status status = Execute(plan, problem, Library::kTorch, threads, signals);
  *interrupted = signals.asked();
  return status;
}

void RunOnce(Call* call, const Options& options) {
  Plan plan;
  Status status;
  {
    const WithoutGil release;
    status = Plan::Create(call->problem(), options.plan, &plan);
  }
  Check(status);
  call->Allocate();
  bool interrupted;
  {
    WithoutGil release;
    status = RunHere(plan, call->problem(), call->library(),
                     ThreadsFor(plan.cost(), options.threads), &release, &interrupted);
  }
  if (interrupted) throw nb::python_error();
  Check(status);
}

}  // namespace fovea::python
