// The shapes that Fovea is measured on, and tensors of those shapes.
//
// Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk query/key size, dv value size.
#ifndef FOVEA_BENCH_WORKLOAD_H_
#define FOVEA_BENCH_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "fovea/attention.h"

namespace fovea::bench {

struct Workload {
  std::string name;
  int64_t B = 0, Hq = 0, Hkv = 0, Tq = 0, Tk = 0, dk = 0, dv = 0;
  bool causal = false;  // bottom-right: the last query sees every key

  // Few queries over a long cache: bound by reading K and V, which come from memory in a model of many layers.
  bool IsDecode() const { return Tq <= 16 && Tq < Tk; }
  double Pairs() const;    // visible (query, key) pairs of all query heads
  double Flops() const;    // 2·pairs·(dk + dv): a multiplication and an addition for each product of q·k and p·v
  double KvBytes() const;  // of K and V in f32
};

// P1 … P6 prefill, D1 … D3 decode, F1 a long sequence without a mask.
const std::vector<Workload>& NamedWorkloads();

// One of the names, or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal]: "1,32/8,1x4096,128", "1,8,2048,64,causal". False with a message in *error.
bool ParseWorkload(const std::string& text, Workload* workload, std::string* error);

// Tensors of a workload in huge pages, with normally distributed values. Decode workloads get as many copies of K and V as exceed the caches.
class WorkloadTensors {
 public:
  WorkloadTensors(const Workload& workload, uint64_t seed);

  bool ok() const { return buffer_ != nullptr && buffer_->data() != nullptr; }  // false: memory is short
  int64_t copies() const { return copies_; }
  // `index` picks the copy of K and V, round and round. Every copy has the same values.
  Problem At(int64_t index) const;
  // The memory that K and V of all copies fill, for measuring how fast it can be read.
  const void* kv_data() const;
  size_t kv_bytes() const;

 private:
  Workload workload_;
  int64_t copies_ = 1;
  size_t q_bytes_ = 0, k_bytes_ = 0, v_bytes_ = 0, out_bytes_ = 0;  // rounded up to whole cache lines
  std::unique_ptr<HugeBuffer> buffer_;                              // q, out, then K and V copy by copy
};

// `count` values of about the standard normal distribution (a sum of four uniform ones).
void FillNormal(float* values, size_t count, uint64_t seed);

}  // namespace fovea::bench

#endif  // FOVEA_BENCH_WORKLOAD_H_
