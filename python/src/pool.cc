#include "pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>

#include "cpus.h"

namespace fovea::python {
namespace {

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Between two phases of a call, or two calls of a loop, a helper is wanted again within a few
// microseconds, which is what falling asleep and waking up costs. More would be taken from other
// pools: a `pause` is 10 to 140 cycles, so this ends after a few microseconds at most.
constexpr int kSpins = 100;

// One ForEach. Lives on the caller's stack; helpers may touch it only between joining and leaving,
// both under the pool's mutex.
struct Job {
  Executor::Task task;
  void* context;
  int64_t tasks;
  int workers;  // at most; the caller is worker 0
  Interrupt* interrupt;
  std::atomic<int64_t> next{0};
  int joined = 1;              // worker numbers given out; guarded by the mutex
  std::atomic<int> active{0};  // helpers inside; changed under the mutex
  Job* following = nullptr;

  void Drain(int worker) {
    if (worker == 0 && interrupt->Asked()) Stop();
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      task(context, i, worker);
      if (worker == 0 && interrupt->Asked()) Stop();
    }
  }
  // Leaves no task to draw.
  void Stop() { next.store(tasks, std::memory_order_relaxed); }
  bool Wants() const { return joined < workers && next.load(std::memory_order_relaxed) < tasks; }
};

class Pool {
 public:
  // Never destroyed: its threads are asleep when the process ends.
  void Run(Job& job) {
    std::unique_lock<std::mutex> lock(mutex_);
    Grow(job.workers - 1);
    job.following = jobs_;
    jobs_ = &job;
    posted_.fetch_add(1, std::memory_order_release);
    const int wanted = std::min(job.workers - 1, sleeping_);
    lock.unlock();
    for (int i = 0; i < wanted; ++i) wake_.notify_one();

    job.Drain(0);

    // Nothing is left to draw, so nobody joins any more once the job is out of the list.
    lock.lock();
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;
    if (job.active.load(std::memory_order_acquire) == 0) return;
    lock.unlock();
    for (int i = 0; i < kSpins && job.active.load(std::memory_order_acquire) != 0; ++i) Pause();
    lock.lock();
    done_.wait(lock, [&job] { return job.active.load(std::memory_order_acquire) == 0; });
  }

 private:
  void Grow(int helpers) {
    if (started_ >= helpers) return;
    // Signals are for the program's own threads: helpers inherit a mask that blocks all of them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; started_ < helpers; ++started_) std::thread(&Pool::Help, this).detach();
    } catch (...) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  Job* Find() const {
    for (Job* job = jobs_; job != nullptr; job = job->following) {
      if (job->Wants()) return job;
    }
    return nullptr;
  }

  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (Job* const job = Find()) {
        const int worker = job->joined++;
        job->active.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        job->Drain(worker);
        lock.lock();
        if (job->active.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
        continue;
      }
      const uint64_t seen = posted_.load(std::memory_order_relaxed);
      lock.unlock();
      for (int i = 0; i < kSpins && posted_.load(std::memory_order_acquire) == seen; ++i) Pause();
      lock.lock();
      if (posted_.load(std::memory_order_relaxed) != seen) continue;
      ++sleeping_;
      wake_.wait(lock);
      --sleeping_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> posted_{0};
  Job* jobs_ = nullptr;
  int started_ = 0;
  int sleeping_ = 0;
};

std::atomic<Pool*> the_pool{nullptr};
std::atomic<int> default_threads{0};

// This process is the child of a fork, and has run no other program since.
std::atomic<bool> forked{false};

// The child has none of its parent's threads, and perhaps a mutex that nobody will unlock: it
// forgets the pool.
void AfterFork() {
  the_pool.store(nullptr);
  forked.store(true, std::memory_order_relaxed);
}

// The same of a fork before this module was loaded: PF_FORKNOEXEC of Linux, in proc's "pid (name)
// state ppid pgrp session tty tpgid flags …".
bool ForkedBefore() {
  std::string line;
  std::ifstream file("/proc/self/stat");
  if (!std::getline(file, line)) return false;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  char state;
  long long parent, group, session, terminal, foreground;
  unsigned long flags = 0;
  std::istringstream fields(line.substr(name_end + 1));
  fields >> state >> parent >> group >> session >> terminal >> foreground >> flags;
  return (flags & 0x40) != 0;
}

Pool* ThePool() noexcept {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  Pool* const fresh = new (std::nothrow) Pool;
  if (fresh == nullptr) return nullptr;
  if (the_pool.compare_exchange_strong(pool, fresh)) return fresh;
  delete fresh;
  return pool;
}

// What a compiler calls for `#pragma omp parallel`, found in the process rather than linked: the
// threads must be those of PyTorch's copy.
struct OpenMP {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*thread_num)() = nullptr;

  static const OpenMP& Get() {
    static const OpenMP openmp = [] {
      OpenMP o;
      o.parallel = reinterpret_cast<decltype(o.parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
      o.thread_num =
          reinterpret_cast<decltype(o.thread_num)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
      return o;
    }();
    return openmp;
  }
};

}  // namespace

void PrepareForks() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, AfterFork);
  (void)registered;
  try {
    if (ForkedBefore()) forked.store(true, std::memory_order_relaxed);
  } catch (...) {
    forked.store(true, std::memory_order_relaxed);
  }
}

bool OpenMPExecutor::Available() noexcept {
  const OpenMP& openmp = OpenMP::Get();
  return openmp.parallel != nullptr && openmp.thread_num != nullptr &&
         !forked.load(std::memory_order_relaxed);
}

void OpenMPExecutor::ForEach(int64_t tasks, Task task, void* context) noexcept {
  Job job{task, context, tasks, static_cast<int>(std::min<int64_t>(threads_, tasks)), &interrupt_};
  if (job.workers < 2) return job.Drain(0);
  // The team may be smaller than asked for, inside another parallel region for one: whoever is
  // there draws until nothing is left.
  OpenMP::Get().parallel(
      [](void* data) { static_cast<Job*>(data)->Drain(OpenMP::Get().thread_num()); }, &job,
      static_cast<unsigned>(job.workers), 0);
}

int DefaultThreads() noexcept {
  const int threads = default_threads.load(std::memory_order_relaxed);
  if (threads != 0) return threads;
  int cpus = 1;
  try {
    cpus = UsableCpus();
  } catch (...) {  // no memory to read files with
  }
  default_threads.store(cpus, std::memory_order_relaxed);
  return cpus;
}

void SetDefaultThreads(int threads) noexcept {
  default_threads.store(std::max(1, threads), std::memory_order_relaxed);
}

void PoolExecutor::ForEach(int64_t tasks, Task task, void* context) noexcept {
  Job job{task, context, tasks, static_cast<int>(std::min<int64_t>(threads_, tasks)), &interrupt_};
  Pool* const pool = job.workers > 1 ? ThePool() : nullptr;
  if (pool == nullptr) return job.Drain(0);
  pool->Run(job);
}

}  // namespace fovea::python
