#include "fovea/executor.h"

namespace fovea {
namespace {

class Serial final : public Executor {
 public:
  int Workers() const noexcept override { return 1; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override {
    for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
  }
};

}  // namespace

Executor& SerialExecutor() noexcept {
  static Serial serial;
  return serial;
}

}  // namespace fovea
