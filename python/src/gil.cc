#include "gil.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace fovea::python {
namespace {

std::atomic<bool> ending{false};
std::atomic<int> taking{0};  // threads between asking for the lock and having it

}  // namespace

void TakeGil(PyThreadState* state) noexcept {
  taking.fetch_add(1);
  if (ending.load()) {
    taking.fetch_sub(1);
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  PyEval_RestoreThread(state);
  taking.fetch_sub(1);
}

void EndGil() {
  ending.store(true);
  PyThreadState* const state = PyEval_SaveThread();
  while (taking.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  PyEval_RestoreThread(state);
}

}  // namespace fovea::python
