// The C interface from C: real problems, compared with a textbook loop in double. Exit code 0 if
// all agree.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/c.h"

enum { kMostKeys = 400 };

typedef struct Case {
  const char* name;
  int64_t B, Hq, Hkv, Tq, Tk, dk, dv;
  fovea_causal causal;
  int64_t left, right;   // −1 = open
  float softcap, scale;  // 0 = the default
  bool alibi, bias, mask, mask_in_bits, lengths, sinks;
  bool function;  // adds the bias
} Case;

// All tensors of a case, dense. Null where it has none.
typedef struct Data {
  Case c;
  float *q, *k, *v, *out, *lse, *weights, *slopes, *bias, *sinks;
  unsigned char* mask;  // [Tq, Tk], bytes or bits
  int64_t mask_row;     // bytes of a row of it
  int32_t *q_lengths, *kv_lengths;
} Data;

static int failures = 0;

static void* Memory(int64_t bytes) {
  void* const memory = calloc(1, (size_t)bytes + 1);
  if (memory == NULL) abort();
  return memory;
}

// In [−1, 1), from a fixed sequence.
static float Number(uint32_t* seed) {
  *seed = *seed * 1664525u + 1013904223u;
  return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

static float* Numbers(int64_t count, uint32_t seed) {
  float* const numbers = Memory(count * (int64_t)sizeof(float));
  for (int64_t n = 0; n < count; ++n) numbers[n] = Number(&seed);
  return numbers;
}

static Data MakeData(const Case* c) {
  Data d;
  memset(&d, 0, sizeof(d));
  d.c = *c;
  d.q = Numbers(c->B * c->Hq * c->Tq * c->dk, 1);
  d.k = Numbers(c->B * c->Hkv * c->Tk * c->dk, 2);
  d.v = Numbers(c->B * c->Hkv * c->Tk * c->dv, 3);
  d.out = Memory(c->B * c->Hq * c->Tq * c->dv * (int64_t)sizeof(float));
  d.lse = Memory(c->B * c->Hq * c->Tq * (int64_t)sizeof(float));
  d.weights = Memory(c->B * c->Hq * c->Tq * c->Tk * (int64_t)sizeof(float));
  if (c->alibi) {
    d.slopes = Memory(c->Hq * (int64_t)sizeof(float));
    if (fovea_alibi_slopes(c->Hq, 8.0f, d.slopes, NULL) != FOVEA_OK) ++failures;
  }
  if (c->bias) d.bias = Numbers(c->Hq * c->Tq * c->Tk, 4);
  if (c->sinks) d.sinks = Numbers(c->Hq, 5);
  if (c->mask) {
    d.mask_row = c->mask_in_bits ? (c->Tk + 7) / 8 : c->Tk;
    d.mask = Memory(c->Tq * d.mask_row);
    uint32_t seed = 6;
    for (int64_t i = 0; i < c->Tq; ++i) {
      for (int64_t j = 0; j < c->Tk; ++j) {
        if (Number(&seed) > 0.4f) continue;
        if (c->mask_in_bits) {
          d.mask[i * d.mask_row + j / 8] |= (unsigned char)(1u << (j % 8));
        } else {
          d.mask[i * d.mask_row + j] = 1;
        }
      }
    }
  }
  if (c->lengths) {
    d.q_lengths = Memory(c->B * (int64_t)sizeof(int32_t));
    d.kv_lengths = Memory(c->B * (int64_t)sizeof(int32_t));
    for (int64_t b = 0; b < c->B; ++b) {
      d.q_lengths[b] = (int32_t)(c->Tq - (b * 3) % (c->Tq + 1));
      d.kv_lengths[b] = (int32_t)(c->Tk - (b * 7) % (c->Tk + 1));
    }
  }
  return d;
}

static void FreeData(Data* d) {
  void* const all[] = {d->q,      d->k,    d->v,     d->out,  d->lse,       d->weights,
                       d->slopes, d->bias, d->sinks, d->mask, d->q_lengths, d->kv_lengths};
  for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); ++n) free(all[n]);
}

static fovea_tensor Floats(const float* data, int32_t rank, const int64_t* shape) {
  return fovea_dense(data, FOVEA_F32, rank, shape);
}

// The bias by a score function, as far as it knows the struct.
static void AddBias(void* context, const fovea_score_block* block) {
  const Data* const d = context;
  if (block->size < sizeof(fovea_score_block)) abort();
  for (int64_t r = 0; r < block->rows; ++r) {
    const int64_t i = block->query_positions[r] - block->offset;
    const float* const bias = d->bias + (block->heads[r] * d->c.Tq + i) * d->c.Tk;
    for (int64_t c = 0; c < block->keys; ++c)
      block->scores[r * block->row_stride + c * block->key_stride] +=
          bias[block->first_key_position + c];
  }
}

static void MakeProblem(Data* d, fovea_problem* p) {
  const Case* const c = &d->c;
  const int64_t q[] = {c->B, c->Hq, c->Tq, c->dk}, k[] = {c->B, c->Hkv, c->Tk, c->dk},
                v[] = {c->B, c->Hkv, c->Tk, c->dv};
  const int64_t out[] = {c->B, c->Hq, c->Tq, c->dv}, pairs[] = {c->B, c->Hq, c->Tq, c->Tk};
  fovea_problem_init(p);
  p->q = Floats(d->q, 4, q);
  p->k = Floats(d->k, 4, k);
  p->v = Floats(d->v, 4, v);
  p->out = Floats(d->out, 4, out);
  p->lse = Floats(d->lse, 3, out);
  p->weights = Floats(d->weights, 4, pairs);
  p->causal = c->causal;
  p->softcap = c->softcap;
  if (c->left >= 0 || c->right >= 0) {
    p->has_window = 1;
    p->window_left = c->left;
    p->window_right = c->right;
  }
  if (c->scale != 0) {
    p->has_scale = 1;
    p->scale = c->scale;
  }
  if (c->alibi) p->alibi_slopes = Floats(d->slopes, 1, &c->Hq);
  if (c->bias && !c->function) p->bias = Floats(d->bias, 3, pairs + 1);
  if (c->bias && c->function) {
    p->score_function = AddBias;
    p->score_context = d;
  }
  if (c->sinks) p->sinks = Floats(d->sinks, 1, &c->Hq);
  if (c->mask)
    p->mask = fovea_dense(d->mask, c->mask_in_bits ? FOVEA_BIT : FOVEA_BOOL, 2, pairs + 2);
  if (c->lengths) {
    p->q_lengths = fovea_dense(d->q_lengths, FOVEA_I32, 1, &c->B);
    p->kv_lengths = fovea_dense(d->kv_lengths, FOVEA_I32, 1, &c->B);
  }
}

static void Expect(const char* name, const char* what, int64_t row, double given, double expected,
                   double bound) {
  if ((isinf(expected) && given == expected) || fabs(given - expected) <= bound) return;
  if (failures++ < 20)
    printf("%s: %s of row %lld is %.9g, expected %.9g\n", name, what, (long long)row, given,
           expected);
}

// Row (b, h, i) by the formula of fovea/score.h, in its order.
static void CheckRow(const Data* d, int64_t b, int64_t h, int64_t i) {
  const Case* const c = &d->c;
  const int64_t row = (b * c->Hq + h) * c->Tq + i, kv = b * c->Hkv + h / (c->Hq / c->Hkv);
  const int64_t queries = c->lengths ? d->q_lengths[b] : c->Tq,
                keys = c->lengths ? d->kv_lengths[b] : c->Tk;
  const int64_t offset = c->causal == FOVEA_CAUSAL_BOTTOM_RIGHT ? keys - queries : 0;
  const double scale = c->scale != 0 ? c->scale : 1.0 / sqrt((double)c->dk);
  double p[kMostKeys], m = -INFINITY, most_score = 0, most_v = 0;
  for (int64_t j = 0; j < c->Tk; ++j) {
    p[j] = -INFINITY;
    bool visible = i < queries && j < keys;
    if (c->causal != FOVEA_CAUSAL_NONE && j > i + offset) visible = false;
    if (c->left >= 0 && j < i + offset - c->left) visible = false;
    if (c->right >= 0 && j > i + offset + c->right) visible = false;
    if (c->mask) {
      const unsigned char* const mask = d->mask + i * d->mask_row;
      visible = visible && (c->mask_in_bits ? (mask[j / 8] >> (j % 8)) & 1 : mask[j]) != 0;
    }
    if (!visible) continue;
    double s = 0, partial = 0;
    for (int64_t x = 0; x < c->dk; ++x) {
      const double product =
          scale * (double)d->q[row * c->dk + x] * (double)d->k[(kv * c->Tk + j) * c->dk + x];
      s += product;
      partial += fabs(product);
    }
    if (c->softcap > 0) s = c->softcap * tanh(s / c->softcap);
    if (c->alibi) {
      const double distance = fabs((double)(i + offset - j));
      s -= (double)d->slopes[h] * distance;
      partial += (double)d->slopes[h] * distance;
    }
    if (c->bias) s += (double)d->bias[(h * c->Tq + i) * c->Tk + j];
    p[j] = s;
    m = fmax(m, s);
    most_score = fmax(most_score, partial + 1);
    for (int64_t x = 0; x < c->dv; ++x)
      most_v = fmax(most_v, fabs((double)d->v[(kv * c->Tk + j) * c->dv + x]));
  }
  const bool sink = c->sinks && i < queries;
  if (sink) m = fmax(m, d->sinks[h]);
  double denominator = sink ? exp((double)d->sinks[h] - m) : 0;
  for (int64_t j = 0; j < c->Tk; ++j) {
    if (p[j] == -INFINITY) {
      p[j] = 0;
      continue;
    }
    p[j] = exp(p[j] - m);
    denominator += p[j];
  }
  const double t = fmax(1e-5, 8 * ldexp(1, -24) * most_score);  // the contract's precision
  const double lse = denominator > 0 ? m + log(denominator) : -INFINITY;
  Expect(c->name, "lse", row, d->lse[row], lse, t + 1e-5 * fabs(lse));
  for (int64_t j = 0; j < c->Tk; ++j)
    Expect(c->name, "weight", row, d->weights[row * c->Tk + j],
           denominator > 0 ? p[j] / denominator : 0, t);
  for (int64_t x = 0; x < c->dv; ++x) {
    double o = 0;
    for (int64_t j = 0; j < c->Tk; ++j) o += p[j] * (double)d->v[(kv * c->Tk + j) * c->dv + x];
    Expect(c->name, "out", row, d->out[row * c->dv + x], denominator > 0 ? o / denominator : 0,
           t * most_v);
  }
}

static void CheckResults(const Data* d) {
  for (int64_t b = 0; b < d->c.B; ++b) {
    for (int64_t h = 0; h < d->c.Hq; ++h) {
      for (int64_t i = 0; i < d->c.Tq; ++i) CheckRow(d, b, h, i);
    }
  }
}

static void SpoilOutputs(Data* d) {
  const Case* const c = &d->c;
  const int64_t rows = c->B * c->Hq * c->Tq;
  memset(d->out, 0xFF, (size_t)(rows * c->dv) * sizeof(float));  // NaN
  memset(d->lse, 0xFF, (size_t)rows * sizeof(float));
  memset(d->weights, 0xFF, (size_t)(rows * c->Tk) * sizeof(float));
}

static void Succeed(const char* name, const char* what, fovea_status status,
                    const fovea_error* error) {
  if (status == FOVEA_OK && error->message[0] == '\0') return;
  printf("%s: %s failed: %s\n", name, what, error->message);
  ++failures;
}

// The tasks of a phase from the last to the first.
static void Backwards(void* context, int64_t tasks, fovea_task run, void* task_context) {
  (void)context;
  for (int64_t n = tasks; n-- > 0;) run(task_context, n, (int32_t)(n % 2));
}

// One shot, a planned run with the host's loop, and a bound call task by task.
static void RunCase(const Case* c) {
  Data d = MakeData(c);
  fovea_problem problem;
  fovea_error error;
  fovea_executor executor;
  fovea_plan* plan = NULL;
  MakeProblem(&d, &problem);

  SpoilOutputs(&d);
  Succeed(c->name, "fovea_attention", fovea_attention(&problem, NULL, NULL, &error), &error);
  CheckResults(&d);

  Succeed(c->name, "fovea_plan_create", fovea_plan_create(&problem, NULL, &plan, &error), &error);
  const size_t bytes = fovea_plan_workspace_bytes(plan, 2);
  void* const workspace = Memory((int64_t)bytes);
  fovea_executor_init(&executor);
  executor.workers = 2;
  executor.for_each = Backwards;
  SpoilOutputs(&d);
  Succeed(c->name, "fovea_run", fovea_run(plan, &problem, workspace, bytes, &executor, &error),
          &error);
  CheckResults(&d);

  fovea_call* call = NULL;
  SpoilOutputs(&d);
  Succeed(c->name, "fovea_bind", fovea_bind(plan, &problem, workspace, bytes, 2, &call, &error),
          &error);
  for (int32_t phase = 0; phase < fovea_call_phases(call); ++phase) {
    for (int64_t task = 0; task < fovea_call_tasks(call, phase); ++task) {
      if (fovea_call_run_task(call, phase, task, (int32_t)(task % 2)) != FOVEA_OK) ++failures;
    }
  }
  CheckResults(&d);

  fovea_plan_destroy(plan);
  free(workspace);
  FreeData(&d);
}

// Attention over all keys is the merge of attention over the first and over the last ones.
static void MergeHalves(void) {
  const Case c = {.name = "merge",
                  .B = 1,
                  .Hq = 2,
                  .Hkv = 1,
                  .Tq = 5,
                  .Tk = 90,
                  .dk = 16,
                  .dv = 8,
                  .left = -1,
                  .right = -1};
  Data d = MakeData(&c);
  fovea_problem problem;
  fovea_error error;
  fovea_partial_state parts[2];
  float* memory[4];
  MakeProblem(&d, &problem);
  memset(&problem.weights, 0, sizeof(problem.weights));
  const fovea_tensor whole_out = problem.out, whole_lse = problem.lse;
  for (int half = 0; half < 2; ++half) {
    fovea_problem part = problem;
    const int64_t first = half == 0 ? 0 : 37, keys = half == 0 ? 37 : c.Tk - 37;
    memory[2 * half] = Memory(c.Hq * c.Tq * c.dv * (int64_t)sizeof(float));
    memory[2 * half + 1] = Memory(c.Hq * c.Tq * (int64_t)sizeof(float));
    part.k.shape[2] = part.v.shape[2] = keys;
    part.k.data = d.k + first * c.dk;
    part.v.data = d.v + first * c.dv;
    part.out.data = memory[2 * half];
    part.lse.data = memory[2 * half + 1];
    Succeed(c.name, "fovea_attention", fovea_attention(&part, NULL, NULL, &error), &error);
    parts[half].out = part.out;
    parts[half].lse = part.lse;
  }
  SpoilOutputs(&d);
  Succeed(c.name, "fovea_merge", fovea_merge(parts, 2, &whole_out, &whole_lse, &error), &error);
  float* const merged_out = Memory(c.Hq * c.Tq * c.dv * (int64_t)sizeof(float));
  memcpy(merged_out, d.out, (size_t)(c.Hq * c.Tq * c.dv) * sizeof(float));
  // The loop checks the weights as well: those of the whole.
  fovea_tensor out = problem.out;
  problem.weights = fovea_dense(d.weights, FOVEA_F32, 4, (const int64_t[]){c.B, c.Hq, c.Tq, c.Tk});
  float* const lse = Memory(c.Hq * c.Tq * (int64_t)sizeof(float));
  memcpy(lse, d.lse, (size_t)(c.Hq * c.Tq) * sizeof(float));
  Succeed(c.name, "fovea_attention", fovea_attention(&problem, NULL, NULL, &error), &error);
  memcpy(out.data, merged_out, (size_t)(c.Hq * c.Tq * c.dv) * sizeof(float));
  memcpy(d.lse, lse, (size_t)(c.Hq * c.Tq) * sizeof(float));
  CheckResults(&d);
  for (int n = 0; n < 4; ++n) free(memory[n]);
  free(merged_out);
  free(lse);
  FreeData(&d);
}

int main(void) {
  const Case cases[] = {
      {.name = "plain",
       .B = 1,
       .Hq = 2,
       .Hkv = 2,
       .Tq = 33,
       .Tk = 70,
       .dk = 24,
       .dv = 24,
       .left = -1,
       .right = -1},
      {.name = "causal",
       .B = 2,
       .Hq = 6,
       .Hkv = 2,
       .Tq = 37,
       .Tk = 61,
       .dk = 17,
       .dv = 9,
       .causal = FOVEA_CAUSAL_BOTTOM_RIGHT,
       .left = 20,
       .right = -1,
       .lengths = true},
      {.name = "scores",
       .B = 2,
       .Hq = 3,
       .Hkv = 3,
       .Tq = 21,
       .Tk = 65,
       .dk = 32,
       .dv = 40,
       .left = -1,
       .right = 30,
       .softcap = 2,
       .scale = -0.5f,
       .alibi = true,
       .bias = true,
       .mask = true,
       .sinks = true},
      {.name = "bits",
       .B = 1,
       .Hq = 2,
       .Hkv = 1,
       .Tq = 30,
       .Tk = 99,
       .dk = 8,
       .dv = 8,
       .causal = FOVEA_CAUSAL_TOP_LEFT,
       .left = -1,
       .right = -1,
       .mask = true,
       .mask_in_bits = true},
      {.name = "decode",
       .B = 3,
       .Hq = 8,
       .Hkv = 2,
       .Tq = 1,
       .Tk = 400,
       .dk = 64,
       .dv = 64,
       .left = -1,
       .right = -1,
       .lengths = true},
      {.name = "function",
       .B = 2,
       .Hq = 6,
       .Hkv = 2,
       .Tq = 37,
       .Tk = 61,
       .dk = 16,
       .dv = 9,
       .causal = FOVEA_CAUSAL_BOTTOM_RIGHT,
       .left = -1,
       .right = -1,
       .bias = true,
       .lengths = true,
       .function = true},
  };
  if (fovea_version() !=
      (FOVEA_VERSION_MAJOR << 16 | FOVEA_VERSION_MINOR << 8 | FOVEA_VERSION_PATCH)) {
    printf("the library is of another version than its header\n");
    ++failures;
  }
  for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); ++n) RunCase(&cases[n]);
  MergeHalves();
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
