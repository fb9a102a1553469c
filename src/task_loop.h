// A number of tasks in an executor's hands. It belongs to the host: what it calls is checked and
// counted.
#ifndef FOVEA_SRC_TASK_LOOP_H_
#define FOVEA_SRC_TASK_LOOP_H_

#include <atomic>
#include <cinttypes>
#include <cstdint>

#include "errors.h"
#include "fovea/executor.h"

namespace fovea {

// Run is called as run(task, worker), by several threads at the same time.
template <class Run>
class TaskLoop {
 public:
  TaskLoop(int64_t tasks, int workers, const Run& run)
      : run_(run), tasks_(tasks), workers_(workers) {}

  Status In(Executor& executor) {
    executor.ForEach(tasks_, RunTask, this);
    if (misled_.load(std::memory_order_relaxed))
      return Invalid(
          "executor called a task or a worker that does not exist: outputs hold anything");
    const uint64_t n = static_cast<uint64_t>(tasks_);
    const uint64_t all = n % 2 == 0 ? n / 2 * (n + 1) : (n + 1) / 2 * n;
    if (done_.load(std::memory_order_relaxed) != all)
      return Invalid("executor did not call each of %" PRId64 " tasks once: outputs hold anything",
                     tasks_);
    return Status();
  }

 private:
  static void RunTask(void* self, int64_t task, int worker) {
    TaskLoop& loop = *static_cast<TaskLoop*>(self);
    if (task < 0 || task >= loop.tasks_ || worker < 0 || worker >= loop.workers_) {
      loop.misled_.store(true, std::memory_order_relaxed);
      return;
    }
    loop.run_(task, worker);
    loop.done_.fetch_add(static_cast<uint64_t>(task) + 1, std::memory_order_relaxed);
  }

  const Run& run_;
  const int64_t tasks_;
  const int workers_;
  std::atomic<bool> misled_{false};
  // The sum of task + 1 over those that have run: tells a task left out from one that ran twice.
  std::atomic<uint64_t> done_{0};
};

}  // namespace fovea

#endif  // FOVEA_SRC_TASK_LOOP_H_
