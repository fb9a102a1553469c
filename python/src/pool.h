// Threads that park: the executor of the Python package. A program that uses PyTorch has an OpenMP
// pool that spins between its operations; threads of ours that spun too would take the cores from
// it, and it from ours. These sleep between calls, and the calling thread always takes part.
#ifndef FOVEA_PYTHON_POOL_H_
#define FOVEA_PYTHON_POOL_H_

#include "fovea/executor.h"

namespace fovea::python {

// Asked between tasks, on the calling thread, whether the call is to end before its tasks have run.
class Interrupt {
 public:
  virtual ~Interrupt() = default;
  // Cheap: asked after each task. True once is true for good.
  virtual bool Asked() noexcept = 0;
};

// Registers what a fork needs; when the module is loaded. A child of a fork has none of its
// parent's threads: it starts a pool of its own, and leaves PyTorch's alone.
void PrepareForks() noexcept;

// How many threads calls use that do not say it; 1 or more. Thread-safe.
int DefaultThreads() noexcept;
void SetDefaultThreads(int threads) noexcept;

// PyTorch's own threads, for calls on its tensors: its operations come before and after ours, and
// its threads still spin when we start. Two pools would take the cores from each other, and the
// operation after ours would pay for it. Only where PyTorch's threads are GNU OpenMP's (or an
// OpenMP that has GNU's entry points), and not in a child of a fork: where the parent had started
// those threads they never answer, and nothing tells whether it had.
class OpenMPExecutor final : public Executor {
 public:
  static bool Available() noexcept;  // PyTorch must have been loaded
  OpenMPExecutor(int threads, Interrupt& interrupt) noexcept
      : threads_(threads < 1 ? 1 : threads), interrupt_(interrupt) {}
  int Workers() const noexcept override { return threads_; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override;

 private:
  int threads_;
  Interrupt& interrupt_;
};

// An executor over the process's pool for one call at most `threads` wide, the calling thread
// included. Calls of several threads share the pool: each is served by whichever helpers are free,
// and by its own thread in any case, so none waits for another. After a fork the child starts a
// pool of its own. When no thread can be started, calls go on with those that there are. Once
// `interrupt` asks for it, no further task is started, in this ForEach and later ones.
class PoolExecutor final : public Executor {
 public:
  PoolExecutor(int threads, Interrupt& interrupt) noexcept
      : threads_(threads < 1 ? 1 : threads), interrupt_(interrupt) {}
  int Workers() const noexcept override { return threads_; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override;

 private:
  int threads_;
  Interrupt& interrupt_;
};

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_POOL_H_
