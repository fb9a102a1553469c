// A host's thread pool, as the examples use it: threads that live long, and a barrier.
#ifndef FOVEA_EXAMPLES_POOL_H_
#define FOVEA_EXAMPLES_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fovea/attention.h"

// Where a fixed number of threads waits for one another, again and again.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  // Returns when all threads have come. The last to come calls `last` first, while the others still
  // wait; all give the same.
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

// Threads that live as long as the host and run one call after the other. The thread that calls Run
// is worker 0.
class Pool {
 public:
  explicit Pool(int workers) : barrier_(workers) {
    for (int worker = 1; worker < workers; ++worker)
      threads_.emplace_back([this, worker] { Serve(worker); });
  }
  ~Pool() {
    call_ = nullptr;
    barrier_.Wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int workers() const { return static_cast<int>(threads_.size()) + 1; }

  // Asks `stop`, if there is one, before every task, and gives up when it says so; any thread may
  // call it. False if it was stopped: the outputs then hold anything.
  bool Run(const fovea::BoundCall& call, const std::function<bool()>& stop = nullptr) {
    if (call.Phases() == 0) return true;  // nothing to compute
    next_ = 0;
    stopped_ = false;
    call_ = &call;  // the barrier's lock makes these visible to all
    stop_ = &stop;
    barrier_.Wait();  // go
    Work(0);
    return !stopped_;
  }

 private:
  void Serve(int worker) {
    for (;;) {
      barrier_.Wait();  // for a call, or the end
      if (call_ == nullptr) return;
      Work(worker);
    }
  }

  bool Stopped() {
    if (*stop_ && !stopped_ && (*stop_)()) stopped_ = true;
    return stopped_;
  }

  void Work(int worker) {
    const fovea::BoundCall& call = *call_;
    const int phases = call.Phases();  // after the last barrier the call may be gone
    for (int phase = 0; phase < phases; ++phase) {
      const int64_t tasks = call.Tasks(phase);
      for (int64_t task = next_++; task < tasks && !Stopped(); task = next_++)
        call.RunTask(phase, task, worker);
      // every task of this phase is done before the next phase begins
      barrier_.Wait([this] { next_ = 0; });
    }
  }

  Barrier barrier_;
  std::vector<std::thread> threads_;
  const fovea::BoundCall* call_ = nullptr;
  const std::function<bool()>* stop_ = nullptr;
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> next_{0};  // the next task of the phase; tasks come in order of falling cost
};

// Numbers in [-1, 1) from a fixed sequence.
inline std::vector<float> Numbers(int64_t count, uint32_t seed) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return numbers;
}

#endif  // FOVEA_EXAMPLES_POOL_H_
