// Which keys the queries of a sequence see by position, and how many they are. Knows nothing of
// tensors or kernels; boolean masks and biases are not positions and live in
// kernels/modifiers-inl.h.
#ifndef FOVEA_SRC_POSITIONS_H_
#define FOVEA_SRC_POSITIONS_H_

#include <cstdint>

#include "fovea/score.h"

namespace fovea {

// One sequence of the batch as validated: 0 ≤ q_length ≤ queries; offset as resolved by the
// contract (step 5).
struct SequenceLengths {
  int64_t q_length = 0;
  // The positions of the resident keys, 0 ≤ first ≤ end: from 0 on where nothing was dropped.
  // Columns of masks and biases count from `first`.
  KeyRange keys;
  int64_t offset = 0;
  int64_t queries = 0;  // rows that exist: Tq, or its own of a packed batch
  // Where its query 0 and its key 0 are: the index on the batch axis and on the third axis of q,
  // out, lse and of k, v. (Of pages and rings: kernels/kv-inl.h.)
  int64_t q_batch = 0, q_first = 0;
  int64_t kv_batch = 0, kv_first = 0;

  int64_t kv_length() const { return keys.end - keys.first; }
};

// The positions of the keys that query i of the sequence sees, within the resident ones, first ≤
// end. Offsets and windows may be any int64: sums saturate.
KeyRange VisibleKeys(const SequenceLengths& lengths, Causal causal, const Window& window,
                     int64_t i) noexcept;

// Σ over queries begin ≤ i < end of the number of visible keys. Exact as long as it is below 2^53.
double VisiblePairs(const SequenceLengths& lengths, Causal causal, const Window& window,
                    int64_t begin, int64_t end) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_POSITIONS_H_
