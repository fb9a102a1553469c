#include "c_structs.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "c_read.h"
#include "tensors.h"

// All tensors of a fovea_problem are members of it: what ForEachTensor asks.
static const fovea_problem& ScoreOf(const fovea_problem& problem) { return problem; }
static const fovea_tensor& MapIn(const fovea_tensor& map) { return map; }
static const fovea_tensor& PagesIn(const fovea_problem& problem) { return problem.page_table; }
static const fovea_tensor& BeginsIn(const fovea_problem& problem) { return problem.page_begins; }

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
static_assert(
    FOVEA_I8 == static_cast<int>(DType::kI8) && FOVEA_U8 == static_cast<int>(DType::kU8) &&
    FOVEA_I4 == static_cast<int>(DType::kI4) && FOVEA_U4 == static_cast<int>(DType::kU4) &&
    FOVEA_I4_HIGH == static_cast<int>(DType::kI4High) &&
    FOVEA_U4_HIGH == static_cast<int>(DType::kU4High) &&
    FOVEA_F8_E4M3FN == static_cast<int>(DType::kF8E4M3FN) &&
    FOVEA_F8_E5M2 == static_cast<int>(DType::kF8E5M2) &&
    FOVEA_Q8_0 == static_cast<int>(DType::kQ8_0) && FOVEA_Q4_0 == static_cast<int>(DType::kQ4_0) &&
    FOVEA_Q4_1 == static_cast<int>(DType::kQ4_1) && FOVEA_Q5_0 == static_cast<int>(DType::kQ5_0) &&
    FOVEA_Q5_1 == static_cast<int>(DType::kQ5_1) &&
    FOVEA_IQ4_NL == static_cast<int>(DType::kIQ4NL) &&
    FOVEA_F32_Z4 == static_cast<int>(DType::kF32Z4));
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

static_assert(kMaxRank == 4);

FOVEA_ENDS_WITH(fovea_problem, v_group_stride);
FOVEA_ENDS_WITH(fovea_allocator, release);
FOVEA_ENDS_WITH(fovea_plan_options, fixed_bias);
FOVEA_ENDS_WITH(fovea_cost, tasks);
FOVEA_ENDS_WITH(fovea_executor, reserved);
FOVEA_ENDS_WITH(fovea_gradient_problem, reserved);

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
}  // namespace

TensorView InputOf(const fovea_tensor& tensor) noexcept { return ViewOf<TensorView>(tensor); }
MutableTensorView OutputOf(const fovea_tensor& tensor) noexcept {
  return ViewOf<MutableTensorView>(tensor);
}

Status ReadProblem(const fovea_problem* given, Problem* problem) noexcept {
  fovea_problem copy;
  const fovea_problem* known;
  FOVEA_RETURN_IF_ERROR(Read("problem", given, &copy, &known));
  const fovea_problem& p = *known;
  FOVEA_RETURN_IF_ERROR(CheckReserved("problem.reserved", p.reserved));
  FOVEA_RETURN_IF_ERROR(CheckReserved("problem.reserved_2", p.reserved_2));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_scale", p.has_scale));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_window", p.has_window));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.has_query_offset", p.has_query_offset));
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.ring", p.ring));
  ForEachTensor(
      [](const TensorRow&, const fovea_tensor& tensor, auto& view) {
        if (tensor.rank != 0) view = ViewOf<std::decay_t<decltype(view)>>(tensor);
      },
      p, *problem);
  problem->pages.keys = p.page_keys;
  problem->ring = p.ring != 0;
  problem->score_stage = static_cast<ScoreStage>(p.score_stage);
  problem->k_group_stride = p.k_group_stride;
  problem->v_group_stride = p.v_group_stride;

  Score& score = problem->score;
  if (p.has_scale != 0) score.scale = p.scale;
  score.softcap = p.softcap;
  score.block_map.queries = p.block_map_queries;
  score.block_map.keys = p.block_map_keys;
  score.causal = static_cast<Causal>(p.causal);
  if (p.has_window != 0) score.window = {p.window_left, p.window_right};
  if (p.has_query_offset != 0) score.query_offset = p.query_offset;
  score.function = {p.score_function, p.score_context};
  return Status();
}

Status ReadGradientProblem(const fovea_gradient_problem* given, GradientProblem* problem) noexcept {
  fovea_gradient_problem copy;
  const fovea_gradient_problem* known;
  FOVEA_RETURN_IF_ERROR(Read("problem", given, &copy, &known));
  const fovea_gradient_problem& p = *known;
  FOVEA_RETURN_IF_ERROR(CheckFlag("problem.accumulate", p.accumulate));
  FOVEA_RETURN_IF_ERROR(CheckReserved("problem.reserved", p.reserved));
  FOVEA_RETURN_IF_ERROR(ReadProblem(p.forward, &problem->forward));
  problem->dout = InputOf(p.dout);
  problem->dlse = InputOf(p.dlse);
  problem->dq = OutputOf(p.dq);
  problem->dk = OutputOf(p.dk);
  problem->dv = OutputOf(p.dv);
  problem->dbias = OutputOf(p.dbias);
  problem->dsinks = OutputOf(p.dsinks);
  problem->dhead_scales = OutputOf(p.dhead_scales);
  problem->accumulate = p.accumulate != 0;
  return Status();
}

static_assert(sizeof(fovea_error) >= Status::kMaxMessage);

fovea_status Report(const Status& status, fovea_error* error) noexcept {
  if (error != nullptr)
    std::memcpy(error->message, status.message(), std::strlen(status.message()) + 1);
  return static_cast<fovea_status>(status.code());
}

size_t WriteText(const std::string& whole, char* text, size_t bytes) noexcept {
  if (text != nullptr && bytes > 0) {
    const size_t copied = std::min(whole.size(), bytes - 1);
    std::memcpy(text, whole.data(), copied);
    text[copied] = '\0';
  }
  return whole.size() + 1;
}

Status ReadOptions(const fovea_plan_options* given, PlanOptions* options) noexcept {
  if (given == nullptr) return Status();
  fovea_plan_options copy;
  const fovea_plan_options* known;
  FOVEA_RETURN_IF_ERROR(Read("options", given, &copy, &known));
  const fovea_plan_options& o = *known;
  FOVEA_RETURN_IF_ERROR(CheckFlag("options.fixed_mask", o.fixed_mask));
  FOVEA_RETURN_IF_ERROR(CheckFlag("options.fixed_tables", o.fixed_tables));
  FOVEA_RETURN_IF_ERROR(CheckFlag("options.fixed_bias", o.fixed_bias));
  options->target = static_cast<Target>(o.target);
  options->engine = static_cast<Engine>(o.engine);
  options->product = static_cast<Product>(o.product);
  options->max_queries = o.max_queries;
  options->max_keys = o.max_keys;
  options->fixed_mask = o.fixed_mask != 0;
  options->fixed_tables = o.fixed_tables != 0;
  options->fixed_bias = o.fixed_bias != 0;
  options->tile_rows = o.tile_rows;
  options->block_keys = o.block_keys;
  options->split_keys = o.split_keys;
  if (o.allocator == nullptr) return Status();
  fovea_allocator allocator_copy;
  const fovea_allocator* a;
  FOVEA_RETURN_IF_ERROR(Read("options.allocator", o.allocator, &allocator_copy, &a));
  options->allocator = {a->allocate, a->release, a->context};
  return Status();
}

Status WriteCost(const Cost& cost, fovea_cost* result) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckSize("cost", result));
  const fovea_cost known = {result->size, cost.flops, cost.kv_bytes, cost.pairs, cost.tasks};
  std::memcpy(static_cast<void*>(result), &known, std::min(result->size, sizeof(known)));
  return Status();
}

Status HostExecutor::Init(const fovea_executor* given) noexcept {
  if (given == nullptr) return Status();
  fovea_executor copy;
  const fovea_executor* known;
  FOVEA_RETURN_IF_ERROR(Read("executor", given, &copy, &known));
  host_ = *known;
  FOVEA_RETURN_IF_ERROR(CheckReserved("executor.reserved", host_.reserved));
  if (host_.for_each == nullptr) return Invalid("executor.for_each = null");
  if (host_.workers < 1)
    return Invalid("executor.workers = %d, expected 1 or greater", host_.workers);
  return Status();
}

void HostExecutor::ForEach(int64_t tasks, Task task, void* context) noexcept {
  host_.for_each(host_.context, tasks, task, context);
}

}  // namespace fovea
