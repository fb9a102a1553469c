// A host that has its own threads drives attention with them: it binds a planned call and runs its phases of independent tasks, with a barrier
// between phases. Fovea starts no thread, takes no lock and allocates nothing in a bound call. The results are those of one thread, bit for bit.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "fovea/fovea.h"

namespace {

// Where a fixed number of threads waits for one another, again and again.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  // Returns when all threads have come. The last to come calls `last` first, while the others still wait; all give the same.
  template <class Function>
  void Wait(Function last) {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = round_;
    if (++waiting_ == threads_) {
      last();
      waiting_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
  }
  void Wait() {
    Wait([] {});
  }

 private:
  const int threads_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int waiting_ = 0;
  int64_t round_ = 0;
};

// Threads that live as long as the host and run one call after the other. The thread that calls Run is worker 0.
class Pool {
 public:
  explicit Pool(int workers) : barrier_(workers) {
    for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { Serve(worker); });
  }
  ~Pool() {
    call_ = nullptr;
    barrier_.Wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int workers() const { return static_cast<int>(threads_.size()) + 1; }

  void Run(const fovea::BoundCall& call) {
    if (call.Phases() == 0) return;  // nothing to compute
    next_ = 0;
    call_ = &call;    // the barrier's lock makes both visible to all
    barrier_.Wait();  // go
    Work(0);
  }

 private:
  void Serve(int worker) {
    for (;;) {
      barrier_.Wait();  // for a call, or the end
      if (call_ == nullptr) return;
      Work(worker);
    }
  }

  void Work(int worker) {
    const fovea::BoundCall& call = *call_;
    const int phases = call.Phases();  // after the last barrier the call may be gone
    for (int phase = 0; phase < phases; ++phase) {
      const int64_t tasks = call.Tasks(phase);
      for (int64_t task = next_++; task < tasks; task = next_++) call.RunTask(phase, task, worker);
      barrier_.Wait([this] { next_ = 0; });  // every task of this phase is done before the next phase begins
    }
  }

  Barrier barrier_;
  std::vector<std::thread> threads_;
  const fovea::BoundCall* call_ = nullptr;
  std::atomic<int64_t> next_{0};  // the next task of the phase; tasks come in order of falling cost
};

// Numbers in [-1, 1) from a fixed sequence.
std::vector<float> Numbers(int64_t count, uint32_t seed) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return numbers;
}

struct Case {
  const char* name;
  int64_t B, Hq, Hkv, Tq, Tk, d;
  fovea::Causal causal;
};

// The same problem by one thread and by pools of 1 to 4: true if all agree bit for bit.
bool Agree(const Case& c) {
  const std::vector<float> q = Numbers(c.B * c.Hq * c.Tq * c.d, 1), k = Numbers(c.B * c.Hkv * c.Tk * c.d, 2),
                           v = Numbers(c.B * c.Hkv * c.Tk * c.d, 3);
  std::vector<float> expected(q.size()), out(q.size());

  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {c.B, c.Hq, c.Tq, c.d});
  problem.k = fovea::View(k.data(), {c.B, c.Hkv, c.Tk, c.d});
  problem.v = fovea::View(v.data(), {c.B, c.Hkv, c.Tk, c.d});
  problem.out = fovea::View(expected.data(), {c.B, c.Hq, c.Tq, c.d});
  problem.score.causal = c.causal;

  fovea::Plan plan;
  fovea::Status status = fovea::Plan::Create(problem, {}, &plan);
  if (status.ok()) {
    std::vector<char> memory(plan.WorkspaceBytes(1));
    status = fovea::Run(plan, problem, {memory.data(), memory.size()});
  }

  problem.out = fovea::View(out.data(), {c.B, c.Hq, c.Tq, c.d});
  for (int workers = 1; status.ok() && workers <= 4; ++workers) {
    Pool pool(workers);
    std::vector<char> memory(plan.WorkspaceBytes(workers));
    fovea::BoundCall call;
    status = fovea::Bind(plan, problem, {memory.data(), memory.size()}, workers, &call);
    for (int run = 0; status.ok() && run < 3; ++run) {
      out.assign(out.size(), -7.0f);
      pool.Run(call);
      if (std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) != 0) {
        std::printf("%s: %d workers differ from one\n", c.name, workers);
        return false;
      }
    }
  }
  if (!status.ok()) {
    std::printf("%s: %s\n", c.name, status.message());
    return false;
  }
  std::printf("%s: 1, 2, 3 and 4 workers give the same bits\n", c.name);
  return true;
}

}  // namespace

int main() {
  bool ok = Agree({"prefill", 1, 8, 2, 300, 300, 64, fovea::Causal::kTopLeft});
  ok &= Agree({"decode", 2, 8, 2, 1, 4096, 64, fovea::Causal::kNone});
  return ok ? 0 : 1;
}
