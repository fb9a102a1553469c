// The C interface's functions: they translate structs, call the C++ interface and translate its
// status. What a problem may be is checked there.
#include "fovea/c.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "c_plans.h"
#include "c_structs.h"
#include "errors.h"
#include "fovea/fovea.h"

struct fovea_plan {
  fovea::Allocator allocator;
  fovea::Plan plan;
};

// Lies at the start of a workspace.
struct fovea_call {
  fovea::BoundCall call;
  int workers;
};

namespace fovea {
namespace {

struct OfAttention {
  using GivenPlan = fovea_plan;
  using GivenCall = fovea_call;
  using GivenProblem = fovea_problem;
  using Problem = fovea::Problem;
  using Plan = fovea::Plan;
  using Call = BoundCall;
  static constexpr char kBytesFunction[] = "fovea_plan_workspace_bytes";

  static Status Read(const fovea_problem* given, Problem* problem) {
    return ReadProblem(given, problem);
  }
  static Status Once(const Problem& problem, const PlanOptions& options, Executor& executor) {
    return Attention(problem, options, executor);
  }
};
using Plans = CPlans<OfAttention>;

Status MergeParts(const fovea_partial_state* given, int64_t count, const fovea_tensor* out,
                  const fovea_tensor* lse) {
  if (out == nullptr) return Invalid("out = null");
  const MutableTensorView lse_view = lse == nullptr ? MutableTensorView() : OutputOf(*lse);
  // an error
  if (given == nullptr || count < 1) return Merge(nullptr, count, OutputOf(*out), lse_view);
  constexpr int64_t kUsualParts = 32;
  PartialState usual[kUsualParts];
  std::unique_ptr<PartialState[]> many;
  if (count > kUsualParts) {
    if (static_cast<uint64_t>(count) <= PTRDIFF_MAX / sizeof(PartialState))
      many.reset(new (std::nothrow) PartialState[static_cast<size_t>(count)]);
    if (many == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the list of parts");
  }
  PartialState* const parts = many == nullptr ? usual : many.get();
  for (int64_t n = 0; n < count; ++n) parts[n] = {InputOf(given[n].out), InputOf(given[n].lse)};
  return Merge(parts, count, OutputOf(*out), lse_view);
}

size_t CopyTargets(TargetList list, fovea_target* targets, size_t capacity) {
  if (targets == nullptr) capacity = 0;
  for (size_t n = 0; n < std::min(list.count, capacity); ++n)
    targets[n] = static_cast<fovea_target>(list.data[n]);
  return list.count;
}

// Calls get(&target); *result is written only on success.
template <class Get>
Status TargetOf(fovea_target* result, Get get) {
  if (result == nullptr) return Invalid("target = null, expected where to put it");
  Target target = Target::kAuto;
  FOVEA_RETURN_IF_ERROR(get(&target));
  *result = static_cast<fovea_target>(target);
  return Status();
}

Status SlopesOf(int64_t Hq, float max_bias, float* slopes) {
  if (Hq < 0) return Invalid("Hq = %" PRId64 ", expected 0 or greater", Hq);
  if (slopes == nullptr && Hq > 0)
    return Invalid("slopes = null, expected room for %" PRId64 " floats", Hq);
  AlibiSlopes(Hq, slopes, max_bias);
  return Status();
}

}  // namespace
}  // namespace fovea

extern "C" {

uint32_t fovea_version(void) noexcept {
  return FOVEA_VERSION_MAJOR << 16 | FOVEA_VERSION_MINOR << 8 | FOVEA_VERSION_PATCH;
}

const char* fovea_dtype_name(fovea_dtype dtype) noexcept {
  return fovea::Name(static_cast<fovea::DType>(dtype));
}
const char* fovea_target_name(fovea_target target) noexcept {
  return fovea::Name(static_cast<fovea::Target>(target));
}
const char* fovea_engine_name(fovea_engine engine) noexcept {
  return fovea::Name(static_cast<fovea::Engine>(engine));
}
const char* fovea_product_name(fovea_product product) noexcept {
  return fovea::Name(static_cast<fovea::Product>(product));
}

int64_t fovea_dtype_bytes(fovea_dtype dtype) noexcept {
  return fovea::SizeOf(static_cast<fovea::DType>(dtype));
}

int64_t fovea_row_bytes(fovea_dtype dtype, int64_t elements) noexcept {
  return fovea::BytesOf(static_cast<fovea::DType>(dtype), elements);
}

fovea_status fovea_parse_target(const char* name, fovea_target* target,
                                fovea_error* error) noexcept {
  return fovea::Report(
      fovea::TargetOf(target, [name](fovea::Target* t) { return fovea::ParseTarget(name, t); }),
      error);
}

size_t fovea_compiled_targets(fovea_target* targets, size_t capacity) noexcept {
  return fovea::CopyTargets(fovea::CompiledTargets(), targets, capacity);
}

size_t fovea_usable_targets(fovea_target* targets, size_t capacity) noexcept {
  return fovea::CopyTargets(fovea::UsableTargets(), targets, capacity);
}

fovea_status fovea_active_target(fovea_target* target, fovea_error* error) noexcept {
  return fovea::Report(fovea::TargetOf(target, fovea::ActiveTarget), error);
}

fovea_status fovea_alibi_slopes(int64_t Hq, float max_bias, float* slopes,
                                fovea_error* error) noexcept {
  return fovea::Report(fovea::SlopesOf(Hq, max_bias, slopes), error);
}

fovea_status fovea_plan_create(const fovea_problem* problem, const fovea_plan_options* options,
                               fovea_plan** plan, fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Create(problem, options, plan), error);
}

fovea_status fovea_plan_update(fovea_plan* plan, const fovea_problem* problem,
                               fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Update(plan, problem), error);
}

void fovea_plan_destroy(fovea_plan* plan) noexcept { fovea::Plans::Destroy(plan); }

size_t fovea_plan_workspace_bytes(const fovea_plan* plan, int32_t workers) noexcept {
  return fovea::Plans::WorkspaceBytes(plan, workers);
}

fovea_target fovea_plan_target(const fovea_plan* plan) noexcept {
  return plan == nullptr ? FOVEA_TARGET_AUTO : static_cast<fovea_target>(plan->plan.target());
}
fovea_engine fovea_plan_engine(const fovea_plan* plan) noexcept {
  return plan == nullptr ? FOVEA_ENGINE_AUTO : static_cast<fovea_engine>(plan->plan.engine());
}
fovea_product fovea_plan_product(const fovea_plan* plan) noexcept {
  return plan == nullptr ? FOVEA_PRODUCT_AUTO : static_cast<fovea_product>(plan->plan.product());
}

fovea_status fovea_plan_cost(const fovea_plan* plan, fovea_cost* cost,
                             fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::Cost(plan, cost), error);
}

size_t fovea_plan_to_string(const fovea_plan* plan, char* text, size_t bytes) noexcept {
  return fovea::Plans::Text(plan, text, bytes);
}

fovea_status fovea_run(const fovea_plan* plan, const fovea_problem* problem, void* workspace,
                       size_t workspace_bytes, const fovea_executor* executor,
                       fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::RunPlan(plan, problem, workspace, workspace_bytes, executor),
                       error);
}

fovea_status fovea_attention(const fovea_problem* problem, const fovea_plan_options* options,
                             const fovea_executor* executor, fovea_error* error) noexcept {
  return fovea::Report(fovea::Plans::RunOnce(problem, options, executor), error);
}

fovea_status fovea_bind(const fovea_plan* plan, const fovea_problem* problem, void* workspace,
                        size_t workspace_bytes, int32_t workers, fovea_call** call,
                        fovea_error* error) noexcept {
  return fovea::Report(
      fovea::Plans::BindCall(plan, problem, workspace, workspace_bytes, workers, call), error);
}

int32_t fovea_call_phases(const fovea_call* call) noexcept {
  return call == nullptr ? 0 : call->call.Phases();
}

int64_t fovea_call_tasks(const fovea_call* call, int32_t phase) noexcept {
  return call == nullptr ? 0 : call->call.Tasks(phase);
}

fovea_status fovea_call_run_task(const fovea_call* call, int32_t phase, int64_t task,
                                 int32_t worker) noexcept {
  return fovea::Plans::RunTask(call, phase, task, worker);
}

fovea_status fovea_merge(const fovea_partial_state* parts, int64_t count, const fovea_tensor* out,
                         const fovea_tensor* lse, fovea_error* error) noexcept {
  return fovea::Report(fovea::MergeParts(parts, count, out, lse), error);
}

fovea_tensor fovea_dense(const void* data, fovea_dtype dtype, int32_t rank,
                         const int64_t* shape) noexcept {
  fovea_tensor tensor = {};
  if (shape == nullptr || rank < 1 || rank > fovea::kMaxRank) return tensor;
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = rank;
  const fovea::DType type = static_cast<fovea::DType>(dtype);
  const int64_t elements = fovea::UnitElements(type);
  // what overflows is refused when the tensor is used
  uint64_t step = static_cast<uint64_t>(fovea::UnitBytes(type));
  for (int a = rank - 1; a >= 0; --a) {
    tensor.shape[a] = shape[a];
    tensor.stride[a] = static_cast<int64_t>(step);
    const int64_t stored =
        a == rank - 1 ? shape[a] / elements + (shape[a] % elements != 0 ? 1 : 0) : shape[a];
    step *= static_cast<uint64_t>(stored);
  }
  return tensor;
}

}  // extern "C"
