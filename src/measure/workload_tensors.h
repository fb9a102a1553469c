// Tensors of a workload: q, k, v, out, and what modifies the scores.
#ifndef FOVEA_MEASURE_WORKLOAD_TENSORS_H_
#define FOVEA_MEASURE_WORKLOAD_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fovea/attention.h"
#include "measure/roofline.h"
#include "measure/workload.h"

namespace fovea::measure {

// In huge pages, with normally distributed values. Decode workloads get as many copies of K and V
// as exceed the caches. Copies of this object view the same memory.
class WorkloadTensors {
 public:
  // With the q, k, v and out of `like` where both workloads have the same (`seed` has to be the
  // same, too): calls of both then meet the same caches.
  WorkloadTensors(const Workload& workload, uint64_t seed, const WorkloadTensors* like = nullptr);

  // false: memory is short
  bool ok() const { return tensors_->data() != nullptr && modifiers_->data() != nullptr; }
  int64_t copies() const { return copies_; }
  // `index` picks the copy of K and V, round and round. Every copy has the same values.
  Problem At(int64_t index) const;
  // The memory that K and V of all copies fill, for measuring how fast it can be read.
  const void* kv_data() const;
  size_t kv_bytes() const;

 private:
  // Where each modifier lies in modifiers_, one behind the other.
  struct Modifiers {
    float *slopes, *sinks, *head_scales;
    int32_t *ranges, *table;
    float* bias;
    void* mask;
  };
  Modifiers modifiers() const;
  // Of K, V and the scales of both: one copy.
  size_t CopyBytes() const { return k_bytes_ + v_bytes_ + 2 * scale_bytes_; }
  void FillTensors(uint64_t seed);
  void FillModifiers(uint64_t seed);
  void AddModifiers(Score* score) const;

  Workload workload_;
  int64_t copies_ = 1;
  // rounded up to whole cache lines
  size_t q_bytes_ = 0, k_bytes_ = 0, v_bytes_ = 0, scale_bytes_ = 0, out_bytes_ = 0;
  size_t per_head_bytes_ = 0, ranges_bytes_ = 0, table_bytes_ = 0, bias_bytes_ = 0, mask_bytes_ = 0;
  std::shared_ptr<const HugeBuffer> tensors_;  // q, out, then K, V and scales copy by copy
  std::shared_ptr<const HugeBuffer> modifiers_;
};

// Rows of a quantised type, dense, `bytes` of them: random codes, of blocks with small scales.
void FillCodes(void* values, DType type, size_t bytes, uint64_t seed);

// `count` values of about the standard normal distribution (a sum of four uniform ones), rounded to
// f32, f16 or bf16.
void FillNormal(float* values, size_t count, uint64_t seed);
void FillNormal(void* values, DType type, size_t count, uint64_t seed);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_WORKLOAD_TENSORS_H_
