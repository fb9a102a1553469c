// The executor on oneTBB for C: fovea/tbb.h. In the library fovea_tbb (CMake target fovea::tbb), as
// there.
#ifndef FOVEA_C_TBB_H_
#define FOVEA_C_TBB_H_

#include "fovea/c.h"

#ifdef __cplusplus
extern "C" {
#endif

// Fills *executor, whose size is set, with one of `threads` threads, the calling one included (0:
// as many as oneTBB would use by default); to be destroyed. It may serve calls of several threads,
// one at a time each.
FOVEA_EXPORT fovea_status fovea_tbb_create(int32_t threads, fovea_executor* executor,
                                           fovea_error* error) FOVEA_NOEXCEPT;

// Null, and an executor without a context, are ignored; clears the context and for_each.
FOVEA_EXPORT void fovea_tbb_destroy(fovea_executor* executor) FOVEA_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif  // FOVEA_C_TBB_H_
