// What the C interface takes and gives back: values, tensors, structs. Included by fovea/c.h, which
// has the functions.
//
// Structs. Zero in every field but `size` is the default, so that the `init` functions below clear
// a struct and set its size. A library accepts the structs of older headers, which are shorter:
// fields that they lack are defaults. It accepts those of newer headers, which are longer, as long
// as what it does not know is zero, and otherwise says so (FOVEA_INVALID_ARGUMENT). fovea_tensor,
// fovea_partial_state and fovea_error, which lie in arrays and in other structs, have no size and
// never change.
#ifndef FOVEA_C_TYPES_H_
#define FOVEA_C_TYPES_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fovea/score_function.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------- values

// What kind of error a call reports: fovea::StatusCode.
typedef int32_t fovea_status;
enum {
  FOVEA_OK = 0,                // done
  FOVEA_INVALID_ARGUMENT = 1,  // the call contradicts itself
  FOVEA_UNSUPPORTED = 2,       // legal, but not for this build or this CPU: a host can fall back
  FOVEA_OUT_OF_MEMORY = 3      // an allocation failed, or the caller's workspace is too small
};

// The type of the elements of a tensor: fovea::DType.
typedef int32_t fovea_dtype;
enum {
  FOVEA_NONE = 0,  // an absent tensor
  FOVEA_F32 = 1,   // IEEE binary32
  FOVEA_F16 = 2,   // IEEE binary16
  FOVEA_BF16 = 3,  // the upper half of a binary32
  FOVEA_BOOL = 4,  // one byte, zero = false
  FOVEA_I32 = 5,   // signed, of 32 bits
  FOVEA_I64 = 6,   // signed, of 64 bits
  FOVEA_BIT = 7,   // masks: eight elements of the innermost axis in a byte, the first in bit 0
  // quantised k and v: codes with scales and zeros of their own …
  FOVEA_I8 = 8,
  FOVEA_U8 = 9,
  FOVEA_I4 = 10,  // stored + 8, the even channel in the low nibble
  FOVEA_U4 = 11,  // the even channel in the low nibble
  FOVEA_I4_HIGH = 12,
  FOVEA_U4_HIGH = 13,  // the even channel in the high nibble
  FOVEA_F8_E4M3FN = 14,
  FOVEA_F8_E5M2 = 15,
  // … and blocks of 32 with their scales inside
  FOVEA_Q8_0 = 16,
  FOVEA_Q4_0 = 17,
  FOVEA_Q4_1 = 18,
  FOVEA_Q5_0 = 19,
  FOVEA_Q5_1 = 20,
  FOVEA_IQ4_NL = 21,
  FOVEA_F32_Z4 = 22  // scales whose low four bits are the zero
};

// Whether queries see the keys behind their own position: fovea::Causal.
typedef int32_t fovea_causal;
enum {
  FOVEA_CAUSAL_NONE = 0,         // every query sees every key
  FOVEA_CAUSAL_TOP_LEFT = 1,     // query i sees keys j ≤ i
  FOVEA_CAUSAL_BOTTOM_RIGHT = 2  // the last query sees every key
};

// At which step a score is given out: fovea::ScoreStage.
typedef int32_t fovea_score_stage;
enum {
  FOVEA_STAGE_SCALED = 0,      // scale·head_scale·(q·k)
  FOVEA_STAGE_SOFTCAPPED = 1,  // after softcap
  FOVEA_STAGE_MASKED = 2,      // what softmax sees; −inf for removed pairs
  FOVEA_STAGE_WEIGHTS = 3      // after softmax: 0 for removed pairs
};

// What SIMD lanes hold: fovea::Engine.
typedef int32_t fovea_engine;
enum {
  FOVEA_ENGINE_AUTO = 0,  // from shapes, types and target
  FOVEA_ENGINE_TILE = 1,  // queries: prefill
  FOVEA_ENGINE_ROW = 2    // the head dimension: decode
};

// What multiplies: fovea::Product.
typedef int32_t fovea_product;
enum {
  FOVEA_PRODUCT_AUTO = 0,  // from types and target
  FOVEA_PRODUCT_F32 = 1,   // multiply-adds in f32
  FOVEA_PRODUCT_BF16 = 2   // dot products of bf16
};

// An instruction set: fovea::Target.
typedef int32_t fovea_target;
enum {
  FOVEA_TARGET_AUTO = 0,    // the best usable one, or what the environment's FOVEA_TARGET names
  FOVEA_TARGET_EMU128 = 1,  // portable C++
  FOVEA_TARGET_SSE2 = 2,    // the least of x86-64
  FOVEA_TARGET_SSE4 = 3,    // up to SSE4.2
  FOVEA_TARGET_AVX2 = 4,    // with FMA and F16C
  FOVEA_TARGET_AVX512 = 5,  // F, BW, CD, DQ, VL
  FOVEA_TARGET_NEON = 6,    // AArch64 Advanced SIMD
  FOVEA_TARGET_AVX512_BF16 = 7,  // with dot products of bf16
  FOVEA_TARGET_NEON_BF16 = 8,    // with dot products of bf16
  FOVEA_TARGET_AVX512_AMX = 9,   // with AMX's tiles of bf16
  FOVEA_TARGET_PPC8 = 10,        // POWER8
  FOVEA_TARGET_PPC9 = 11,        // POWER9
  FOVEA_TARGET_WASM = 12         // WebAssembly's 128-bit SIMD
};

// Why a call failed, zero-terminated: for example "v.shape[2] = 96, expected 128 (k.shape[2])";
// empty after a call that did not. Need not be initialised.
typedef struct fovea_error {
  char message[256];  // longer ones are cut
} fovea_error;

// A tensor in memory that belongs to the caller, as fovea::TensorView: strides in BYTES, any of
// them; rank 0 is an absent tensor. Inputs are never written.
typedef struct fovea_tensor {
  void* data;         // of element [0, 0, …]
  fovea_dtype dtype;  // of every element
  int32_t rank;       // 0 to 4
  int64_t shape[4];   // elements of each axis
  int64_t stride[4];  // bytes from an element to the next along each axis
} fovea_tensor;

// What attention over one key set leaves behind.
typedef struct fovea_partial_state {
  fovea_tensor out;  // f32 [B, Hq, Tq, dv]
  fovea_tensor lse;  // f32 [B, Hq, Tq]
} fovea_partial_state;

// ---------------------------------------------------------------- structs that grow

// One attention problem: fovea::Problem and its fovea::Score. B, Tq and Tk may be 0; dk and dv are
// 1 or greater.
typedef struct fovea_problem {
  size_t size;           // of this struct in bytes, as in the others below
  fovea_tensor q;        // [B, Hq, Tq, dk]
  fovea_tensor k;        // [B, Hkv, Tk, dk]
  fovea_tensor v;        // [B, Hkv, Tk, dv]
  fovea_tensor out;      // [B, Hq, Tq, dv]; written
  fovea_tensor lse;      // optional, f32 [B, Hq, Tq]; written
  fovea_tensor weights;  // optional, f32 [B, Hq, Tq, Tk]; written
  fovea_tensor scores;   // optional, f32 [B, Hq, Tq, Tk], at score_stage; written

  fovea_tensor cu_seqlens_q;  // optional, i32 or i64 [B + 1]: packed sequences
  fovea_tensor cu_seqlens_k;  // of the keys, as cu_seqlens_q of the queries

  fovea_tensor alibi_slopes;      // optional, f32 [Hq]
  fovea_tensor bias;              // optional, f32, f16 or bf16, broadcast to [B, Hq, Tq, Tk]
  fovea_tensor mask;              // optional, bool or bit, broadcast as bias; true = attend
  fovea_tensor block_map;         // optional, bool or bit: BlockMap::visible
  fovea_tensor parents;           // optional, i32 or i64 [B, Tq]
  fovea_tensor query_offsets;     // optional, i32 or i64 [B]
  fovea_tensor q_lengths;         // optional, i32 or i64 [B]
  fovea_tensor kv_lengths;        // optional, i32 or i64 [B]
  fovea_tensor sinks;             // optional, f32 [Hq]
  int64_t block_map_queries;      // of a block of block_map
  int64_t block_map_keys;         // of a block of block_map
  int64_t window_left;            // −1 = open; only with has_window
  int64_t window_right;           // −1 = open; only with has_window
  int64_t query_offset;           // only with has_query_offset
  fovea_score_stage score_stage;  // of scores
  fovea_causal causal;            // which keys are visible by position
  float scale;                    // only with has_scale; otherwise 1/√dk
  float softcap;                  // 0 = none
  int32_t has_scale;              // 0 or 1
  int32_t has_window;             // 0 or 1; 0 = open on both sides
  int32_t has_query_offset;       // 0 or 1
  int32_t reserved;               // 0

  fovea_tensor head_scales;             // optional, f32 [Hq]
  fovea_tensor bias_scales;             // optional, f32 [Hq]
  fovea_tensor key_ranges;              // optional, i32 or i64 [B or 1, Tq, 2]
  fovea_score_function score_function;  // optional: fovea::Score::function
  void* score_context;                  // of score_function

  fovea_tensor key_offsets;  // optional, i32 or i64 [B]: position of the first resident key
  fovea_tensor page_table;   // optional, i32 or i64 [B, max], or [numbers] with page_begins
  fovea_tensor page_begins;  // optional, i32 or i64 [B + 1]: PageTable::begins
  int64_t page_keys;         // Tk; 0 = as many as fit in the table: PageTable::keys
  int32_t ring;              // 0 or 1: Problem::ring
  int32_t reserved_2;        // 0
  fovea_tensor k_scale;      // of quantised k: optional, four axes, f32, f16, bf16 or f32_z4
  fovea_tensor k_zero;       // of quantised k: optional, four axes, f32, f16, bf16, i32, i8 or u8
  fovea_tensor v_scale;      // of quantised v, as k_scale
  fovea_tensor v_zero;       // of quantised v, as k_zero
  int64_t k_group_stride;    // bytes between groups of channels that lie apart; 0 = dense
  int64_t v_group_stride;    // of v, as k_group_stride
} fovea_problem;

// Where memory comes from: fovea::Allocator. Both functions, or none for malloc and free.
typedef struct fovea_allocator {
  size_t size;    // of this struct in bytes
  void* context;  // the first argument of both functions
  // `bytes` > 0 bytes, aligned as malloc aligns; null when there is no memory.
  void* (*allocate)(void* context, size_t bytes);
  // `memory` is what allocate gave for as many bytes; never null.
  void (*release)(void* context, void* memory, size_t bytes);
} fovea_allocator;

// What a caller may prescribe to a plan: fovea::PlanOptions.
typedef struct fovea_plan_options {
  size_t size;                       // of this struct in bytes
  const fovea_allocator* allocator;  // null: malloc and free. Copied
  int64_t max_queries;               // room for fovea_plan_update; 0 = the problem's own
  int64_t max_keys;                  // room for fovea_plan_update; 0 = the problem's own
  fovea_target target;               // FOVEA_UNSUPPORTED for one that is not usable
  fovea_engine engine;               // of all sequences
  fovea_product product;             // FOVEA_UNSUPPORTED where the target lacks it
  int32_t fixed_mask;    // 0 or 1: the mask's contents stay the same until the next update
  int64_t split_keys;    // these three: test hooks, upper bounds that change rounding; 0 = none
  int32_t tile_rows;     // test hook: query rows of a tile
  int32_t block_keys;    // test hook: keys of a block
  int32_t fixed_tables;  // 0 or 1: the page tables stay the same until the next update
  int32_t fixed_bias;    // 0 or 1: where the bias is −inf or 0 stays the same until the next update
} fovea_plan_options;

// What a plan will do: fovea::Cost. Written by the library, as far as `size` and its own knowledge
// reach; fields beyond stay 0, as after init.
typedef struct fovea_cost {
  size_t size;      // of this struct in bytes; set by the caller
  double flops;     // floating-point operations
  double kv_bytes;  // bytes of K and V read at least once
  double pairs;     // visible (query, key) pairs over all heads
  int64_t tasks;    // of the largest phase: more threads than this cannot help
} fovea_cost;

// One task of a phase, with the task_context that came with it.
typedef void (*fovea_task)(void* task_context, int64_t task, int32_t worker);

// The host's threads as a parallel loop: fovea::Executor.
typedef struct fovea_executor {
  size_t size;    // of this struct in bytes
  void* context;  // the first argument of for_each
  // Calls run(task_context, i, worker) once for every i in [0, tasks), on any threads and in any
  // order, low ones first where there is a choice, and returns when all have returned. `worker` is
  // in [0, workers), and no two calls at the same time share one.
  void (*for_each)(void* context, int64_t tasks, fovea_task run, void* task_context);
  int32_t workers;   // 1 or greater
  int32_t reserved;  // 0
} fovea_executor;

// Sets every field to its default, and the size.
static inline void fovea_problem_init(fovea_problem* problem) {
  memset(problem, 0, sizeof(*problem));
  problem->size = sizeof(*problem);
}
// Sets malloc and free, and the size.
static inline void fovea_allocator_init(fovea_allocator* allocator) {
  memset(allocator, 0, sizeof(*allocator));
  allocator->size = sizeof(*allocator);
}
// Sets every field to its default, and the size.
static inline void fovea_plan_options_init(fovea_plan_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}
// Sets every field to 0, and the size.
static inline void fovea_cost_init(fovea_cost* cost) {
  memset(cost, 0, sizeof(*cost));
  cost->size = sizeof(*cost);
}
// Sets every field to 0, and the size: workers and for_each are still to be set.
static inline void fovea_executor_init(fovea_executor* executor) {
  memset(executor, 0, sizeof(*executor));
  executor->size = sizeof(*executor);
}

#ifdef __cplusplus
}
#endif

#endif  // FOVEA_C_TYPES_H_
