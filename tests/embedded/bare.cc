// The public functions of fovea/embedded.h as a device without an operating system would have them.
#include "fovea/embedded.h"

extern "C" {

size_t ScratchBytesOfDevice(int64_t dk, int64_t dv, int64_t rows) {
  return fovea::embedded::ScratchBytes(dk, dv, rows);
}

size_t LeastScratchBytesOfDevice(int64_t dk, int64_t dv, int64_t rows) {
  return fovea::embedded::LeastScratchBytes(dk, dv, rows);
}

int AttentionOnDevice(const fovea::embedded::Problem* problem, void* scratch, size_t bytes) {
  return static_cast<int>(fovea::embedded::Attention(*problem, scratch, bytes));
}

int64_t PushOnDevice(fovea::embedded::Ring* ring) { return ring->Push(); }
}
