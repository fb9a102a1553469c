// Caches of keys and values for C: fovea/kv_cache.h as C11. What is written, and which calls are
// errors, is said there; fields have the names that they have there. How structs grow, errors and
// threads: fovea/c.h.
#ifndef FOVEA_C_CACHE_H_
#define FOVEA_C_CACHE_H_

#include "fovea/c.h"
#include "fovea/detail/macros_begin.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where keys and values lie, and as what: fovea::KVCache.
typedef struct fovea_kv_cache {
  size_t size;             // of this struct in bytes, as in the others below
  fovea_tensor k;          // [pages, Hkv, P, dk]
  fovea_tensor v;          // [pages, Hkv, P, dv]; rank 0: V lies within K
  fovea_tensor k_scale;    // of types with scales of their own
  fovea_tensor k_zero;     // of FOVEA_U8, FOVEA_U4 and FOVEA_U4_HIGH
  fovea_tensor v_scale;    // of v, as k_scale
  fovea_tensor v_zero;     // of v, as k_zero
  int64_t k_group_stride;  // bytes between groups of channels that lie apart; 0 = dense
  int64_t v_group_stride;  // of v, as k_group_stride
  int32_t k_scale_fixed;   // 0 or 1: k_scale is only read
  int32_t v_scale_fixed;   // 0 or 1: v_scale is only read
  int32_t ring;            // 0 or 1: position p lies in row p mod P
  int32_t reserved;        // 0
} fovea_kv_cache;

// A cache as fovea_make_cache lays it out: fovea::CacheShape.
typedef struct fovea_cache_shape {
  size_t size;            // of this struct in bytes
  int64_t pages;          // pages, or sequences of a cache without pages
  int64_t page;           // keys of a page, or the capacity of each sequence
  int64_t heads;          // Hkv
  int64_t dk;             // of K
  int64_t dv;             // of V; 0: V lies within K
  int64_t k_group;        // channels of K that share a scale; 0 = all of a row
  int64_t v_group;        // of V, as k_group
  fovea_dtype k_dtype;    // FOVEA_NONE = FOVEA_F32
  fovea_dtype v_dtype;    // of V, as k_dtype
  int32_t k_scale_fixed;  // 0 or 1: the scales of K are the caller's
  int32_t v_scale_fixed;  // 0 or 1: the scales of V are the caller's
  int32_t ring;           // 0 or 1
  int32_t reserved;       // 0
} fovea_cache_shape;

// New keys and values, and where they go: fovea::NewTokens.
typedef struct fovea_new_tokens {
  size_t size;                // of this struct in bytes
  fovea_tensor k;             // f32, f16 or bf16 [B, Hkv, n, dk]
  fovea_tensor v;             // f32, f16 or bf16 [B, Hkv, n, dv]
  fovea_tensor cu_seqlens;    // optional, i32 or i64 [B + 1]: packed
  fovea_tensor slots;         // optional, i32 or i64 [B, n], or [rows] of packed tokens
  fovea_tensor past_lengths;  // optional, i32 or i64 [B]
  fovea_tensor lengths;       // optional, i32 or i64 [B]
  fovea_tensor page_table;    // optional, i32 or i64 [B, max], or [numbers] with page_begins
  fovea_tensor page_begins;   // optional, i32 or i64 [B + 1]
  int64_t page_keys;          // 0 = as many as fit in the table
} fovea_new_tokens;

// Sets every field to its default, and the size.
static inline void fovea_kv_cache_init(fovea_kv_cache* cache) {
  memset(cache, 0, sizeof(*cache));
  cache->size = sizeof(*cache);
}
// Sets every field to its default, and the size.
static inline void fovea_cache_shape_init(fovea_cache_shape* shape) {
  memset(shape, 0, sizeof(*shape));
  shape->size = sizeof(*shape);
}
// Sets every field to its default, and the size.
static inline void fovea_new_tokens_init(fovea_new_tokens* tokens) {
  memset(tokens, 0, sizeof(*tokens));
  tokens->size = sizeof(*tokens);
}

// The bytes of such a cache: fovea::CacheBytes.
FOVEA_EXPORT fovea_status fovea_cache_bytes(const fovea_cache_shape* shape, int64_t* bytes,
                                            fovea_error* error) FOVEA_NOEXCEPT;

// Sets all of *cache, whose size is set, to views of `memory`: fovea::MakeCache.
FOVEA_EXPORT fovea_status fovea_make_cache(const fovea_cache_shape* shape, void* memory,
                                           int64_t bytes, fovea_kv_cache* cache,
                                           fovea_error* error) FOVEA_NOEXCEPT;

// Sets what of *problem says how K and V lie: fovea::SetCache.
FOVEA_EXPORT fovea_status fovea_set_cache(const fovea_kv_cache* cache, fovea_problem* problem,
                                          fovea_error* error) FOVEA_NOEXCEPT;

// Writes new tokens: fovea::Append. `executor` may be null, for the calling thread; so may
// `lost_nans`, which otherwise receives fovea::AppendResult::lost_nans.
FOVEA_EXPORT fovea_status fovea_append(const fovea_kv_cache* cache, const fovea_new_tokens* tokens,
                                       fovea_target target, const fovea_executor* executor,
                                       int64_t* lost_nans, fovea_error* error) FOVEA_NOEXCEPT;

// A checked call as independent tasks: fovea::BoundAppend, in memory of the caller's. Nothing is to
// be destroyed; tensors and structs of tensors must outlive it, the structs given to it need not.
typedef struct fovea_append_call fovea_append_call;

// Bytes of such memory, whatever its alignment.
FOVEA_EXPORT size_t fovea_append_call_bytes(void) FOVEA_NOEXCEPT;
// Checks everything and makes *call in `memory`.
FOVEA_EXPORT fovea_status fovea_bind_append(const fovea_kv_cache* cache,
                                            const fovea_new_tokens* tokens, fovea_target target,
                                            void* memory, size_t bytes, fovea_append_call** call,
                                            fovea_error* error) FOVEA_NOEXCEPT;
// How many tasks there are; 0 for null.
FOVEA_EXPORT int64_t fovea_append_tasks(const fovea_append_call* call) FOVEA_NOEXCEPT;
// Runs one task: each once, on any threads and in any order. FOVEA_INVALID_ARGUMENT for one that
// does not exist.
FOVEA_EXPORT fovea_status fovea_append_run_task(const fovea_append_call* call,
                                                int64_t task) FOVEA_NOEXCEPT;
// When all tasks have run: fovea::AppendResult::lost_nans; 0 for null.
FOVEA_EXPORT int64_t fovea_append_lost_nans(const fovea_append_call* call) FOVEA_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_C_CACHE_H_
