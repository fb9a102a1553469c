// The tensors of a manifest: stored, filled or generated, patched, and seen through strides.
#ifndef FOVEA_TESTS_SUPPORT_MANIFEST_TENSORS_H_
#define FOVEA_TESTS_SUPPORT_MANIFEST_TENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "support/manifest.h"
#include "support/safetensors.h"

namespace fovea::test {

using Stored = std::map<std::string, StoredTensor>;

std::shared_ptr<void> Allocate(int64_t bytes);

// Strides in elements.
TensorView MakeView(void* data, DType dtype, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& element_strides);

// Builds the tensors of one case. Tensors of the same stored, unpatched name look at the same
// buffer, as in a packed QKV projection.
class TensorBuilder {
 public:
  explicit TensorBuilder(const Stored& stored) : stored_(stored) {}

  // The axes as in the manifest. Without memory where the system cannot reserve the addresses.
  Tensor Build(const nlohmann::json& spec);

  // The slices of a dense [N, …] tensor, which may have one axis more than views have.
  std::vector<TensorView> BuildSlices(const nlohmann::json& spec, Tensor* whole);

 private:
  std::shared_ptr<void> Buffer(const nlohmann::json& spec, DType dtype,
                               const std::vector<int64_t>& shape);

  const Stored& stored_;
  std::map<std::string, std::shared_ptr<void>> shared_;
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_MANIFEST_TENSORS_H_
