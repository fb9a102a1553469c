// Prefetching the next block of keys. A hint: it changes no result.
#ifndef FOVEA_EMBEDDED_AHEAD_H_
#define FOVEA_EMBEDDED_AHEAD_H_

#include "fovea/embedded/tile.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// What is read next, prefetched a few rows at each call of a micro-kernel: rows of K, then of V.
struct Ahead {
  struct Run {
    const char* row = nullptr;
    int64_t rows = 0, stride = 0, bytes = 0;
  };
  Run run[2];
  int64_t rows_per_step = 0;

  void Step() {
    for (int64_t n = rows_per_step; n > 0; --n) {
      Run& next = run[0].rows > 0 ? run[0] : run[1];
      if (next.rows <= 0) return;
      for (int64_t x = 0; x < next.bytes; x += 64) __builtin_prefetch(next.row + x, 0, 2);
      next.row += next.stride;
      --next.rows;
    }
  }
};

// The rows of a block of K or V; none where their elements do not lie side by side.
inline Ahead::Run RowsAhead(const Head& head, const Tensor& x, const Block& block,
                            int64_t channels) {
  const int64_t element = x.type == Type::kF16 ? 2 : 4;
  if (x.stride[3] != element) return {};
  return {Address(x, head.b, head.kv_head, block.row), block.straight, x.stride[2],
          channels * element};
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_AHEAD_H_
