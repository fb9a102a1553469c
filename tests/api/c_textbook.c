#include "c_textbook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int failures = 0;

void* Memory(int64_t bytes) {
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

Data MakeData(const Case* c) {
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

void FreeData(Data* d) {
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

void MakeProblem(Data* d, fovea_problem* p) {
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

void CheckResults(const Data* d) {
  for (int64_t b = 0; b < d->c.B; ++b) {
    for (int64_t h = 0; h < d->c.Hq; ++h) {
      for (int64_t i = 0; i < d->c.Tq; ++i) CheckRow(d, b, h, i);
    }
  }
}

void SpoilOutputs(Data* d) {
  const Case* const c = &d->c;
  const int64_t rows = c->B * c->Hq * c->Tq;
  memset(d->out, 0xFF, (size_t)(rows * c->dv) * sizeof(float));  // NaN
  memset(d->lse, 0xFF, (size_t)rows * sizeof(float));
  memset(d->weights, 0xFF, (size_t)(rows * c->Tk) * sizeof(float));
}

void Succeed(const char* name, const char* what, fovea_status status, const fovea_error* error) {
  if (status == FOVEA_OK && error->message[0] == '\0') return;
  printf("%s: %s failed: %s\n", name, what, error->message);
  ++failures;
}
