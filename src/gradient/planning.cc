#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "gradient/state.h"
#include "plan/arithmetic.h"
#include "views.h"

namespace fovea {
namespace {

// Scratch that stays in L2 beside a block of K and V.
constexpr size_t kScratchBytes = size_t{384} << 10;
// Additions to a sum, each of many terms, from which on what they lose is kept.
constexpr int64_t kMostPlainAdditions = 64;

int64_t KeysThatExist(const Problem& problem, const ProblemSizes& sizes, int64_t b) {
  const TensorView& starts = problem.cu_seqlens_k;
  return starts.present() ? ReadInteger(starts, b + 1) - ReadInteger(starts, b) : sizes.Tk;
}

Geometry GeometryOf(const GradientPlan::State& plan, int64_t chunk_rows) {
  const ProblemSizes& sizes = plan.forward.sizes;
  Geometry g;
  g.dk = sizes.dk;
  g.dv = sizes.dv;
  g.group = sizes.group();
  g.scales_heads = plan.forward.bound.score.head_scales.present();
  g.tile_rows = g.tile_lanes = plan.kernels->lanes;
  g.block_keys = static_cast<int32_t>(kGradientKeys);
  constexpr int64_t kMostTiles = 16;
  g.tiles = static_cast<int32_t>(std::clamp<int64_t>(chunk_rows / g.tile_rows, 1, kMostTiles));
  while (g.tiles > 1 && plan.kernels->scratch_bytes(g) > kScratchBytes) --g.tiles;
  return g;
}

SequenceGradients LaySequence(const GradientPlan::State& plan, const SequenceLengths& lengths,
                              int64_t keys) {
  const ProblemSizes& sizes = plan.forward.sizes;
  const int64_t lanes = plan.kernels->lanes;
  const int64_t rows = std::max<int64_t>(lengths.q_length * sizes.group(), 1);
  const int64_t with_sums = std::max<int64_t>(lengths.keys.end, 1);
  SequenceGradients s;
  s.keys = keys;
  s.chunks = std::clamp<int64_t>(std::min(rows, with_sums) / kLeastChunk, 1, kMostChunks);
  s.chunk_rows = RoundUp(CeilDiv(rows, s.chunks), lanes);
  s.chunk_keys = RoundUp(CeilDiv(with_sums, s.chunks), kGradientKeys);
  s.geometry = GeometryOf(plan, s.chunk_rows);
  const int64_t tiles = CeilDiv(rows, lanes), blocks = CeilDiv(with_sums, kGradientKeys);
  const int64_t group_keys = kGradientBlocks * kGradientKeys;
  const bool rests = CeilDiv(rows, s.geometry.tiles * lanes) > kMostPlainAdditions ||
                     s.chunks * CeilDiv(s.chunk_keys, group_keys) > kMostPlainAdditions;
  const int64_t dq = Times(Times(tiles, lanes), sizes.dk);
  const int64_t dk = Times(blocks, Times(kGradientKeys, plan.kernels->column_floats(sizes.dk)));
  const int64_t dv = Times(blocks, Times(kGradientKeys, plan.kernels->column_floats(sizes.dv)));
  if (rests) s.dq_rest = dq, s.dk_rest = dk, s.dv_rest = dv;
  const int64_t copies = rests ? 2 : 1;
  constexpr int64_t kAligned = WorkspaceLayout::kAlignment / sizeof(float);
  s.dq_at = RoundUp(Times(tiles, lanes), kAligned);  // delta first
  s.dk_at = Plus(s.dq_at, RoundUp(Times(copies, dq), kAligned));
  s.dv_at = Plus(s.dk_at, RoundUp(Times(copies, dk), kAligned));
  s.head_floats = Plus(s.dv_at, RoundUp(Times(copies, dv), kAligned));
  return s;
}

// How dbias is summed, from the bias's own axes.
BiasGradientPlan LayBias(const GradientProblem& problem, const ProblemSizes& sizes,
                         bool are_alike) {
  BiasGradientPlan bias;
  const TensorView& view = problem.forward.score.bias;
  if (!problem.dbias.present()) return bias;
  const int64_t full[4] = {sizes.B, sizes.Hq, sizes.Tq, sizes.Tk};
  int64_t size[4];
  bool shared[4], any = false;
  for (int a = 0; a < 4; ++a) {
    const int axis = view.rank - 4 + a;
    size[a] = axis < 0 ? 1 : view.shape[axis];
    shared[a] = size[a] == 1 && full[a] != 1;
    any = any || shared[a];
  }
  bias.rows = Times(Times(size[0], size[1]), size[2]);
  bias.sums = any;
  if (!any) return bias;
  int64_t stride = 1;
  for (int a = 3; a >= 0; --a) {
    bias.stride[a] = size[a] == 1 ? 0 : stride;
    stride = Times(stride, size[a]);
  }
  bias.elements = stride;
  bias.joins_sequences = shared[0];
  bias.joins_heads = shared[1];
  // Chunks of sequences that are not alike meet in the same rows and columns.
  bias.joins_chunks = (shared[2] && shared[3]) || ((shared[0] || shared[1]) && !are_alike);
  return bias;
}

void Add(GradientPlan::State* plan, GradientPhase::Kind kind, int64_t tasks, int64_t step = 0) {
  if (tasks > 0) plan->phase[plan->phases++] = {kind, tasks, step};
}

int64_t StepTasks(const GradientPlan::State& plan) {
  const BiasGradientPlan& bias = plan.bias;
  const ProblemSizes& sizes = plan.forward.sizes;
  if (!bias.joins_sequences && !bias.joins_heads && !bias.joins_chunks) return plan.tasks;
  if (plan.tasks == 0) return 0;
  return (bias.joins_sequences ? 1 : sizes.B) * (bias.joins_heads ? 1 : sizes.Hkv) *
         (bias.joins_chunks ? 1 : plan.most_chunks);
}

}  // namespace

size_t GradientPlan::State::Bytes(int workers) const {
  uint64_t bytes = WorkspaceLayout::kAlignment - 1, slices;
  const bool too_many =
      __builtin_mul_overflow(static_cast<uint64_t>(workers), worker_bytes, &slices) ||
      __builtin_add_overflow(bytes, workers_at, &bytes) ||
      __builtin_add_overflow(bytes, slices, &bytes) || bytes > SIZE_MAX;
  return too_many ? SIZE_MAX : static_cast<size_t>(bytes);
}

void LayGradients(const GradientProblem& problem, GradientPlan::State* plan) {
  Plan::State& forward = plan->forward;
  const ProblemSizes& sizes = forward.sizes;
  forward.workspace.partial_bytes = 0;  // nothing is split
  const bool empty = sizes.Hkv == 0;
  int64_t floats = 0, doubles = 0;
  bool are_alike = true;
  plan->sequences.clear();
  plan->tasks = 0;
  plan->most_chunks = 1;
  plan->worker_bytes = WorkspaceLayout::kAlignment;
  for (int64_t b = 0; b < sizes.B; ++b) {
    SequenceGradients s = LaySequence(*plan, forward.lengths[static_cast<size_t>(b)],
                                      KeysThatExist(problem.forward, sizes, b));
    s.first_float = floats;
    s.first_double = doubles;
    s.first_task = plan->tasks;
    if (!empty) {
      floats = Plus(floats, Times(sizes.Hkv, s.head_floats));
      doubles = Plus(doubles, Times(2 * s.chunks, sizes.Hq));
      plan->tasks = Plus(plan->tasks, Times(sizes.Hkv, s.chunks));
      plan->worker_bytes =
          std::max<uint64_t>(plan->worker_bytes, plan->kernels->scratch_bytes(s.geometry));
    }
    plan->most_chunks = std::max(plan->most_chunks, s.chunks);
    if (b > 0) {
      const SequenceGradients& first = plan->sequences.front();
      are_alike = are_alike && s.chunks == first.chunks && s.chunk_rows == first.chunk_rows &&
                  s.chunk_keys == first.chunk_keys;
    }
    plan->sequences.push_back(s);
  }
  plan->bias = LayBias(problem, sizes, are_alike);
  const auto aligned = [](int64_t n, size_t size) {
    return static_cast<uint64_t>(
        RoundUp(Times(n, static_cast<int64_t>(size)), WorkspaceLayout::kAlignment));
  };
  plan->floats_at = forward.workspace.map_bytes + forward.workspace.tree_bytes;
  plan->doubles_at = plan->floats_at + aligned(floats, sizeof(float));
  plan->bias_at = plan->doubles_at + aligned(doubles, sizeof(double));
  plan->workers_at = plan->bias_at + aligned(Times(2, plan->bias.elements), sizeof(float));

  plan->phases = 0;
  for (int n = 0; n < forward.phases; ++n) {
    const int64_t phase = forward.phase[n] - kPhases;
    if (phase < kPreparingPhases)
      Add(plan, GradientPhase::kForward, forward.phase[n]->tasks(forward), phase);
  }
  Add(plan, GradientPhase::kBegin, plan->tasks);
  Add(plan, GradientPhase::kBeginBias, plan->bias.rows);
  for (int64_t step = 0; step < plan->most_chunks; ++step)
    Add(plan, GradientPhase::kAdd, StepTasks(*plan), step);
  Add(plan, GradientPhase::kEnd, plan->tasks);
  Add(plan, GradientPhase::kEndBias, plan->bias.sums ? plan->bias.rows : 0);
  const bool of_heads = problem.dsinks.present() || problem.dhead_scales.present();
  Add(plan, GradientPhase::kEndHeads, of_heads ? sizes.Hq : 0);
}

std::string DescribeGradients(const GradientPlan::State& plan) {
  const ProblemSizes& z = plan.forward.sizes;
  char text[512];
  const SequenceGradients none;
  const SequenceGradients& s = plan.sequences.empty() ? none : plan.sequences.front();
  std::snprintf(text, sizeof(text),
                "gradients  B %" PRId64 "  Hq/Hkv %" PRId64 "/%" PRId64 "  Tq×Tk %" PRId64
                "×%" PRId64 "  dk/dv %" PRId64 "/%" PRId64
                "%s\n"
                "target     %s  product f32\n"
                "sequence 0  chunks %" PRId64 " of %" PRId64 " rows and %" PRId64
                " keys%s\n"
                "workspace  workers × %" PRIu64 " + %" PRIu64
                " bytes of sums, maps and trees (+ 63 to align)\n",
                z.B, z.Hq, z.Hkv, z.Tq, z.Tk, z.dk, z.dv,
                plan.bound.accumulate ? "  accumulating" : "", Name(plan.forward.target), s.chunks,
                s.chunk_rows, s.chunk_keys, s.dq_rest != 0 ? ", sums with rests" : "",
                plan.worker_bytes, plan.workers_at);
  return text;
}

}  // namespace fovea
