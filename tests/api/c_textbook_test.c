// The C interface from C: real problems, compared with a textbook loop in double. Exit code 0 if
// all agree.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_textbook.h"

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
