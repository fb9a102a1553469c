// The C interface: translates structs, calls the C++ interface and translates its status. What a
// problem may be is checked there, not here; here are pointers, and sizes of structs.
#include "fovea/c.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "fovea/fovea.h"
#include "memory.h"
#include "validate.h"

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

static_assert(FOVEA_OK == static_cast<int>(StatusCode::kOk) &&
              FOVEA_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument) &&
              FOVEA_UNSUPPORTED == static_cast<int>(StatusCode::kUnsupported) &&
              FOVEA_OUT_OF_MEMORY == static_cast<int>(StatusCode::kOutOfMemory));
static_assert(
    FOVEA_NONE == static_cast<int>(DType::kNone) && FOVEA_F32 == static_cast<int>(DType::kF32) &&
    FOVEA_F16 == static_cast<int>(DType::kF16) && FOVEA_BF16 == static_cast<int>(DType::kBF16) &&
    FOVEA_BOOL == static_cast<int>(DType::kBool) && FOVEA_I32 == static_cast<int>(DType::kI32) &&
    FOVEA_I64 == static_cast<int>(DType::kI64) && FOVEA_BIT == static_cast<int>(DType::kBit));
static_assert(FOVEA_CAUSAL_NONE == static_cast<int>(Causal::kNone) &&
              FOVEA_CAUSAL_TOP_LEFT == static_cast<int>(Causal::kTopLeft) &&
              FOVEA_CAUSAL_BOTTOM_RIGHT == static_cast<int>(Causal::kBottomRight));
static_assert(FOVEA_STAGE_SCALED == static_cast<int>(ScoreStage::kScaled) &&
              FOVEA_STAGE_SOFTCAPPED == static_cast<int>(ScoreStage::kSoftcapped) &&
              FOVEA_STAGE_MASKED == static_cast<int>(ScoreStage::kMasked) &&
              FOVEA_STAGE_WEIGHTS == static_cast<int>(ScoreStage::kWeights));
static_assert(FOVEA_ENGINE_AUTO == static_cast<int>(Engine::kAuto) &&
              FOVEA_ENGINE_TILE == static_cast<int>(Engine::kTile) &&
              FOVEA_ENGINE_ROW == static_cast<int>(Engine::kRow));
static_assert(FOVEA_PRODUCT_AUTO == static_cast<int>(Product::kAuto) &&
              FOVEA_PRODUCT_F32 == static_cast<int>(Product::kF32) &&
              FOVEA_PRODUCT_BF16 == static_cast<int>(Product::kBF16));
static_assert(FOVEA_TARGET_AUTO == static_cast<int>(Target::kAuto) &&
              FOVEA_TARGET_EMU128 == static_cast<int>(Target::kEmu128) &&
              FOVEA_TARGET_SSE2 == static_cast<int>(Target::kSse2) &&
              FOVEA_TARGET_SSE4 == static_cast<int>(Target::kSse4) &&
              FOVEA_TARGET_AVX2 == static_cast<int>(Target::kAvx2) &&
              FOVEA_TARGET_AVX512 == static_cast<int>(Target::kAvx512) &&
              FOVEA_TARGET_NEON == static_cast<int>(Target::kNeon) &&
              FOVEA_TARGET_AVX512_BF16 == static_cast<int>(Target::kAvx512Bf16) &&
              FOVEA_TARGET_NEON_BF16 == static_cast<int>(Target::kNeonBf16) &&
              FOVEA_TARGET_AVX512_AMX == static_cast<int>(Target::kAvx512Amx) &&
              FOVEA_TARGET_PPC8 == static_cast<int>(Target::kPpc8) &&
              FOVEA_TARGET_PPC9 == static_cast<int>(Target::kPpc9) &&
              FOVEA_TARGET_WASM == static_cast<int>(Target::kWasm));

static_assert(sizeof(fovea_error) >= Status::kMaxMessage);
static_assert(kMaxRank == 4);

// A struct that ended in padding would hand on whatever lies there, as a field of a later version
// that fits into it.
#define FOVEA_ENDS_WITH(STRUCT, FIELD) \
  static_assert(offsetof(STRUCT, FIELD) + sizeof(STRUCT::FIELD) == sizeof(STRUCT))
FOVEA_ENDS_WITH(fovea_problem, reserved);
FOVEA_ENDS_WITH(fovea_allocator, release);
FOVEA_ENDS_WITH(fovea_plan_options, block_keys);
FOVEA_ENDS_WITH(fovea_cost, tasks);
FOVEA_ENDS_WITH(fovea_executor, reserved);
#undef FOVEA_ENDS_WITH

fovea_status Report(const Status& status, fovea_error* error) {
  if (error != nullptr)
    std::memcpy(error->message, status.message(), std::strlen(status.message()) + 1);
  return static_cast<fovea_status>(status.code());
}

// More than any version will have: a size beyond it was never set.
constexpr size_t kMostStructBytes = 16384;

template <class Struct>
Status CheckSize(const char* name, const Struct* given) {
  if (given == nullptr) return Invalid("%s = null", name);
  if (given->size <= sizeof(size_t) || given->size > kMostStructBytes ||
      given->size % alignof(Struct) != 0) {
    return Invalid("%s.size = %zu, expected %zu (sizeof)", name, given->size, sizeof(Struct));
  }
  return Status();
}

// A caller's struct as this version knows it: what a shorter one lacks stays 0, as *known is, and
// so must be what a longer one adds.
template <class Struct>
Status Read(const char* name, const Struct* given, Struct* known) {
  FOVEA_RETURN_IF_ERROR(CheckSize(name, given));
  const char* const bytes = reinterpret_cast<const char*>(given);
  for (size_t n = sizeof(Struct); n < given->size; ++n) {
    if (bytes[n] != 0) {
      return Invalid(
          "%s.size = %zu, expected at most %zu: byte %zu, which this version does not know, is not "
          "0",
          name, given->size, sizeof(Struct), n);
    }
  }
  std::memcpy(static_cast<void*>(known), given, std::min(given->size, sizeof(Struct)));
  return Status();
}

Status CheckFlag(const char* name, int32_t flag) {
  if (flag != 0 && flag != 1) return Invalid("%s = %d, expected 0 or 1", name, flag);
  return Status();
}

Status CheckReserved(const char* name, int32_t reserved) {
  if (reserved != 0) return Invalid("%s.reserved = %d, expected 0", name, reserved);
  return Status();
}

template <class View>
View ViewOf(const fovea_tensor& tensor) {
  View view;
  view.data = tensor.data;
  view.dtype = static_cast<DType>(tensor.dtype);
  view.rank = tensor.rank;
  for (int a = 0; a < kMaxRank; ++a) {
    view.shape[a] = tensor.shape[a];
    view.stride[a] = tensor.stride[a];
  }
  return view;
}
TensorView Input(const fovea_tensor& tensor) { return ViewOf<TensorView>(tensor); }
MutableTensorView Output(const fovea_tensor& tensor) { return ViewOf<MutableTensorView>(tensor); }

Status ReadProblem(const fovea_problem* given, Problem* problem) {
  fovea_problem p = {};
  FOVEA_RETURN_IF_ERROR(Read("problem", given, &p));
  FOVEA_RETURN_IF_ERROR(CheckReserved("problem", p.reserved));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_scale", p.has_scale));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_window", p.has_window));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_query_offset", p.has_query_offset));
  problem->q = Input(p.q);
  problem->k = Input(p.k);
  problem->v = Input(p.v);
  problem->cu_seqlens_q = Input(p.cu_seqlens_q);
  problem->cu_seqlens_k = Input(p.cu_seqlens_k);
  problem->out = Output(p.out);
  problem->lse = Output(p.lse);
  problem->weights = Output(p.weights);
  problem->scores = Output(p.scores);
  problem->score_stage = static_cast<ScoreStage>(p.score_stage);

  Score& score = problem->score;
  if (p.has_scale != 0) score.scale = p.scale;
  score.softcap = p.softcap;
  score.alibi_slopes = Input(p.alibi_slopes);
  score.bias = Input(p.bias);
  score.mask = Input(p.mask);
  score.block_map = {Input(p.block_map), p.block_map_queries, p.block_map_keys};
  score.parents = Input(p.parents);
  score.causal = static_cast<Causal>(p.causal);
  if (p.has_window != 0) score.window = {p.window_left, p.window_right};
  if (p.has_query_offset != 0) score.query_offset = p.query_offset;
  score.query_offsets = Input(p.query_offsets);
  score.q_lengths = Input(p.q_lengths);
  score.kv_lengths = Input(p.kv_lengths);
  score.sinks = Input(p.sinks);
  return Status();
}

Status ReadOptions(const fovea_plan_options* given, PlanOptions* options) {
  if (given == nullptr) return Status();
  fovea_plan_options o = {};
  FOVEA_RETURN_IF_ERROR(Read("options", given, &o));
  FOVEA_RETURN_IF_ERROR(CheckFlag("options.fixed_mask", o.fixed_mask));
  options->target = static_cast<Target>(o.target);
  options->engine = static_cast<Engine>(o.engine);
  options->product = static_cast<Product>(o.product);
  options->max_queries = o.max_queries;
  options->max_keys = o.max_keys;
  options->fixed_mask = o.fixed_mask != 0;
  options->tile_rows = o.tile_rows;
  options->block_keys = o.block_keys;
  options->split_keys = o.split_keys;
  if (o.allocator == nullptr) return Status();
  fovea_allocator a = {};
  FOVEA_RETURN_IF_ERROR(Read("options.allocator", o.allocator, &a));
  options->allocator = {a.allocate, a.release, a.context};
  return Status();
}

// The host's loop as an executor; without one, the calling thread. What the host calls with numbers
// out of range is not run, and told by ok().
class HostExecutor final : public Executor {
 public:
  Status Init(const fovea_executor* given) {
    if (given == nullptr) return Status();
    FOVEA_RETURN_IF_ERROR(Read("executor", given, &host_));
    FOVEA_RETURN_IF_ERROR(CheckReserved("executor", host_.reserved));
    if (host_.for_each == nullptr) return Invalid("executor.for_each = null");
    if (host_.workers < 1)
      return Invalid("executor.workers = %d, expected 1 or greater", host_.workers);
    return Status();
  }
  int Workers() const noexcept override { return host_.for_each == nullptr ? 1 : host_.workers; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override {
    if (host_.for_each == nullptr) return SerialExecutor().ForEach(tasks, task, context);
    Loop loop = {this, tasks, task, context};
    host_.for_each(host_.context, tasks, RunChecked, &loop);
  }
  Status Result(const Status& status) const {
    if (!status.ok() || !misled_.load(std::memory_order_relaxed)) return status;
    return Invalid(
        "executor.for_each called a task or a worker that does not exist: outputs hold anything");
  }

 private:
  struct Loop {
    HostExecutor* executor;
    int64_t tasks;
    Task task;
    void* context;
  };
  static void RunChecked(void* context, int64_t task, int32_t worker) {
    const Loop& loop = *static_cast<Loop*>(context);
    if (task < 0 || task >= loop.tasks || worker < 0 || worker >= loop.executor->host_.workers) {
      loop.executor->misled_.store(true, std::memory_order_relaxed);
      return;
    }
    loop.task(loop.context, task, worker);
  }

  fovea_executor host_ = {};
  std::atomic<bool> misled_{false};
};

void Destroy(fovea_plan* plan) {
  const Allocator allocator = plan->allocator;
  plan->~fovea_plan();
  Release(allocator, plan, sizeof(fovea_plan));
}

Status CreatePlan(const fovea_problem* given, const fovea_plan_options* given_options,
                  fovea_plan** result) {
  if (result == nullptr) return Invalid("plan = null, expected where to put it");
  Problem problem;
  PlanOptions options;
  FOVEA_RETURN_IF_ERROR(ReadProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
  Plan plan;
  FOVEA_RETURN_IF_ERROR(Plan::Create(problem, options, &plan));
  void* const memory = Allocate(options.allocator, sizeof(fovea_plan));
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  *result = new (memory) fovea_plan{options.allocator, std::move(plan)};
  return Status();
}

Status UpdatePlan(fovea_plan* plan, const fovea_problem* given) {
  if (plan == nullptr) return Invalid("plan = null");
  Problem problem;
  FOVEA_RETURN_IF_ERROR(ReadProblem(given, &problem));
  return plan->plan.Update(problem);
}

Status CheckWorkspace(const fovea_plan& plan, const void* workspace, size_t bytes, int workers) {
  const size_t needed = fovea_plan_workspace_bytes(&plan, workers);
  if (workspace == nullptr)
    return Invalid("workspace = null, expected %zu bytes (fovea_plan_workspace_bytes)", needed);
  if (bytes < needed)
    return TooSmall("workspace_bytes = %zu, expected at least %zu (fovea_plan_workspace_bytes)",
                    bytes, needed);
  return Status();
}

Status RunPlan(const fovea_plan* plan, const fovea_problem* given, void* workspace, size_t bytes,
               const fovea_executor* given_executor) {
  if (plan == nullptr) return Invalid("plan = null");
  Problem problem;
  HostExecutor executor;
  FOVEA_RETURN_IF_ERROR(ReadProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
  FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, executor.Workers()));
  return executor.Result(Run(plan->plan, problem, {workspace, bytes}, executor));
}

Status RunOnce(const fovea_problem* given, const fovea_plan_options* given_options,
               const fovea_executor* given_executor) {
  Problem problem;
  PlanOptions options;
  HostExecutor executor;
  FOVEA_RETURN_IF_ERROR(ReadProblem(given, &problem));
  FOVEA_RETURN_IF_ERROR(ReadOptions(given_options, &options));
  FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
  return executor.Result(Attention(problem, options, executor));
}

Status BindCall(const fovea_plan* plan, const fovea_problem* given, void* workspace, size_t bytes,
                int workers, fovea_call** result) {
  if (plan == nullptr) return Invalid("plan = null");
  if (result == nullptr) return Invalid("call = null, expected where to put it");
  Problem problem;
  FOVEA_RETURN_IF_ERROR(ReadProblem(given, &problem));
  if (workers < 1) return Invalid("workers = %d, expected 1 or greater", workers);
  FOVEA_RETURN_IF_ERROR(CheckWorkspace(*plan, workspace, bytes, workers));
  void* place = workspace;
  size_t left = bytes;
  // there is room: CheckWorkspace
  std::align(alignof(fovea_call), sizeof(fovea_call), place, left);
  fovea_call bound = {BoundCall(), workers};
  const Workspace behind = {static_cast<char*>(place) + sizeof(fovea_call),
                            left - sizeof(fovea_call)};
  FOVEA_RETURN_IF_ERROR(Bind(plan->plan, problem, behind, workers, &bound.call));
  *result = new (place) fovea_call(bound);
  return Status();
}

Status MergeParts(const fovea_partial_state* given, int64_t count, const fovea_tensor* out,
                  const fovea_tensor* lse) {
  if (out == nullptr) return Invalid("out = null");
  const MutableTensorView lse_view = lse == nullptr ? MutableTensorView() : Output(*lse);
  // an error
  if (given == nullptr || count < 1) return Merge(nullptr, count, Output(*out), lse_view);
  constexpr int64_t kUsualParts = 32;
  PartialState usual[kUsualParts];
  std::unique_ptr<PartialState[]> many;
  if (count > kUsualParts) {
    if (static_cast<uint64_t>(count) <= PTRDIFF_MAX / sizeof(PartialState))
      many.reset(new (std::nothrow) PartialState[static_cast<size_t>(count)]);
    if (many == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the list of parts");
  }
  PartialState* const parts = many == nullptr ? usual : many.get();
  for (int64_t n = 0; n < count; ++n) parts[n] = {Input(given[n].out), Input(given[n].lse)};
  return Merge(parts, count, Output(*out), lse_view);
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

Status CostOf(const fovea_plan* plan, fovea_cost* result) {
  if (plan == nullptr) return Invalid("plan = null");
  FOVEA_RETURN_IF_ERROR(CheckSize("cost", result));
  const Cost cost = plan->plan.cost();
  const fovea_cost known = {result->size, cost.flops, cost.kv_bytes, cost.pairs, cost.tasks};
  std::memcpy(static_cast<void*>(result), &known, std::min(result->size, sizeof(known)));
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
  return fovea::Report(fovea::CreatePlan(problem, options, plan), error);
}

fovea_status fovea_plan_update(fovea_plan* plan, const fovea_problem* problem,
                               fovea_error* error) noexcept {
  return fovea::Report(fovea::UpdatePlan(plan, problem), error);
}

void fovea_plan_destroy(fovea_plan* plan) noexcept {
  if (plan != nullptr) fovea::Destroy(plan);
}

size_t fovea_plan_workspace_bytes(const fovea_plan* plan, int32_t workers) noexcept {
  if (plan == nullptr || workers < 1) return 0;
  constexpr size_t kCallBytes = sizeof(fovea_call) + alignof(fovea_call) - 1;
  const size_t bytes = plan->plan.WorkspaceBytes(workers);
  return bytes > SIZE_MAX - kCallBytes ? SIZE_MAX : bytes + kCallBytes;
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
  return fovea::Report(fovea::CostOf(plan, cost), error);
}

size_t fovea_plan_to_string(const fovea_plan* plan, char* text, size_t bytes) noexcept try {
  if (plan == nullptr) return 0;
  const std::string whole = plan->plan.ToString();
  if (text != nullptr && bytes > 0) {
    const size_t copied = std::min(whole.size(), bytes - 1);
    std::memcpy(text, whole.data(), copied);
    text[copied] = '\0';
  }
  return whole.size() + 1;
} catch (const std::bad_alloc&) {
  return 0;
}

fovea_status fovea_run(const fovea_plan* plan, const fovea_problem* problem, void* workspace,
                       size_t workspace_bytes, const fovea_executor* executor,
                       fovea_error* error) noexcept {
  return fovea::Report(fovea::RunPlan(plan, problem, workspace, workspace_bytes, executor), error);
}

fovea_status fovea_attention(const fovea_problem* problem, const fovea_plan_options* options,
                             const fovea_executor* executor, fovea_error* error) noexcept {
  return fovea::Report(fovea::RunOnce(problem, options, executor), error);
}

fovea_status fovea_bind(const fovea_plan* plan, const fovea_problem* problem, void* workspace,
                        size_t workspace_bytes, int32_t workers, fovea_call** call,
                        fovea_error* error) noexcept {
  return fovea::Report(fovea::BindCall(plan, problem, workspace, workspace_bytes, workers, call),
                       error);
}

int32_t fovea_call_phases(const fovea_call* call) noexcept {
  return call == nullptr ? 0 : call->call.Phases();
}

int64_t fovea_call_tasks(const fovea_call* call, int32_t phase) noexcept {
  return call == nullptr ? 0 : call->call.Tasks(phase);
}

fovea_status fovea_call_run_task(const fovea_call* call, int32_t phase, int64_t task,
                                 int32_t worker) noexcept {
  if (call == nullptr || task < 0 || task >= call->call.Tasks(phase) || worker < 0 ||
      worker >= call->workers)
    return FOVEA_INVALID_ARGUMENT;
  call->call.RunTask(phase, task, worker);
  return FOVEA_OK;
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
  const bool bits = dtype == FOVEA_BIT;
  // what overflows is refused when the tensor is used
  uint64_t step = bits ? 1 : static_cast<uint64_t>(fovea_dtype_bytes(dtype));
  for (int a = rank - 1; a >= 0; --a) {
    tensor.shape[a] = shape[a];
    tensor.stride[a] = static_cast<int64_t>(step);
    const int64_t stored =
        bits && a == rank - 1 ? shape[a] / 8 + (shape[a] % 8 != 0 ? 1 : 0) : shape[a];
    step *= static_cast<uint64_t>(stored);
  }
  return tensor;
}

}  // extern "C"
