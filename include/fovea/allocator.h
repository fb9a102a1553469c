// Where Fovea's memory comes from: one seam.
#ifndef FOVEA_ALLOCATOR_H_
#define FOVEA_ALLOCATOR_H_

#include <cstddef>

namespace fovea {

// Both functions or none (malloc and free). Plans allocate in Create and release when they are
// destroyed or replaced; the context must live as long, and serve every thread that does so.
// Neither function throws.
struct Allocator {
  // `bytes` > 0 bytes, aligned as malloc aligns; null when there is no memory.
  void* (*allocate)(void* context, size_t bytes) = nullptr;
  // `memory` is what allocate gave for as many bytes; never null.
  void (*release)(void* context, void* memory, size_t bytes) = nullptr;
  void* context = nullptr;  // the first argument of both; means nothing to Fovea
};

}  // namespace fovea

#endif  // FOVEA_ALLOCATOR_H_
