// Append: check, bind, and hand the tasks to an executor. A task walks over all new tokens, in
// order, and writes those whose rows of the cache are its own: so the last of equal slots wins,
// whoever runs which task.
#include <algorithm>
#include <cstdlib>

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

char* RowOf(const MutableTensorView& view, const TokenPlace& token, int64_t h) {
  return static_cast<char*>(view.data) + token.page * view.stride[0] + h * view.stride[1] +
         token.row * view.stride[2];
}

int64_t FloorPowerOf2(int64_t n) {
  int64_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

// The places of some tokens, before their heads are known.
struct Chunk {
  int count = 0;
  TokenPlace token[kAppendRows];
};

// K or V of a call: rows are gathered, and written when there are enough.
class Side {
 public:
  Side(AppendFunction* write, const TensorView& from, const MutableTensorView& to,
       const MutableTensorView& scale, const MutableTensorView& zero, bool fixed,
       int64_t group_stride)
      : write_(write), from_(from), to_(to), scale_(scale), zero_(zero) {
    rows_.count = 0;
    rows_.d = to.shape[3];
    rows_.from_type = from.dtype;
    rows_.from_stride = from.stride[3];
    rows_.to_type = to.dtype;
    rows_.to_stride = to.stride[3];
    rows_.source = SourceOf(to.dtype, scale.present(), fixed);
    rows_.groups = scale.shape[3];
    rows_.group_stride = group_stride;
    rows_.scale_stride = scale.stride[3];
    rows_.zero_stride = zero.stride[3];
    rows_.fixed_type = scale.dtype;
    scale_of_head_ = rows_.source == ScaleSource::kFixed && scale.shape[1] > 1;
    heads_inside_ = std::abs(from.stride[1]) < std::abs(from.stride[2]) && !scale_of_head_;
  }

  // All heads first … end − 1 of the tokens, in the order in which they lie in memory.
  void Write(const Chunk& chunk, int64_t first, int64_t end) {
    if (heads_inside_) {
      for (int n = 0; n < chunk.count; ++n) {
        for (int64_t h = first; h < end; ++h) Add(chunk.token[n], h);
      }
    } else {
      for (int64_t h = first; h < end; ++h) {
        for (int n = 0; n < chunk.count; ++n) Add(chunk.token[n], h);
        if (scale_of_head_) Flush();
      }
    }
    Flush();
  }

  int64_t lost() const { return lost_; }

 private:
  void Add(const TokenPlace& token, int64_t h) {
    const int n = rows_.count++;
    rows_.from[n] = static_cast<const char*>(from_.data) + token.from_batch * from_.stride[0] +
                    h * from_.stride[1] + token.from_row * from_.stride[2];
    rows_.to[n] = RowOf(to_, token, h);
    if (rows_.source == ScaleSource::kWritten) {
      rows_.scale[n] = RowOf(scale_, token, h);
      if (zero_.present()) rows_.zero[n] = RowOf(zero_, token, h);
    } else if (rows_.source == ScaleSource::kFixed) {
      rows_.fixed_scale = static_cast<const char*>(scale_.data) +
                          h * scale_.shape[1] / to_.shape[1] * scale_.stride[1];
    }
    if (rows_.count == kAppendRows) Flush();
  }
  void Flush() {
    if (rows_.count > 0) lost_ += write_(rows_);
    rows_.count = 0;
  }

  AppendFunction* const write_;
  const TensorView& from_;
  const MutableTensorView &to_, &scale_, &zero_;
  AppendRows rows_;
  bool scale_of_head_, heads_inside_;
  int64_t lost_ = 0;
};

}  // namespace

// What RunTask and BindAppend share.
struct __attribute__((visibility("hidden"))) BoundAppend::Access {
  static int64_t RunTask(const BoundAppend& call, int64_t task) {
    const KVCache& cache = call.cache_;
    const int64_t part = task % call.parts_, block = task / call.parts_;
    const int64_t Hkv = cache.k.shape[1];
    const int64_t first_head = block * Hkv / call.head_blocks_,
                  end_head = (block + 1) * Hkv / call.head_blocks_;
    Side k(call.write_, call.tokens_.k, cache.k, cache.k_scale, cache.k_zero, cache.k_scale_fixed,
           cache.k_group_stride);
    Side v(call.write_, call.tokens_.v, cache.v, cache.v_scale, cache.v_zero, cache.v_scale_fixed,
           cache.v_group_stride);
    Chunk chunk;
    const auto flush = [&] {
      k.Write(chunk, first_head, end_head);
      if (cache.v.present()) v.Write(chunk, first_head, end_head);
      chunk.count = 0;
    };
    ForEachToken(cache, call.tokens_, [&](const TokenPlace& token) {
      if (((token.page * cache.k.shape[2] + token.row) / kRunOfRows & (call.parts_ - 1)) != part)
        return;
      chunk.token[chunk.count++] = token;
      if (chunk.count == kAppendRows) flush();
    });
    flush();
    return k.lost() + v.lost();
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
