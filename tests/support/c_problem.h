// What callers of the C interface have: problems of the C++ interface as structs, plans, a host.
#ifndef FOVEA_TESTS_SUPPORT_C_PROBLEM_H_
#define FOVEA_TESTS_SUPPORT_C_PROBLEM_H_

#include <memory>

#include "fovea/attention.h"
#include "fovea/c.h"

namespace fovea::test {

template <class View>
fovea_tensor ToC(const View& view) {
  fovea_tensor tensor = {};
  tensor.data = const_cast<void*>(static_cast<const void*>(view.data));
  tensor.dtype = static_cast<fovea_dtype>(view.dtype);
  tensor.rank = view.rank;
  for (int a = 0; a < kMaxRank; ++a)
    tensor.shape[a] = view.shape[a], tensor.stride[a] = view.stride[a];
  return tensor;
}

inline fovea_problem ToC(const Problem& problem) {
  const Score& score = problem.score;
  fovea_problem p;
  fovea_problem_init(&p);
  p.q = ToC(problem.q), p.k = ToC(problem.k), p.v = ToC(problem.v);
  p.out = ToC(problem.out), p.lse = ToC(problem.lse), p.weights = ToC(problem.weights),
  p.scores = ToC(problem.scores);
  p.cu_seqlens_q = ToC(problem.cu_seqlens_q), p.cu_seqlens_k = ToC(problem.cu_seqlens_k);
  p.alibi_slopes = ToC(score.alibi_slopes), p.bias = ToC(score.bias), p.mask = ToC(score.mask),
  p.parents = ToC(score.parents);
  p.block_map = ToC(score.block_map.visible);
  p.block_map_queries = score.block_map.queries, p.block_map_keys = score.block_map.keys;
  p.query_offsets = ToC(score.query_offsets), p.q_lengths = ToC(score.q_lengths),
  p.kv_lengths = ToC(score.kv_lengths);
  p.sinks = ToC(score.sinks);
  p.has_window = 1, p.window_left = score.window.left, p.window_right = score.window.right;
  p.has_query_offset = score.query_offset.has_value(),
  p.query_offset = score.query_offset.value_or(77);
  p.has_scale = score.scale.has_value(), p.scale = score.scale.value_or(77);
  p.softcap = score.softcap;
  p.causal = static_cast<fovea_causal>(score.causal);
  p.score_stage = static_cast<fovea_score_stage>(problem.score_stage);
  p.head_scales = ToC(score.head_scales), p.bias_scales = ToC(score.bias_scales),
  p.key_ranges = ToC(score.key_ranges);
  p.key_offsets = ToC(score.key_offsets);
  p.page_table = ToC(problem.pages.table), p.page_begins = ToC(problem.pages.begins);
  p.page_keys = problem.pages.keys;
  p.ring = problem.ring;
  p.score_function = score.function.apply, p.score_context = score.function.context;
  return p;
}

inline fovea_plan_options ToC(const PlanOptions& options) {
  fovea_plan_options o;
  fovea_plan_options_init(&o);
  o.target = static_cast<fovea_target>(options.target);
  o.engine = static_cast<fovea_engine>(options.engine);
  o.product = static_cast<fovea_product>(options.product);
  o.max_queries = options.max_queries, o.max_keys = options.max_keys;
  o.fixed_mask = options.fixed_mask, o.fixed_tables = options.fixed_tables;
  o.tile_rows = options.tile_rows, o.block_keys = options.block_keys,
  o.split_keys = options.split_keys;
  return o;
}

struct DestroyPlan {
  void operator()(fovea_plan* plan) const { fovea_plan_destroy(plan); }
};
using OwnedPlan = std::unique_ptr<fovea_plan, DestroyPlan>;

// A host that runs tasks from the last to the first as three workers.
inline void Backwards(void* calls, int64_t tasks, fovea_task run, void* task_context) {
  ++*static_cast<int*>(calls);
  for (int64_t n = tasks; n-- > 0;) run(task_context, n, static_cast<int32_t>(n % 3));
}

inline fovea_executor HostLoop(int* calls) {
  fovea_executor executor;
  fovea_executor_init(&executor);
  executor.context = calls;
  executor.for_each = Backwards;
  executor.workers = 3;
  return executor;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_C_PROBLEM_H_
