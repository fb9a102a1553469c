// Small problems of sizes and options that kernels get wrong: for the self-test of the program.
#ifndef FOVEA_CLI_AWKWARD_PROBLEM_H_
#define FOVEA_CLI_AWKWARD_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/attention.h"

namespace fovea::cli {

// Problem number `index` of the sequence that `seed` starts: sizes around those of vectors, tiles
// and blocks, grouped heads, dv ≠ dk, f32, bf16 and mixed types, both layouts, long keys for one
// query, pages, rings and dropped keys, and every option of a score alone and together. The same on
// every machine.
class AwkwardProblem {
 public:
  AwkwardProblem(uint64_t seed, int index);
  AwkwardProblem(const AwkwardProblem&) = delete;
  AwkwardProblem& operator=(const AwkwardProblem&) = delete;

  const Problem& problem() const { return problem_; }
  const std::string& description() const { return description_; }
  void ClearOutputs();  // to values that no result has

 private:
  void DrawSizes(int index);
  void DrawTypes();
  void MakeTensors(bool bthd);
  void DrawScore(int index);
  void DrawCache(int index);
  void MoveToPages();

  uint64_t Draw(uint64_t below);  // 0 … below − 1
  void FillFloats(std::vector<float>* values, int64_t count);

  uint64_t state_;
  int64_t B_ = 1, Hq_ = 1, Hkv_ = 1, Tq_ = 1, Tk_ = 1, dk_ = 1, dv_ = 1;
  DType q_type_ = DType::kF32, k_type_ = DType::kF32, v_type_ = DType::kF32,
        out_type_ = DType::kF32;
  std::vector<char> q_, k_, v_, out_;
  std::vector<float> k_scale_, k_zero_, v_scale_, v_zero_;
  std::vector<float> bias_, slopes_, sinks_, head_scales_, bias_scales_, lse_, weights_;
  std::vector<uint8_t> mask_;
  std::vector<int32_t> q_lengths_, kv_lengths_, key_ranges_, page_table_;
  std::vector<int64_t> key_offsets_;
  Problem problem_;
  std::string description_;
};

}  // namespace fovea::cli

#endif  // FOVEA_CLI_AWKWARD_PROBLEM_H_
