// What one or more cores of this machine can do at best, measured now: multiply-adds and
// exponentials per second, bytes read per second.
//
// Machines are shared and their clocks drift, so a benchmark asks again right before and right
// after whatever it compares. Knows nothing of attention.
#ifndef FOVEA_MEASURE_ROOFLINE_H_
#define FOVEA_MEASURE_ROOFLINE_H_

#include <cstddef>

#include "fovea/attention.h"
#include "fovea/target.h"

namespace fovea::measure {

// The outcome of a few short bursts. `noisy`: too few bursts had their cores to themselves, so the
// CPU time of all was taken.
struct Rate {
  double median = 0;  // 0: not measurable here
  double best = 0;
  bool noisy = false;
};

// Everything is measured on `threads` threads at the same time and reported as their sum.

// GFLOP/s of that instruction set's product, out of registers. kF32: multiply-adds (two FLOP a
// lane), or, where there is no fused one (SSE), independent multiplications and additions; kEmu128
// runs what the compiler's baseline has: SSE2 or NEON. kBF16: dot products of two pairs (four FLOP
// a lane); 0 where the instruction set emulates them.
Rate ProductGflops(Target target, Product product, int threads = 1);

// 1e9 exp(x) a second in f32, out of registers: reduction by log2(e), polynomial of degree 6,
// scaling by 2^n.
Rate ExpGeps(Target target, int threads = 1);

// GB/s of reading [data, data + bytes) once in ascending order with the widest loads of this CPU,
// each thread a contiguous part. `bytes` well beyond the last-level cache gives memory bandwidth.
Rate ReadGbps(const void* data, size_t bytes, int threads = 1);

// Bytes that do not fit into the caches: twice the last level, at least 256 MiB, at most 1 GiB.
size_t StreamBytes();

// Anonymous memory in huge pages where the system grants them, touched (all bytes 1), aligned to 2
// MiB. Null data when memory is short.
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_ROOFLINE_H_
