// Trees of queries as intervals: nodes are numbered depth first, so that those below a node follow
// right behind it, and a node is query i or above it where enter[node] ≤ enter[i] < leave[node].
// Two comparisons for a pair, and two numbers for a query. Knows no tile.
#ifndef FOVEA_SRC_TREE_H_
#define FOVEA_SRC_TREE_H_

#include <cstdint>

#include "fovea/tensor.h"

namespace fovea {

constexpr int64_t kMostNodes = INT32_MAX;  // of a tree

// The numbers of all sequences' trees, [B][enter, leave][nodes].
struct QueryTrees {
  const int32_t* numbers = nullptr;  // null: there are none
  int64_t nodes = 0;                 // that there is room for in each

  const int32_t* Enter(int64_t b) const { return numbers + 2 * b * nodes; }
  const int32_t* Leave(int64_t b) const { return Enter(b) + nodes; }

  // Whether query i of sequence b sees the key of a node, 0 ≤ node.
  bool Sees(int64_t b, int64_t i, int64_t node) const {
    return node <= i && Enter(b)[node] <= Enter(b)[i] && Enter(b)[i] < Leave(b)[node];
  }
};

// Of the first `count` queries of sequence b, whose parents are checked: each is −1 or a query
// before its child.
void NumberNodes(const TensorView& parents, int64_t b, int64_t count, int32_t* enter,
                 int32_t* leave) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_TREE_H_
