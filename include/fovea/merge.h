// Partial attention states over disjoint key sets merge exactly: split keys, cascades with a shared
// prefix, attention spread over machines.
#ifndef FOVEA_MERGE_H_
#define FOVEA_MERGE_H_

#include <cstdint>

#include "fovea/detail/macros_begin.h"
#include "fovea/export.h"
#include "fovea/status.h"
#include "fovea/tensor.h"

namespace fovea {

// What attention over one key set leaves behind.
struct PartialState {
  TensorView out;  // f32 [B, Hq, Tq, dv], normalised
  TensorView lse;  // f32 [B, Hq, Tq]
};

// The attention state over the union of `count` ≥ 1 disjoint key sets:  m = max lse_n,  w_n =
// exp(lse_n − m),  out = Σ w_n·out_n / Σ w_n, lse = m + ln Σ w_n  (Dao et al. 2023, "Flash-Decoding
// for long-context inference"). A part with lse = −inf has weight 0 and its out is not read; when
// all are −inf, out = 0 and lse = −inf. A NaN or +inf lse gives a NaN row.
//
// out is f32 [B, Hq, Tq, dv], lse f32 [B, Hq, Tq] and optional (rank 0); any strides. Parts merge
// in ascending order, so the result is repeatable. out may be the very memory of one part's out,
// and lse of its lse; otherwise outputs overlap no input. Errors: no parts, shapes or types that
// differ, null data of a non-empty shape, strides that overflow. No allocation; thread-safe for
// distinct outputs. In the default floating-point state, as all of fovea/attention.h.
FOVEA_EXPORT Status Merge(const PartialState* parts, int64_t count, const MutableTensorView& out,
                          const MutableTensorView& lse) noexcept;

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_MERGE_H_
