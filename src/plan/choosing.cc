#include "plan/choosing.h"

#include <algorithm>
#include <cinttypes>

#include "kernels/registry.h"
#include "plan/arithmetic.h"

namespace fovea {
namespace {

// A tile-engine item has few enough tiles for a worker's scratch to stay in L2 beside K and V: at
// usual head sizes (EngineKernels::usual_scratch), and at any.
constexpr int64_t kUsualHead = 128;
constexpr size_t kScratchBytes = size_t{1} << 20;
// Up to half a vector of stacked rows, but at least four, streaming K and V with lanes along the
// head dimension beats lanes that hold queries: a tile would leave half of its lanes empty. Twice
// the rows reverse it, on AVX2 and AVX-512 alike.
constexpr int64_t kLeastRowEngineRows = 4;
// A split streams about this much of K and V, so that its partial state and its task cost nothing
// next to it …
constexpr int64_t kSplitBytes = int64_t{1} << 20;
constexpr int64_t kLeastSplitKeys = 512;
// … and there are at most this many, so that partial states stay small next to K and V.
constexpr int64_t kMostSplits = 32;

Engine ChooseEngine(const Plan::State& plan, int64_t rows) {
  if (plan.options.engine != Engine::kAuto) return plan.options.engine;
  if (plan.options.product == Product::kBF16) return Engine::kTile;
  const int64_t lanes = FindKernels(plan.target, Engine::kTile, Product::kF32)->min_tile_rows;
  return rows <= std::max(lanes / 2, kLeastRowEngineRows) ? Engine::kRow : Engine::kTile;
}

bool AllAreBF16(const Plan::State& plan) {
  return plan.bound.q.dtype == DType::kBF16 && plan.bound.k.dtype == DType::kBF16 &&
         plan.bound.v.dtype == DType::kBF16;
}

Product ChooseProduct(const Plan::State& plan, Engine engine) {
  if (plan.options.product != Product::kAuto) return plan.options.product;
  return engine == Engine::kTile && AllAreBF16(plan) && IsNativeProduct(plan.target, Product::kBF16)
             ? Product::kBF16
             : Product::kF32;
}

}  // namespace

Status CheckOptions(const PlanOptions& o) noexcept {
  if (o.engine < Engine::kAuto || o.engine > Engine::kRow) {
    return Invalid("options.engine = %d, expected 0 (auto), 1 (tile) or 2 (row)",
                   static_cast<int>(o.engine));
  }
  if (o.product < Product::kAuto || o.product > Product::kBF16) {
    return Invalid("options.product = %d, expected 0 (auto), 1 (f32) or 2 (bf16)",
                   static_cast<int>(o.product));
  }
  const struct {
    const char* name;
    int64_t value;
  } counts[] = {{"max_queries", o.max_queries},
                {"max_keys", o.max_keys},
                {"tile_rows", o.tile_rows},
                {"block_keys", o.block_keys},
                {"split_keys", o.split_keys}};
  for (const auto& count : counts) {
    if (count.value < 0)
      return Invalid("options.%s = %" PRId64 ", expected 0 (the plan's choice) or greater",
                     count.name, count.value);
  }
  if ((o.allocator.allocate == nullptr) != (o.allocator.release == nullptr)) {
    return Invalid("options.allocator.%s = null, expected both functions or none",
                   o.allocator.allocate == nullptr ? "allocate" : "release");
  }
  return Status();
}

Status CheckProduct(const Plan::State& plan) noexcept {
  if (plan.options.product != Product::kBF16) return Status();
  if (!AllAreBF16(plan)) {
    return Invalid("options.product = bf16, expected bf16 for q, k and v, which are %s, %s and %s",
                   Name(plan.bound.q.dtype), Name(plan.bound.k.dtype), Name(plan.bound.v.dtype));
  }
  if (plan.options.engine == Engine::kRow)
    return Invalid("options.product = bf16, expected f32 with options.engine = row");
  if (!HasProduct(plan.target, Product::kBF16)) {
    return Unsupported(
        "options.product = bf16, expected f32 for target %s, which has no dot products of bf16",
        Name(plan.target));
  }
  return Status();
}

SequencePlan PlanSequence(const Plan::State& plan, int64_t b) noexcept {
  const PlanOptions& options = plan.options;
  const ProblemSizes& sizes = plan.sizes;
  const SequenceLengths& lengths = plan.lengths[static_cast<size_t>(b)];
  const int64_t rows = lengths.q_length * sizes.group();
  // Positions, not keys: what an evicted cache or a ring has dropped counts.
  const int64_t keys = std::max<int64_t>(lengths.keys.end, 1);

  SequencePlan s;
  s.sequence = b;
  s.engine = ChooseEngine(plan, rows);
  s.product = ChooseProduct(plan, s.engine);
  s.kernels = FindKernels(plan.target, s.engine, s.product);
  const bool is_tile = s.engine == Engine::kTile;

  Geometry& g = s.geometry;
  g.dk = sizes.dk;
  g.dv = sizes.dv;
  g.group = sizes.group();
  g.scales_heads = plan.bound.score.head_scales.present();
  const int64_t min_rows = s.kernels->min_tile_rows;
  int64_t tile_rows = is_tile ? (rows <= min_rows ? min_rows : s.kernels->max_tile_rows)
                              : std::clamp<int64_t>(rows, 1, s.kernels->max_tile_rows);
  g.tile_lanes =
      static_cast<int32_t>(tile_rows == 1 ? 1 : RoundUp(tile_rows, s.kernels->row_lanes));
  if (options.tile_rows > 0) tile_rows = std::min<int64_t>(tile_rows, options.tile_rows);
  g.tile_rows = static_cast<int32_t>(tile_rows);
  g.block_keys = s.kernels->block_keys;
  if (options.block_keys > 0) g.block_keys = std::min(g.block_keys, options.block_keys);
  g.block_keys = static_cast<int32_t>(std::min<int64_t>(g.block_keys, RoundUp(keys, 16)));
  const int64_t most_tiles =
      is_tile ? std::max(s.kernels->item_rows / s.kernels->max_tile_rows, 1) : 1;
  g.tiles = static_cast<int32_t>(std::clamp<int64_t>(CeilDiv(rows, tile_rows), 1, most_tiles));
  // A block shorter than a segment ends it.
  g.group_keys = int64_t{kGroupSegments} * std::min(s.kernels->segment_keys, g.block_keys);
  g.has_groups = keys > g.group_keys;
  const size_t most_bytes =
      std::max(g.dk, g.dv) <= kUsualHead ? s.kernels->usual_scratch : kScratchBytes;
  while (g.tiles > 1 && s.kernels->scratch_bytes(g) > most_bytes) --g.tiles;
  s.item_rows = g.tiles * tile_rows;

  s.row_blocks = CeilDiv(lengths.queries * g.group, s.item_rows);
  s.matrix_blocks = CeilDiv(sizes.Tq * g.group, s.item_rows);
  s.costly_rows_last = plan.bound.score.causal != Causal::kNone;
  if (rows > 0 && rows <= s.item_rows) {
    int64_t split_keys =
        std::max(kLeastSplitKeys, kSplitBytes / (BytesOf(plan.bound.k.dtype, sizes.dk) +
                                                 BytesOf(plan.bound.v.dtype, sizes.dv)));
    split_keys = std::max(split_keys, CeilDiv(keys, kMostSplits));
    if (options.split_keys > 0) split_keys = std::min(split_keys, options.split_keys);
    s.split_keys = RoundUp(split_keys, g.block_keys);
    const int64_t all = CeilDiv(keys, s.split_keys);
    s.is_split = all > 1;
    s.skipped_splits =
        std::max<int64_t>(std::min(lengths.keys.first / s.split_keys, all - 1) - 1, 0);
    s.splits = all - s.skipped_splits;
  }
  s.pairs =
      VisiblePairs(lengths, plan.bound.score.causal, plan.bound.score.window, 0, lengths.q_length);
  return s;
}

}  // namespace fovea
