// The contract between plan and kernels: what a kernel is given (a call, an item, scratch) and what
// a target offers (a table of functions). Compiled once; knows no SIMD. Nothing here checks,
// allocates or fails: validation and planning have done so.
#ifndef FOVEA_SRC_KERNELS_KERNEL_H_
#define FOVEA_SRC_KERNELS_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "fovea/attention.h"
#include "mask_map.h"
#include "positions.h"
#include "tree.h"

namespace fovea {

// Rows of one KV head are stacked: row r is query r / group of query head kv_head·group + r %
// group, so that the rows of a tile share K and V and differ little in position.

// Keys of the longest block of any plan: kernels may have arrays of so many.
constexpr int32_t kMostBlockKeys = 128;

// Sums over keys run within segments, which join within groups: kernels/sums-inl.h. Keys of a
// segment, by the type of the products, and segments of a group.
constexpr int32_t kSegmentKeysF32 = 64;
constexpr int32_t kSegmentKeysBF16 = 128;
constexpr int32_t kGroupSegments = 16;

// The sizes that lay out a worker's scratch.
struct Geometry {
  int64_t dk = 0;
  int64_t dv = 0;
  int64_t group = 1;  // Hq / Hkv
  // Score::head_scales are given: engines that multiply scores by a factor keep one for each row.
  bool scales_heads = false;
  int32_t tile_rows = 1;   // rows of a tile that are used …
  int32_t tile_lanes = 1;  // … and stored: a multiple of the vector length in the tile engine
  int32_t tiles = 1;       // tiles of an item: K and V of a block are taken once for all of them
  int32_t block_keys = 1;  // keys of a block
  int64_t group_keys = 1;  // keys of a group
  // An item's keys may lie in more than one group: its sums have two parts.
  bool has_groups = false;
};

// A task: some rows of one KV head against a range of its keys.
struct Item {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  int64_t first_row = 0;
  int64_t rows = 0;  // ≤ tiles · tile_rows
  // Positions. Blocks, segments and groups begin at multiples of their lengths, counted from
  // position 0; what of its first block lies before keys.first is not resident.
  KeyRange keys;
  // null: the item writes out and lse; else a split's state: out[rows][dv], m[rows], l[rows]
  float* partial = nullptr;
  bool takes_sink = true;  // one item of a split row block counts the sink
};

// A split's state in the workspace, as floats.
inline int64_t PartialFloats(int64_t rows, int64_t dv) { return rows * (dv + 2); }

// What is common to all items of a call.
struct KernelCall {
  const Problem* problem = nullptr;
  const SequenceLengths* lengths = nullptr;  // [B]
  Geometry geometry;
  float scale = 1;
  // Keys lie in pages or in a ring: a sequence's may be more than one run of rows.
  bool in_runs = false;
  MaskMap mask_map;
  MaskMap bias_map;
  QueryTrees trees;
  // Scores go through the steps up to this one; the tensor that the matrix kernel writes.
  ScoreStage stage = ScoreStage::kWeights;
  const MutableTensorView* matrix = nullptr;
  // the item that probably follows on this worker, of the same geometry; a hint for prefetching,
  // may be null
  const Item* next = nullptr;
};

// One row block whose key range was split: `parts` states in key order, PartialFloats apart.
struct MergeItem {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  const float* partials = nullptr;
  int64_t parts = 0;
};

// An engine compiled for a target.
struct EngineKernels {
  // rows that a tile of the micro-kernels can hold: the fewest of the tile engine's two sizes …
  int32_t min_tile_rows = 1;
  int32_t max_tile_rows = 0;  // … and the most
  // of the row engine: tiles of more than one row are stored as multiples of so many
  int32_t row_lanes = 1;
  // of a tile-engine item: enough tiles to reuse a block of K and V from L2
  int32_t item_rows = 128;
  int32_t segment_keys = 1;  // of the sums over keys, …
  int32_t block_keys = 1;    // … and of a block: whole segments
  // bytes of a worker's scratch that may stay in L2 beside K and V, up to heads of 128
  size_t usual_scratch = size_t{256} << 10;
  size_t (*scratch_bytes)(const Geometry&) = nullptr;
  // out and lse of an item, or its partial state.
  void (*attend)(const KernelCall&, const Item&, char* scratch) = nullptr;
  // Scores at call.stage, or weights, of an item whose key range is whole, to call.matrix.
  void (*matrix)(const KernelCall&, const Item&, char* scratch) = nullptr;
  // out and lse of a split row block.
  void (*merge)(const KernelCall&, const MergeItem&, char* scratch) = nullptr;
};

// The first bytes of every worker's scratch: which target's code ran there last (Highway's
// HWY_TARGET), for the test that forces targets.
struct ScratchHeader {
  int64_t executed_target;
};

}  // namespace fovea

#endif  // FOVEA_SRC_KERNELS_KERNEL_H_
