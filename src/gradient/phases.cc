#include <algorithm>
#include <cstring>

#include "gradient/state.h"
#include "plan/phases.h"

namespace fovea {
namespace {

template <class T>
T* At(const GradientRun& run, uint64_t bytes) {
  return reinterpret_cast<T*>(run.workspace + bytes);
}

RunContext ForwardOf(const GradientRun& run) {
  const Plan::State& plan = run.plan->forward;
  const Problem& problem = run.problem->forward;
  return {&plan, &problem, run.workspace, ScaleOf(plan, problem)};
}

GradientCall CallOf(const GradientRun& run, const SequenceGradients& s) {
  const BiasGradientPlan& bias = run.plan->bias;
  GradientCall call;
  call.forward = CallOf(ForwardOf(run), s.geometry);
  call.problem = run.problem;
  if (bias.sums) {
    call.bias.sums = At<float>(run, run.plan->bias_at);
    call.bias.rest = bias.elements;
    std::copy_n(bias.stride, 4, call.bias.stride);
  }
  return call;
}

// The rows of chunk `rows` and the keys of chunk `keys` of KV head `head` of sequence b.
GradientItem ItemOf(const GradientRun& run, int64_t b, int64_t head, int64_t rows, int64_t keys) {
  const GradientPlan::State& plan = *run.plan;
  const SequenceGradients& s = plan.sequences[static_cast<size_t>(b)];
  const int64_t group = plan.forward.sizes.group();
  GradientItem item;
  item.chunk = rows;
  item.forward.sequence = b;
  item.forward.kv_head = head;
  item.forward.first_row = rows * s.chunk_rows;
  item.forward.keys.first = keys * s.chunk_keys;
  float* const floats = At<float>(run, plan.floats_at) + s.first_float + head * s.head_floats;
  item.sums.delta = floats;
  item.sums.dq = floats + s.dq_at;
  item.sums.dk = floats + s.dk_at;
  item.sums.dv = floats + s.dv_at;
  item.sums.dq_rest = s.dq_rest;
  item.sums.dk_rest = s.dk_rest;
  item.sums.dv_rest = s.dv_rest;
  double* const doubles =
      At<double>(run, plan.doubles_at) + s.first_double + head * 2 * s.chunks * group;
  item.sums.sinks = doubles;
  item.sums.head_scales = doubles + s.chunks * group;
  return item;
}

// To the ends of their chunks; the last chunks have everything behind the lengths too.
void WithAllRowsAndKeys(const GradientRun& run, GradientItem* item) {
  const GradientPlan::State& plan = *run.plan;
  Item& forward = item->forward;
  const SequenceGradients& s = plan.sequences[static_cast<size_t>(forward.sequence)];
  const int64_t all = plan.forward.lengths[static_cast<size_t>(forward.sequence)].queries *
                      plan.forward.sizes.group();
  const bool last = item->chunk == s.chunks - 1;
  forward.rows = std::max<int64_t>(
      0, (last ? all : std::min(all, forward.first_row + s.chunk_rows)) - forward.first_row);
  forward.keys.end = last ? s.keys : std::min(s.keys, forward.keys.first + s.chunk_keys);
  forward.keys.first = std::min(forward.keys.first, forward.keys.end);
}

// f(item) of a task of begin or end.
template <class F>
void WithChunk(const GradientRun& run, int64_t task, const F& f) {
  const auto& sequences = run.plan->sequences;
  // Sequences without tasks share their first one with the next, which upper_bound steps over.
  const auto s =
      std::upper_bound(sequences.begin(), sequences.end(), task,
                       [](int64_t t, const SequenceGradients& x) { return t < x.first_task; }) -
      1;
  const int64_t index = task - s->first_task;
  const int64_t chunk = index % s->chunks;
  f(*s, ItemOf(run, s - sequences.begin(), index / s->chunks, chunk, chunk));
}

void Begin(const GradientRun& run, int64_t task, char* scratch) {
  WithChunk(run, task, [&](const SequenceGradients& s, GradientItem item) {
    WithAllRowsAndKeys(run, &item);
    const int64_t group = run.plan->forward.sizes.group();
    std::fill_n(item.sums.sinks + item.chunk * group, group, 0.0);
    std::fill_n(item.sums.head_scales + item.chunk * group, group, 0.0);
    run.plan->kernels->begin(CallOf(run, s), item, scratch);
  });
}

void End(const GradientRun& run, int64_t task, char* scratch) {
  WithChunk(run, task, [&](const SequenceGradients& s, GradientItem item) {
    WithAllRowsAndKeys(run, &item);
    run.plan->kernels->end(CallOf(run, s), item, scratch);
  });
}

// The pairs of a chunk of the keys in one step.
void AddChunk(const GradientRun& run, int64_t b, int64_t head, int64_t chunk, int64_t step,
              char* scratch) {
  const GradientPlan::State& plan = *run.plan;
  const SequenceGradients& s = plan.sequences[static_cast<size_t>(b)];
  const SequenceLengths& lengths = plan.forward.lengths[static_cast<size_t>(b)];
  if (chunk >= s.chunks || step >= s.chunks) return;
  GradientItem item = ItemOf(run, b, head, (chunk + step) % s.chunks, chunk);
  Item& forward = item.forward;
  const int64_t rows = lengths.q_length * plan.forward.sizes.group();
  forward.rows = std::min(rows, forward.first_row + s.chunk_rows) - forward.first_row;
  forward.keys.end = std::min(lengths.kv_length(), forward.keys.first + s.chunk_keys);
  if (forward.rows > 0 && forward.keys.first < forward.keys.end)
    plan.kernels->add(CallOf(run, s), item, scratch);
}

void AddStep(const GradientRun& run, int64_t task, int64_t step, char* scratch) {
  const GradientPlan::State& plan = *run.plan;
  const BiasGradientPlan& bias = plan.bias;
  if (!bias.joins_sequences && !bias.joins_heads && !bias.joins_chunks) {
    WithChunk(run, task, [&](const SequenceGradients&, const GradientItem& item) {
      AddChunk(run, item.forward.sequence, item.forward.kv_head, item.chunk, step, scratch);
    });
    return;
  }
  struct Range {
    int64_t first, end;
  };
  // Takes one of n, or all of them, off the task's number.
  const auto take = [&task](int64_t n, bool all) {
    if (all) return Range{0, n};
    const int64_t one = task % n;
    task /= n;
    return Range{one, one + 1};
  };
  const Range chunks = take(plan.most_chunks, bias.joins_chunks);
  const Range heads = take(plan.forward.sizes.Hkv, bias.joins_heads);
  const Range sequences = take(plan.forward.sizes.B, bias.joins_sequences);
  for (int64_t b = sequences.first; b < sequences.end; ++b) {
    for (int64_t head = heads.first; head < heads.end; ++head) {
      for (int64_t chunk = chunks.first; chunk < chunks.end; ++chunk)
        AddChunk(run, b, head, chunk, step, scratch);
    }
  }
}

// A row of dbias along its last axis: zeros, or its sums.
void BiasRow(const GradientRun& run, int64_t row, bool ends, char* scratch) {
  const GradientPlan::State& plan = *run.plan;
  if (ends || !plan.bias.sums) {
    plan.kernels->bias_row(*run.problem, row, ends ? At<float>(run, plan.bias_at) : nullptr,
                           plan.bias.elements, scratch);
    return;
  }
  const int64_t n = plan.bias.elements / plan.bias.rows;
  float* const sums = At<float>(run, plan.bias_at) + row * n;
  std::fill_n(sums, n, 0.0f);
  std::fill_n(sums + plan.bias.elements, n, 0.0f);
}

// dsinks and dhead_scales of query head h.
void EndHead(const GradientRun& run, int64_t h) {
  const GradientPlan::State& plan = *run.plan;
  const int64_t group = plan.forward.sizes.group();
  double sinks = 0, scales = 0;
  for (int64_t b = 0; b < plan.forward.sizes.B; ++b) {
    const GradientItem item = ItemOf(run, b, h / group, 0, 0);
    for (int64_t chunk = 0; chunk < plan.sequences[static_cast<size_t>(b)].chunks; ++chunk) {
      sinks += item.sums.sinks[chunk * group + h % group];
      scales += item.sums.head_scales[chunk * group + h % group];
    }
  }
  const auto store = [&](const MutableTensorView& view, double sum) {
    if (!view.present()) return;
    char* const to = static_cast<char*>(view.data) + h * view.stride[0];
    float old = 0;
    if (run.problem->accumulate) std::memcpy(&old, to, sizeof(old));
    const float value = static_cast<float>(sum + static_cast<double>(old));
    std::memcpy(to, &value, sizeof(value));
  };
  store(run.problem->dsinks, sinks);
  store(run.problem->dhead_scales, scales);
}

}  // namespace

void RunGradientTask(const GradientRun& run, int n, int64_t task, int worker) noexcept {
  const GradientPlan::State& plan = *run.plan;
  const GradientPhase& phase = plan.phase[n];
  char* const scratch =
      run.workspace + plan.workers_at + static_cast<uint64_t>(worker) * plan.worker_bytes;
  switch (phase.kind) {
    case GradientPhase::kForward:
      return kPhases[phase.step].run(ForwardOf(run), task, worker);
    case GradientPhase::kBegin:
      return Begin(run, task, scratch);
    case GradientPhase::kBeginBias:
      return BiasRow(run, task, false, scratch);
    case GradientPhase::kAdd:
      return AddStep(run, task, phase.step, scratch);
    case GradientPhase::kEnd:
      return End(run, task, scratch);
    case GradientPhase::kEndBias:
      return BiasRow(run, task, true, scratch);
    case GradientPhase::kEndHeads:
      return EndHead(run, task);
  }
}

}  // namespace fovea
