// Runs calls on oneTBB. In a library of its own (CMake target fovea::tbb), so that the core needs
// no threading library.
#ifndef FOVEA_TBB_H_
#define FOVEA_TBB_H_

#include <memory>

#include "fovea/executor.h"
#include "fovea/export.h"

namespace fovea {

// An executor over an oneTBB arena of `threads` threads, the calling one included (0: as many as
// oneTBB would use by default). Tasks are isolated: while a caller waits, it takes no task of
// anybody else. One executor may serve calls of several threads, one at a time each; for concurrent
// calls give each thread its own. Null when memory is short.
FOVEA_EXPORT std::unique_ptr<Executor> MakeTbbExecutor(int threads = 0) noexcept;

}  // namespace fovea

#endif  // FOVEA_TBB_H_
