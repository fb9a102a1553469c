// The C interface of caches: structs are translated, the C++ interface is called.
#include "fovea/c_cache.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "c_read.h"
#include "c_structs.h"
#include "fovea/kv_cache.h"

// Lies in the caller's memory.
struct fovea_append_call {
  fovea::BoundAppend call;
  fovea::AppendResult result;
};

namespace fovea {
namespace {

FOVEA_ENDS_WITH(fovea_kv_cache, reserved);
FOVEA_ENDS_WITH(fovea_cache_shape, reserved);
FOVEA_ENDS_WITH(fovea_new_tokens, page_keys);

template <class View>
fovea_tensor TensorOf(const View& view) {
  fovea_tensor tensor = {};
  tensor.data = const_cast<void*>(static_cast<const void*>(view.data));
  tensor.dtype = static_cast<fovea_dtype>(view.dtype);
  tensor.rank = view.rank;
  for (int a = 0; a < kMaxRank; ++a) {
    tensor.shape[a] = view.shape[a];
    tensor.stride[a] = view.stride[a];
  }
  return tensor;
}

Status ReadCache(const fovea_kv_cache* given, KVCache* cache) {
  fovea_kv_cache c = {};
  FOVEA_RETURN_IF_ERROR(Read("cache", given, &c));
  FOVEA_RETURN_IF_ERROR(CheckFlag("cache.k_scale_fixed", c.k_scale_fixed));
  FOVEA_RETURN_IF_ERROR(CheckFlag("cache.v_scale_fixed", c.v_scale_fixed));
  FOVEA_RETURN_IF_ERROR(CheckFlag("cache.ring", c.ring));
  FOVEA_RETURN_IF_ERROR(CheckReserved("cache.reserved", c.reserved));
  cache->k = OutputOf(c.k);
  cache->v = OutputOf(c.v);
  cache->k_scale = OutputOf(c.k_scale);
  cache->k_zero = OutputOf(c.k_zero);
  cache->v_scale = OutputOf(c.v_scale);
  cache->v_zero = OutputOf(c.v_zero);
  cache->k_group_stride = c.k_group_stride;
  cache->v_group_stride = c.v_group_stride;
  cache->k_scale_fixed = c.k_scale_fixed != 0;
  cache->v_scale_fixed = c.v_scale_fixed != 0;
  cache->ring = c.ring != 0;
  return Status();
}

Status ReadShape(const fovea_cache_shape* given, CacheShape* shape) {
  fovea_cache_shape s = {};
  FOVEA_RETURN_IF_ERROR(Read("shape", given, &s));
  FOVEA_RETURN_IF_ERROR(CheckFlag("shape.k_scale_fixed", s.k_scale_fixed));
  FOVEA_RETURN_IF_ERROR(CheckFlag("shape.v_scale_fixed", s.v_scale_fixed));
  FOVEA_RETURN_IF_ERROR(CheckFlag("shape.ring", s.ring));
  FOVEA_RETURN_IF_ERROR(CheckReserved("shape.reserved", s.reserved));
  const auto type = [](fovea_dtype dtype) {
    return dtype == FOVEA_NONE ? DType::kF32 : static_cast<DType>(dtype);
  };
  shape->pages = s.pages;
  shape->page = s.page;
  shape->heads = s.heads;
  shape->dk = s.dk;
  shape->dv = s.dv;
  shape->k = {type(s.k_dtype), s.k_group, s.k_scale_fixed != 0};
  shape->v = {type(s.v_dtype), s.v_group, s.v_scale_fixed != 0};
  shape->ring = s.ring != 0;
  return Status();
}

Status ReadTokens(const fovea_new_tokens* given, NewTokens* tokens) {
  fovea_new_tokens t = {};
  FOVEA_RETURN_IF_ERROR(Read("tokens", given, &t));
  tokens->k = InputOf(t.k);
  tokens->v = InputOf(t.v);
  tokens->cu_seqlens = InputOf(t.cu_seqlens);
  tokens->slots = InputOf(t.slots);
  tokens->past_lengths = InputOf(t.past_lengths);
  tokens->lengths = InputOf(t.lengths);
  tokens->pages.table = InputOf(t.page_table);
  tokens->pages.begins = InputOf(t.page_begins);
  tokens->pages.keys = t.page_keys;
  return Status();
}

Status ReadBytes(const fovea_cache_shape* given, int64_t* bytes) {
  CacheShape shape;
  FOVEA_RETURN_IF_ERROR(ReadShape(given, &shape));
  return CacheBytes(shape, bytes);
}

Status Make(const fovea_cache_shape* given, void* memory, int64_t bytes, fovea_kv_cache* result) {
  CacheShape shape;
  KVCache cache;
  fovea_kv_cache made = {};
  FOVEA_RETURN_IF_ERROR(Read("cache", result, &made));
  FOVEA_RETURN_IF_ERROR(ReadShape(given, &shape));
  FOVEA_RETURN_IF_ERROR(MakeCache(shape, memory, bytes, &cache));
  made = {result->size,
          TensorOf(cache.k),
          TensorOf(cache.v),
          TensorOf(cache.k_scale),
          TensorOf(cache.k_zero),
          TensorOf(cache.v_scale),
          TensorOf(cache.v_zero),
          0,
          0,
          cache.k_scale_fixed ? 1 : 0,
          cache.v_scale_fixed ? 1 : 0,
          cache.ring ? 1 : 0,
          0};
  std::memcpy(static_cast<void*>(result), &made, std::min(result->size, sizeof(made)));
  return Status();
}

Status Set(const fovea_kv_cache* given, fovea_problem* problem) {
  KVCache cache;
  FOVEA_RETURN_IF_ERROR(ReadCache(given, &cache));
  FOVEA_RETURN_IF_ERROR(CheckSize("problem", problem));
  constexpr size_t kNeeded = offsetof(fovea_problem, v_group_stride) + sizeof(int64_t);
  if (problem->size < kNeeded) {
    return Invalid("problem.size = %zu, expected at least %zu: that version has no caches",
                   problem->size, kNeeded);
  }
  problem->k = TensorOf(cache.k);
  problem->v = TensorOf(cache.v);
  problem->k_scale = TensorOf(cache.k_scale);
  problem->k_zero = TensorOf(cache.k_zero);
  problem->v_scale = TensorOf(cache.v_scale);
  problem->v_zero = TensorOf(cache.v_zero);
  problem->k_group_stride = cache.k_group_stride;
  problem->v_group_stride = cache.v_group_stride;
  problem->ring = cache.ring ? 1 : 0;
  return Status();
}

Status AppendTokens(const fovea_kv_cache* given_cache, const fovea_new_tokens* given_tokens,
                    fovea_target target, const fovea_executor* given_executor, int64_t* lost_nans) {
  KVCache cache;
  NewTokens tokens;
  HostExecutor executor;
  AppendOptions options;
  AppendResult result;
  FOVEA_RETURN_IF_ERROR(ReadCache(given_cache, &cache));
  FOVEA_RETURN_IF_ERROR(ReadTokens(given_tokens, &tokens));
  FOVEA_RETURN_IF_ERROR(executor.Init(given_executor));
  options.target = static_cast<Target>(target);
  FOVEA_RETURN_IF_ERROR(Append(cache, tokens, options, &result, executor.Get()));
  if (lost_nans != nullptr) *lost_nans = result.lost_nans;
  return Status();
}

Status BindTokens(const fovea_kv_cache* given_cache, const fovea_new_tokens* given_tokens,
                  fovea_target target, void* memory, size_t bytes, fovea_append_call** call) {
  if (call == nullptr) return Invalid("call = null, expected where to put it");
  KVCache cache;
  NewTokens tokens;
  AppendOptions options;
  BoundAppend bound;
  FOVEA_RETURN_IF_ERROR(ReadCache(given_cache, &cache));
  FOVEA_RETURN_IF_ERROR(ReadTokens(given_tokens, &tokens));
  const size_t needed = fovea_append_call_bytes();
  if (memory == nullptr) return Invalid("memory = null, expected %zu bytes", needed);
  if (bytes < needed) return TooSmall("bytes = %zu, expected at least %zu", bytes, needed);
  options.target = static_cast<Target>(target);
  FOVEA_RETURN_IF_ERROR(BindAppend(cache, tokens, options, nullptr, &bound));
  void* place = memory;
  size_t left = bytes;
  std::align(alignof(fovea_append_call), sizeof(fovea_append_call), place, left);
  fovea_append_call* const made = new (place) fovea_append_call();
  // known to be legal now
  FOVEA_RETURN_IF_ERROR(BindAppend(cache, tokens, options, &made->result, &made->call));
  *call = made;
  return Status();
}

}  // namespace
}  // namespace fovea

extern "C" {

fovea_status fovea_cache_bytes(const fovea_cache_shape* shape, int64_t* bytes,
                               fovea_error* error) noexcept {
  return fovea::Report(fovea::ReadBytes(shape, bytes), error);
}

fovea_status fovea_make_cache(const fovea_cache_shape* shape, void* memory, int64_t bytes,
                              fovea_kv_cache* cache, fovea_error* error) noexcept {
  return fovea::Report(fovea::Make(shape, memory, bytes, cache), error);
}

fovea_status fovea_set_cache(const fovea_kv_cache* cache, fovea_problem* problem,
                             fovea_error* error) noexcept {
  return fovea::Report(fovea::Set(cache, problem), error);
}

fovea_status fovea_append(const fovea_kv_cache* cache, const fovea_new_tokens* tokens,
                          fovea_target target, const fovea_executor* executor, int64_t* lost_nans,
                          fovea_error* error) noexcept {
  return fovea::Report(fovea::AppendTokens(cache, tokens, target, executor, lost_nans), error);
}

size_t fovea_append_call_bytes(void) noexcept {
  return sizeof(fovea_append_call) + alignof(fovea_append_call) - 1;
}

fovea_status fovea_bind_append(const fovea_kv_cache* cache, const fovea_new_tokens* tokens,
                               fovea_target target, void* memory, size_t bytes,
                               fovea_append_call** call, fovea_error* error) noexcept {
  return fovea::Report(fovea::BindTokens(cache, tokens, target, memory, bytes, call), error);
}

int64_t fovea_append_tasks(const fovea_append_call* call) noexcept {
  return call == nullptr ? 0 : call->call.Tasks();
}

fovea_status fovea_append_run_task(const fovea_append_call* call, int64_t task) noexcept {
  if (call == nullptr || task < 0 || task >= call->call.Tasks()) return FOVEA_INVALID_ARGUMENT;
  call->call.RunTask(task);
  return FOVEA_OK;
}

int64_t fovea_append_lost_nans(const fovea_append_call* call) noexcept {
  return call == nullptr ? 0 : call->result.lost_nans;
}

}  // extern "C"
