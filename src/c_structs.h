// The C interface's structs as the C++ interface's: sizes of structs, pointers and flags are
// checked here; what a problem may be is not.
#ifndef FOVEA_SRC_C_STRUCTS_H_
#define FOVEA_SRC_C_STRUCTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "fovea/c.h"
#include "fovea/c_gradient.h"
#include "fovea/fovea.h"

namespace fovea {

TensorView InputOf(const fovea_tensor& tensor) noexcept;
MutableTensorView OutputOf(const fovea_tensor& tensor) noexcept;

// Fill what was made with its defaults, from a struct of any version.
Status ReadProblem(const fovea_problem* given, Problem* problem) noexcept;
Status ReadOptions(const fovea_plan_options* given, PlanOptions* options) noexcept;
Status ReadGradientProblem(const fovea_gradient_problem* given, GradientProblem* problem) noexcept;
// The status's code; its message to *error, if there is one.
fovea_status Report(const Status& status, fovea_error* error) noexcept;
// As fovea_plan_to_string says of its text.
size_t WriteText(const std::string& whole, char* text, size_t bytes) noexcept;
// As much of it as the caller's struct holds.
Status WriteCost(const Cost& cost, fovea_cost* result) noexcept;

// The host's loop as an executor.
class HostExecutor final : public Executor {
 public:
  // Null: there is none.
  Status Init(const fovea_executor* given) noexcept;
  // This one; without a host's loop, that of the calling thread.
  Executor& Get() noexcept { return host_.for_each == nullptr ? SerialExecutor() : *this; }
  int Workers() const noexcept override { return host_.workers; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override;

 private:
  fovea_executor host_ = {};
};

}  // namespace fovea

#endif  // FOVEA_SRC_C_STRUCTS_H_
