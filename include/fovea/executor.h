// Who runs the tasks of a call: one seam for threading. The core library starts no thread of its
// own.
#ifndef FOVEA_EXECUTOR_H_
#define FOVEA_EXECUTOR_H_

#include <cstdint>

#include "fovea/export.h"

namespace fovea {

// Runs independent tasks. An implementation may use any threads in any order; results do not depend
// on it, bit for bit.
class FOVEA_EXPORT Executor {
 public:
  // One task: `index` in [0, tasks), `worker` in [0, Workers()). Never throws.
  using Task = void (*)(void* context, int64_t index, int worker);

  virtual ~Executor() = default;

  // The largest number of tasks that may run at the same time; each worker has a slice of the
  // workspace to itself.
  virtual int Workers() const noexcept = 0;

  // Calls task(context, i, worker) once for every i in [0, tasks) and returns when all have
  // returned. No two concurrent calls may have the same worker. Low indices first where there is a
  // choice: tasks are ordered by falling cost. What is called is counted: a run of which a task was
  // left out, called twice or does not exist is an error (fovea::Run).
  virtual void ForEach(int64_t tasks, Task task, void* context) noexcept = 0;
};

// The calling thread, one task after the other. Stateless and thread-safe; lives for the whole
// process.
FOVEA_EXPORT Executor& SerialExecutor() noexcept;

}  // namespace fovea

#endif  // FOVEA_EXECUTOR_H_
