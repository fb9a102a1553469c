#include "tree.h"

#include <algorithm>

#include "views.h"

namespace fovea {

void NumberNodes(const TensorView& parents, int64_t b, int64_t count, int32_t* enter,
                 int32_t* leave) noexcept {
  // How many nodes there are at and below each: children come behind their parents.
  int32_t* const size = enter;
  std::fill_n(size, count, 1);
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t parent = ReadInteger(parents, b, i);
    if (parent >= 0) size[parent] += size[i];
  }
  // Each begins where its parent has room next; at the end that is behind the parent's last child.
  int32_t next_root = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t parent = ReadInteger(parents, b, i);
    int32_t& next = parent < 0 ? next_root : leave[parent];
    leave[i] = next + 1;
    next += size[i];
  }
  for (int64_t i = 0; i < count; ++i) enter[i] = leave[i] - size[i];
}

}  // namespace fovea
