// Uses the package from C: exit code 0 if attention over constant values gives the constant. With
// an argument: and if the library was compiled for exactly the targets named there, the most
// capable first, for example "avx2 sse2".
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "fovea/c.h"

enum { kHeads = 2, kTokens = 33, kSize = 16, kNumbers = kHeads * kTokens * kSize };

static float q[kNumbers], k[kNumbers], v[kNumbers], out[kNumbers];

static int HasTargets(const char* expected) {
  fovea_target targets[16];
  char names[256] = "";
  const size_t count = fovea_compiled_targets(targets, 16);
  for (size_t n = 0; n < count && n < 16; ++n) {
    if (n > 0) strcat(names, " ");
    strcat(names, fovea_target_name(targets[n]));
  }
  printf("compiled: %s\n", names);
  return strcmp(names, expected) == 0;
}

int main(int argc, char** argv) {
  const int64_t shape[] = {1, kHeads, kTokens, kSize};
  fovea_problem problem;
  fovea_error error;
  for (int n = 0; n < kNumbers; ++n) {
    q[n] = 0.25f;
    k[n] = 0.5f;
    v[n] = 1.5f;
  }
  fovea_problem_init(&problem);
  problem.q = fovea_dense(q, FOVEA_F32, 4, shape);
  problem.k = fovea_dense(k, FOVEA_F32, 4, shape);
  problem.v = fovea_dense(v, FOVEA_F32, 4, shape);
  problem.out = fovea_dense(out, FOVEA_F32, 4, shape);
  problem.causal = FOVEA_CAUSAL_TOP_LEFT;
  if (fovea_attention(&problem, NULL, NULL, &error) != FOVEA_OK) {
    printf("%s\n", error.message);
    return 1;
  }
  for (int n = 0; n < kNumbers; ++n) {
    if (!(fabsf(out[n] - 1.5f) <= 1e-5f)) {
      printf("%g, expected 1.5\n", (double)out[n]);
      return 1;
    }
  }
  if (argc > 1 && !HasTargets(argv[1])) return 1;
  printf("C: ok\n");
  return 0;
}
