// Everything of Fovea but the oneTBB executor (fovea/tbb.h).
#ifndef FOVEA_FOVEA_H_
#define FOVEA_FOVEA_H_

#include "fovea/allocator.h"  // IWYU pragma: export
#include "fovea/attention.h"  // IWYU pragma: export
#include "fovea/cache.h"      // IWYU pragma: export
#include "fovea/executor.h"   // IWYU pragma: export
#include "fovea/gradient.h"   // IWYU pragma: export
#include "fovea/kv_cache.h"   // IWYU pragma: export
#include "fovea/merge.h"      // IWYU pragma: export
#include "fovea/score.h"      // IWYU pragma: export
#include "fovea/status.h"     // IWYU pragma: export
#include "fovea/target.h"     // IWYU pragma: export
#include "fovea/tensor.h"     // IWYU pragma: export

#endif  // FOVEA_FOVEA_H_
