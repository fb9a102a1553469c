// How a run divides its memory: the states of splits first, then the maps of mask and
// bias, then the numbers of trees, then a slice of scratch for each worker. All of them begin at
// multiples of 64 bytes.
#ifndef FOVEA_SRC_PLAN_WORKSPACE_H_
#define FOVEA_SRC_PLAN_WORKSPACE_H_

#include <cstddef>
#include <cstdint>

#include "mask_map.h"

namespace fovea {

struct WorkspaceLayout {
  static constexpr size_t kAlignment = 64;

  // Each a multiple of kAlignment. In 64 bits on hosts of 32 bits too, which may have less.
  uint64_t partial_bytes = 0;
  uint64_t map_bytes = 0;
  uint64_t tree_bytes = 0;
  uint64_t worker_bytes = kAlignment;

  // Of a workspace at any address; SIZE_MAX where there can be none.
  size_t Bytes(int workers) const {
    uint64_t bytes = kAlignment - 1 + partial_bytes + map_bytes + tree_bytes, slices;
    const bool too_many =
        __builtin_mul_overflow(static_cast<uint64_t>(workers), worker_bytes, &slices) ||
        __builtin_add_overflow(bytes, slices, &bytes) || bytes > SIZE_MAX;
    return too_many ? SIZE_MAX : static_cast<size_t>(bytes);
  }

  // The parts, from the caller's memory moved up to a multiple of kAlignment.
  static char* Aligned(void* memory) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    return static_cast<char*>(memory) + (0 - address) % kAlignment;
  }
  float* Partials(char* aligned) const { return reinterpret_cast<float*>(aligned); }
  MaskMapEntry* Map(char* aligned, uint64_t begin) const {
    return reinterpret_cast<MaskMapEntry*>(aligned + partial_bytes + begin);
  }
  int32_t* Trees(char* aligned) const {
    return reinterpret_cast<int32_t*>(aligned + partial_bytes + map_bytes);
  }
  char* Scratch(char* aligned, int worker) const {
    return aligned + partial_bytes + map_bytes + tree_bytes +
           static_cast<size_t>(worker) * worker_bytes;
  }
};

}  // namespace fovea

#endif  // FOVEA_SRC_PLAN_WORKSPACE_H_
