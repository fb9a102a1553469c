// Cases for the C interface in C, and what a textbook loop in double says about their results.
#ifndef FOVEA_TESTS_API_C_TEXTBOOK_H_
#define FOVEA_TESTS_API_C_TEXTBOOK_H_

#include <stdbool.h>
#include <stdint.h>

#include "fovea/c.h"

enum { kMostKeys = 400 };  // of a case

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

// What went wrong so far, and was printed.
extern int failures;

// Zeros; never null.
void* Memory(int64_t bytes);

Data MakeData(const Case* c);
void FreeData(Data* d);
// Makes the outputs NaN.
void SpoilOutputs(Data* d);
// The problem of all tensors of `d`, which it looks at.
void MakeProblem(Data* d, fovea_problem* p);

// Compares out, lse and weights with the textbook's.
void CheckResults(const Data* d);
// A call must have succeeded, with no message.
void Succeed(const char* name, const char* what, fovea_status status, const fovea_error* error);

#endif  // FOVEA_TESTS_API_C_TEXTBOOK_H_
