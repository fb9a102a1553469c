// The views of a problem whose maps (mask_map.h) a plan has: of which each run fills one in its
// workspace, or the plan once for all runs.
#ifndef FOVEA_SRC_PLAN_MAPS_H_
#define FOVEA_SRC_PLAN_MAPS_H_

#include "fovea/attention.h"
#include "mask_map.h"

namespace fovea {

struct MapSource {
  const char* name;
  const TensorView& (*view)(const Problem&);
  bool (*fixed)(const PlanOptions&);  // whether the plan reads it
  // What Run compares, as messages call it: the axes of the layout.
  const char* axes[4];
};

constexpr int kMaps = 2;
constexpr int kMapOfMask = 0, kMapOfBias = 1;
inline constexpr MapSource kMapSources[kMaps] = {
    {"mask",
     [](const Problem& p) -> const TensorView& { return p.score.mask; },
     [](const PlanOptions& o) { return o.fixed_mask; },
     {"sequences that the mask tells apart", "heads that the mask tells apart",
      "groups of queries that the mask tells apart", "groups of keys that the mask tells apart"}},
    {"bias",
     [](const Problem& p) -> const TensorView& { return p.score.bias; },
     [](const PlanOptions& o) { return o.fixed_bias; },
     {"sequences that the bias tells apart", "heads that the bias tells apart",
      "groups of queries that the bias tells apart", "groups of keys that the bias tells apart"}}};

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_MAPS_H_
