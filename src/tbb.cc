// The executor on oneTBB. The only file of Fovea that knows oneTBB.
#include "fovea/tbb.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "float_state.h"

namespace fovea {
namespace {

class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int threads) : arena_(threads > 0 ? threads : tbb::task_arena::automatic) {
    // More threads than oneTBB's default would stay idle, with a warning printed, if its limit were
    // not raised for as long as we live. (A host that has set a lower limit of its own keeps it:
    // the lowest one counts.)
    if (threads > tbb::info::default_concurrency()) {
      limit_.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
    }
    arena_.initialize();
    workers_ = std::max(1, arena_.max_concurrency());
  }

  int Workers() const noexcept override { return workers_; }

  // One body per worker draws indices from a common counter until none is left, so every task
  // starts as early as it can and in order of falling cost: longest first balances best, and no
  // splitting of the range gives that order. A draw is one atomic addition.
  void ForEach(int64_t tasks, Task task, void* context) noexcept override {
    std::atomic<int64_t> next{0};
    // The body's number is the worker: distinct among concurrent bodies whatever thread or arena
    // slot a body lands on.
    const auto drain = [&next, tasks, task, context](int worker) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
        task(context, i, worker);
    };
    const int bodies = static_cast<int>(std::min<int64_t>(tasks, workers_));
    if (bodies > 1) {
      // oneTBB allocates its own tasks, which may fail. It waits for the bodies that started before
      // it throws; what they left is done below.
      try {
        // oneTBB moves the caller's floating-point state about, and loses or invents flags.
        InDefaultFloatState([&] {
          arena_.execute([&] {
            // The static partitioner mails body b to the thread in slot b: a slice of the workspace
            // tends to stay in one core's cache.
            tbb::this_task_arena::isolate(
                [&] { tbb::parallel_for(0, bodies, drain, tbb::static_partitioner()); });
          });
        });
      } catch (...) {
      }
    }
    drain(0);
  }

 private:
  std::optional<tbb::global_control> limit_;
  tbb::task_arena arena_;
  int workers_ = 1;
};

}  // namespace

std::unique_ptr<Executor> MakeTbbExecutor(int threads) noexcept {
  try {
    return std::make_unique<TbbExecutor>(threads);
  } catch (...) {
    return nullptr;
  }
}

}  // namespace fovea
