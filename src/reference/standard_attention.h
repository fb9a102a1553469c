// Standard attention: the score matrix Q·Kᵀ stored whole, then softmax over its rows, then P·V. The
// baseline that streaming attention is measured against, in time and in memory; never used by the
// library.
#ifndef FOVEA_REFERENCE_STANDARD_ATTENTION_H_
#define FOVEA_REFERENCE_STANDARD_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "fovea/attention.h"

namespace fovea::reference {

// Bytes of the stored f32 matrix [B, Hq, Tq, Tk].
int64_t ScoreMatrixBytes(const Problem& problem);

// Whether StandardAttention can compute `problem`: f32 tensors with adjacent channels; of the score
// only scale, causal, offsets and lengths.
bool StandardAttentionSupports(const Problem& problem);

// Writes problem.out, and problem.lse if present. *scores is resized to the whole matrix and holds
// the weights afterwards; passing the same vector again saves the allocation. Plain float loops on
// the calling thread.
void StandardAttention(const Problem& problem, std::vector<float>* scores);

}  // namespace fovea::reference

#endif  // FOVEA_REFERENCE_STANDARD_ATTENTION_H_
