// The contract between the plan of gradients and its kernels, as kernel.h is for attention itself.
//
// Scores and weights are computed again, a tile of query rows and a block of keys at a time, from
// lse. Of such a part, with P the weights and dS the gradients of the scores:
//
//   dP = dout·Vᵀ             dV += Pᵀ·dout
//   dS = P·(dP − delta)      dK += dSᵀ·(scale·Q)      dQ += dS·K
//
// where delta = Σ out·dout − dlse of a row (Dao et al. 2022, "FlashAttention", appendix B.2).
//
// Sums lie in the workspace, one array each for dQ, dK and dV of a KV head of a sequence. A task
// adds the parts of some rows and some keys to them; tasks that run at the same time share neither
// rows nor keys.
#ifndef FOVEA_SRC_KERNELS_GRADIENT_KERNEL_H_
#define FOVEA_SRC_KERNELS_GRADIENT_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "fovea/gradient.h"
#include "kernels/kernel.h"

namespace fovea {

// Keys of a block, whose sums lie together.
constexpr int64_t kGradientKeys = kSegmentKeysF32;
// Blocks whose parts of dQ are summed before they are added to those of others.
constexpr int64_t kGradientBlocks = kGroupSegments;

// The arrays of a KV head of a sequence.
struct GradientSums {
  float* delta = nullptr;  // [tiles · lanes]
  float* dq = nullptr;     // [tiles][dk][lanes]
  float* dk = nullptr;     // [blocks][kGradientKeys · column_floats(dk)]
  float* dv = nullptr;     // [blocks][kGradientKeys · column_floats(dv)]
  // From a sum to what additions to it have lost. 0: few additions, which lose little, so that
  // tiles add to dk and dv at once.
  int64_t dq_rest = 0, dk_rest = 0, dv_rest = 0;
  // [chunks][group] of dsinks and of dhead_scales
  double* sinks = nullptr;
  double* head_scales = nullptr;
};

// Where dbias is summed. The output itself where each pair has an element of its own; else an array
// of floats as large as dbias, and as large a one of rests behind it.
struct BiasSums {
  float* sums = nullptr;
  int64_t rest = 0;        // floats from a sum to its rest
  int64_t stride[4] = {};  // floats; 0 for axes of one element
};

struct GradientCall {
  KernelCall forward;
  const GradientProblem* problem = nullptr;
  BiasSums bias;
};

// A task: rows first_row ≤ r < first_row + rows of a KV head, and its keys.
struct GradientItem {
  Item forward;
  GradientSums sums;
  int64_t chunk = 0;  // of the rows
};

struct GradientKernels {
  int32_t lanes = 1;                              // rows of a tile
  int64_t (*column_floats)(int64_t d) = nullptr;  // of a row of dK or dV among the sums
  size_t (*scratch_bytes)(const Geometry&) = nullptr;
  // Sums of 0, and delta, of the rows and keys. These may reach behind the lengths.
  void (*begin)(const GradientCall&, const GradientItem&, char* scratch) = nullptr;
  // Adds the parts of the rows and keys.
  void (*add)(const GradientCall&, const GradientItem&, char* scratch) = nullptr;
  // dq, dk and dv of the rows and keys, 0 behind the lengths, and their part of sinks and head
  // scales.
  void (*end)(const GradientCall&, const GradientItem&, char* scratch) = nullptr;
  // Row `row` of dbias, of all its rows along the last axis: zeros, unless it accumulates, where
  // `sums` is null; else its sums and their rests.
  void (*bias_row)(const GradientProblem&, int64_t row, const float* sums, int64_t rest,
                   char* scratch) = nullptr;
};

// Null where the target has none.
const GradientKernels* FindGradientKernels(Target target) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_KERNELS_GRADIENT_KERNEL_H_
