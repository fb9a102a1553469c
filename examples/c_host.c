// A host in C11 with POSIX threads: memory from its own arena, a parallel loop of its own, one plan
// for all steps of a decoder that adds a key per token.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/c.h"

enum { kHeads = 8, kKvHeads = 2, kSize = 64, kMostKeys = 2048, kThreads = 3 };

// ---------------------------------------------------------------- the host's memory: one arena,
// given back at once

typedef struct Arena {
  _Alignas(64) char bytes[1 << 20];
  size_t used;
} Arena;

static void* ArenaAllocate(void* context, size_t bytes) {
  Arena* const arena = context;
  const size_t rounded = (bytes + 63) / 64 * 64;
  if (rounded < bytes || rounded > sizeof(arena->bytes) - arena->used) return NULL;
  void* const memory = arena->bytes + arena->used;
  arena->used += rounded;
  return memory;
}
static void ArenaRelease(void* context, void* memory, size_t bytes) {
  (void)context, (void)memory, (void)bytes;
}

// ---------------------------------------------------------------- the host's threads: worker w
// takes every kThreads-th task

typedef struct Share {
  fovea_task run;
  void* task_context;
  int64_t tasks;
  int32_t worker;
} Share;

static void* RunShare(void* p) {
  const Share* const share = p;
  for (int64_t n = share->worker; n < share->tasks; n += kThreads)
    share->run(share->task_context, n, share->worker);
  return NULL;
}

static void ForEach(void* context, int64_t tasks, fovea_task run, void* task_context) {
  (void)context;
  pthread_t threads[kThreads];
  int started[kThreads] = {0};
  Share shares[kThreads];
  for (int32_t w = 0; w < kThreads; ++w) {
    const Share share = {run, task_context, tasks, w};
    shares[w] = share;
    if (w > 0 && w < tasks)
      started[w] = pthread_create(&threads[w], NULL, RunShare, &shares[w]) == 0;
  }
  for (int32_t w = 0; w < kThreads; ++w) {
    if (!started[w]) RunShare(&shares[w]);
  }
  for (int32_t w = 0; w < kThreads; ++w) {
    if (started[w]) pthread_join(threads[w], NULL);
  }
}

// ---------------------------------------------------------------- the decoder

static float q[kHeads * kSize], out[kHeads * kSize];
// [keys, kv_heads, size]
static float k[kMostKeys * kKvHeads * kSize], v[kMostKeys * kKvHeads * kSize];
static char workspace[1 << 20];
static Arena arena;

static void FillNumbers(float* numbers, size_t count, uint32_t seed) {
  for (size_t n = 0; n < count; ++n) {
    seed = seed * 1664525u + 1013904223u;
    numbers[n] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

// One query over the first `keys` keys of the cache, heads interleaved per token.
static void MakeProblem(int64_t keys, fovea_problem* problem) {
  const int64_t head = kSize * (int64_t)sizeof(float);
  const int64_t q_shape[] = {1, kHeads, 1, kSize}, kv_shape[] = {1, kKvHeads, keys, kSize};
  fovea_problem_init(problem);
  problem->q = fovea_dense(q, FOVEA_F32, 4, q_shape);
  problem->out = fovea_dense(out, FOVEA_F32, 4, q_shape);
  problem->k = fovea_dense(k, FOVEA_F32, 4, kv_shape);
  problem->k.stride[1] = head;
  problem->k.stride[2] = kKvHeads * head;
  problem->v = problem->k;
  problem->v.data = v;
}

// The largest difference to the textbook formula.
static double Error(int64_t keys) {
  static double p[kMostKeys];
  double worst = 0;
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t g = h / (kHeads / kKvHeads);
    double m = -INFINITY, l = 0;
    for (int64_t j = 0; j < keys; ++j) {
      p[j] = 0;
      for (int64_t c = 0; c < kSize; ++c)
        p[j] += (double)q[h * kSize + c] * (double)k[(j * kKvHeads + g) * kSize + c];
      p[j] /= sqrt((double)kSize);
      m = fmax(m, p[j]);
    }
    for (int64_t j = 0; j < keys; ++j) l += p[j] = exp(p[j] - m);
    for (int64_t c = 0; c < kSize; ++c) {
      double o = 0;
      for (int64_t j = 0; j < keys; ++j) o += p[j] / l * (double)v[(j * kKvHeads + g) * kSize + c];
      worst = fmax(worst, fabs(o - (double)out[h * kSize + c]));
    }
  }
  return worst;
}

static int Fail(const char* what, const fovea_error* error) {
  printf("%s: %s\n", what, error->message);
  return 1;
}

int main(void) {
  FillNumbers(k, sizeof(k) / sizeof(k[0]), 2);
  FillNumbers(v, sizeof(v) / sizeof(v[0]), 3);

  fovea_allocator allocator;
  fovea_allocator_init(&allocator);
  allocator.context = &arena;
  allocator.allocate = ArenaAllocate;
  allocator.release = ArenaRelease;
  fovea_plan_options options;
  fovea_plan_options_init(&options);
  options.allocator = &allocator;
  options.max_keys = kMostKeys;
  fovea_executor executor;
  fovea_executor_init(&executor);
  executor.workers = kThreads;
  executor.for_each = ForEach;

  fovea_error error;
  fovea_problem problem;
  fovea_plan* plan = NULL;
  MakeProblem(kMostKeys, &problem);
  if (fovea_plan_create(&problem, &options, &plan, &error) != FOVEA_OK) return Fail("plan", &error);
  char text[2048];
  fovea_plan_to_string(plan, text, sizeof(text));
  printf("fovea %d.%d.%d\n%s", (int)(fovea_version() >> 16), (int)(fovea_version() >> 8 & 255),
         (int)(fovea_version() & 255), text);

  const size_t planned = arena.used;
  double worst = 0;
  for (int64_t keys = kMostKeys - 20; keys <= kMostKeys; ++keys) {
    FillNumbers(q, sizeof(q) / sizeof(q[0]), (uint32_t)keys);
    MakeProblem(keys, &problem);
    if (fovea_plan_update(plan, &problem, &error) != FOVEA_OK) return Fail("update", &error);
    if (fovea_run(plan, &problem, workspace, sizeof(workspace), &executor, &error) != FOVEA_OK)
      return Fail("run", &error);
    worst = fmax(worst, Error(keys));
  }
  printf("arena     %zu bytes for the plan, %zu more for 21 tokens\nerror     %.2g\n", planned,
         arena.used - planned, worst);

  // A mistake is a code and a sentence.
  problem.v.shape[2] -= 1;
  if (fovea_run(plan, &problem, workspace, sizeof(workspace), &executor, &error) !=
      FOVEA_INVALID_ARGUMENT)
    return 1;
  printf("mistake   %s\n", error.message);
  fovea_plan_destroy(plan);
  return planned > 0 && arena.used == planned && worst <= 1e-5 ? 0 : 1;
}
