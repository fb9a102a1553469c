// Append: check, bind, and hand the tasks to an executor. A task walks over all new tokens, in
// order, and writes those whose rows of the cache are its own: so the last of equal slots wins,
// whoever runs which task.
#include <algorithm>

#include "append.h"
#include "float_state.h"
#include "fovea/kv_cache.h"
#include "kernels/append.h"
#include "kernels/registry.h"
#include "target.h"
#include "task_loop.h"
#include "views.h"

namespace fovea {
namespace {

// Rows of the cache that go to the same task: so many in a run.
constexpr int64_t kRunOfRows = 16;
// A task is worth handing out from so many bytes on that it writes.
constexpr int64_t kTaskBytes = 1 << 16;
constexpr int64_t kMostParts = 16;

char* RowOf(const MutableTensorView& view, int64_t page, int64_t row) {
  return static_cast<char*>(view.data) + page * view.stride[0] + row * view.stride[2];
}

int64_t FloorPowerOf2(int64_t n) {
  int64_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

// K or V of a call: what stays the same over its rows.
struct Side {
  const TensorView* from;
  const MutableTensorView *to, *scale, *zero;
  AppendRows rows;  // of the kernel, but for counts and addresses

  Side(const TensorView& new_rows, const MutableTensorView& codes, const MutableTensorView& scales,
       const MutableTensorView& zeros, bool fixed, int64_t group_stride)
      : from(&new_rows), to(&codes), scale(&scales), zero(&zeros) {
    rows.d = codes.shape[3];
    rows.from_type = new_rows.dtype;
    rows.from_stride = new_rows.stride[3];
    rows.to_type = codes.dtype;
    rows.to_stride = codes.stride[3];
    rows.source = SourceOf(codes.dtype, scales.present(), fixed);
    rows.groups = scales.shape[3];
    rows.group_stride = group_stride;
    rows.scale_stride = scales.stride[3];
    rows.zero_stride = zeros.stride[3];
    rows.fixed_type = scales.dtype;
  }
};

// The rows of a chunk of tokens, before their head is known.
struct Chunk {
  int count = 0;
  int64_t from_batch[kAppendRows], from_row[kAppendRows];
  int64_t page[kAppendRows], row[kAppendRows];
};

int64_t WriteChunk(AppendFunction* write, Side& side, const Chunk& chunk, int64_t h) {
  AppendRows& rows = side.rows;
  rows.count = chunk.count;
  const char* const from = static_cast<const char*>(side.from->data) + h * side.from->stride[1];
  const bool writes_scales = rows.source == ScaleSource::kWritten;
  for (int n = 0; n < chunk.count; ++n) {
    rows.from[n] = from + chunk.from_batch[n] * side.from->stride[0] +
                   chunk.from_row[n] * side.from->stride[2];
    rows.to[n] = RowOf(*side.to, chunk.page[n], chunk.row[n]) + h * side.to->stride[1];
    if (!writes_scales) continue;
    rows.scale[n] = RowOf(*side.scale, chunk.page[n], chunk.row[n]) + h * side.scale->stride[1];
    if (side.zero->present())
      rows.zero[n] = RowOf(*side.zero, chunk.page[n], chunk.row[n]) + h * side.zero->stride[1];
  }
  if (rows.source == ScaleSource::kFixed) {
    const MutableTensorView& s = *side.scale;
    rows.fixed_scale =
        static_cast<const char*>(s.data) + h * s.shape[1] / side.to->shape[1] * s.stride[1];
  }
  return write(rows);
}

}  // namespace

// What RunTask and BindAppend share.
struct __attribute__((visibility("hidden"))) BoundAppend::Access {
  static int64_t RunTask(const BoundAppend& call, int64_t task) {
    const KVCache& cache = call.cache_;
    const int64_t part = task % call.parts_, block = task / call.parts_;
    const int64_t Hkv = cache.k.shape[1];
    const int64_t first_head = block * Hkv / call.head_blocks_,
                  end_head = (block + 1) * Hkv / call.head_blocks_;
    Side k(call.tokens_.k, cache.k, cache.k_scale, cache.k_zero, cache.k_scale_fixed,
           cache.k_group_stride);
    Side v(call.tokens_.v, cache.v, cache.v_scale, cache.v_zero, cache.v_scale_fixed,
           cache.v_group_stride);
    Chunk chunk;
    int64_t lost = 0;
    const auto flush = [&] {
      for (int64_t h = first_head; h < end_head; ++h) {
        lost += WriteChunk(call.write_, k, chunk, h);
        if (cache.v.present()) lost += WriteChunk(call.write_, v, chunk, h);
      }
      chunk.count = 0;
    };
    ForEachToken(cache, call.tokens_, [&](const TokenPlace& token) {
      if (((token.page * cache.k.shape[2] + token.row) / kRunOfRows & (call.parts_ - 1)) != part)
        return;
      const int n = chunk.count++;
      chunk.from_batch[n] = token.from_batch;
      chunk.from_row[n] = token.from_row;
      chunk.page[n] = token.page;
      chunk.row[n] = token.row;
      if (chunk.count == kAppendRows) flush();
    });
    if (chunk.count > 0) flush();
    return lost;
  }

  static Status Bind(const KVCache& cache, const NewTokens& tokens, const AppendOptions& options,
                     AppendResult* result, BoundAppend* call) {
    if (call == nullptr) return Invalid("call = null, expected where to put it");
    Target target;
    FOVEA_RETURN_IF_ERROR(ChooseTarget(options.target, &target));
    int64_t count;
    FOVEA_RETURN_IF_ERROR(CheckAppend(cache, tokens, &count));
    call->cache_ = cache;
    call->tokens_ = tokens;
    call->result_ = result;
    call->write_ = FindAppendKernel(HighwayTarget(target, Product::kF32));
    const int64_t Hkv = cache.k.shape[1];
    const int64_t row_bytes = BytesOf(cache.k.dtype, cache.k.shape[3]) +
                              (cache.v.present() ? BytesOf(cache.v.dtype, cache.v.shape[3]) : 0);
    // A function of shapes alone. In doubles, which do not overflow.
    const double bytes =
        static_cast<double>(count) * static_cast<double>(Hkv) * static_cast<double>(row_bytes);
    const int64_t wanted = static_cast<int64_t>(
        std::clamp(bytes / static_cast<double>(kTaskBytes), 1.0, 4.0 * kMostParts));
    call->parts_ =
        FloorPowerOf2(std::clamp<int64_t>(count / kRunOfRows, 1, std::min(wanted, kMostParts)));
    call->head_blocks_ = std::clamp<int64_t>(wanted / call->parts_, 1, std::max<int64_t>(Hkv, 1));
    call->tasks_ = count == 0 || Hkv == 0 ? 0 : call->parts_ * call->head_blocks_;
    if (result != nullptr) *result = AppendResult();
    return Status();
  }
};

void BoundAppend::RunTask(int64_t task) const noexcept {
  const int64_t lost = InDefaultFloatState([&] { return Access::RunTask(*this, task); });
  if (lost != 0 && result_ != nullptr)
    __atomic_fetch_add(&result_->lost_nans, lost, __ATOMIC_RELAXED);
}

Status BindAppend(const KVCache& cache, const NewTokens& tokens, const AppendOptions& options,
                  AppendResult* result, BoundAppend* call) noexcept {
  return BoundAppend::Access::Bind(cache, tokens, options, result, call);
}

Status Append(const KVCache& cache, const NewTokens& tokens, const AppendOptions& options,
              AppendResult* result, Executor& executor) noexcept {
  BoundAppend call;
  const int workers = executor.Workers();
  if (workers < 1) return Invalid("executor.Workers() = %d, expected 1 or greater", workers);
  FOVEA_RETURN_IF_ERROR(BindAppend(cache, tokens, options, result, &call));
  const auto run = [&call](int64_t task, int) { call.RunTask(task); };
  return TaskLoop(call.Tasks(), workers, run).In(executor);
}

Status Append(const KVCache& cache, const NewTokens& tokens, AppendResult* result,
              Executor& executor) noexcept {
  return Append(cache, tokens, AppendOptions(), result, executor);
}

}  // namespace fovea
