#include "fovea/c_tbb.h"

#include <cstdio>
#include <memory>

#include "fovea/tbb.h"

namespace fovea {
namespace {

void ForEach(void* context, int64_t tasks, fovea_task run, void* task_context) {
  static_cast<Executor*>(context)->ForEach(tasks, run, task_context);
}

fovea_status Report(fovea_status status, const char* message, fovea_error* error) {
  if (error != nullptr) std::snprintf(error->message, sizeof(error->message), "%s", message);
  return status;
}

}  // namespace
}  // namespace fovea

extern "C" {

fovea_status fovea_tbb_create(int32_t threads, fovea_executor* executor,
                              fovea_error* error) noexcept {
  // Neither shorter nor longer ones: those of another version of the headers would lack a field
  // that is written, or have one that is not.
  if (executor == nullptr || executor->size != sizeof(fovea_executor)) {
    return fovea::Report(
        FOVEA_INVALID_ARGUMENT,
        "executor = null or of a wrong size, expected one of sizeof(fovea_executor)", error);
  }
  if (threads < 0)
    return fovea::Report(FOVEA_INVALID_ARGUMENT,
                         "threads < 0, expected 0 (oneTBB's choice) or greater", error);
  std::unique_ptr<fovea::Executor> made = fovea::MakeTbbExecutor(threads);
  if (made == nullptr)
    return fovea::Report(FOVEA_OUT_OF_MEMORY, "no memory for the executor", error);
  executor->workers = made->Workers();
  executor->for_each = fovea::ForEach;
  executor->context = made.release();
  executor->reserved = 0;
  return fovea::Report(FOVEA_OK, "", error);
}

void fovea_tbb_destroy(fovea_executor* executor) noexcept {
  if (executor == nullptr || executor->for_each != fovea::ForEach) return;  // another's
  delete static_cast<fovea::Executor*>(executor->context);
  executor->context = nullptr;
  executor->for_each = nullptr;
}

}  // extern "C"
