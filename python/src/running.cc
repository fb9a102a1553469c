#include "running.h"

#include <algorithm>
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

Status RunHere(const Plan& plan, const Problem& problem, Library library, int threads) noexcept {
  const size_t bytes = plan.WorkspaceBytes(threads);
  if (bytes > memory.bytes) {
    memory.Release();
    memory.data = std::malloc(bytes);
    if (memory.data == nullptr)
      return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
    memory.bytes = bytes;
  }
  Status status;
  if (threads == 1) {
    status = Run(plan, problem, {memory.data, memory.bytes});
  } else if (library == Library::kTorch && OpenMPExecutor::Available()) {
    OpenMPExecutor executor(threads);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  } else {
    PoolExecutor executor(threads);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  }
  if (memory.bytes > kKeep) memory.Release();
  return status;
}

}  // namespace fovea::python
