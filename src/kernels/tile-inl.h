// A tile of the algorithm: up to Lanes::kRows stacked rows of one KV head, where their state lives
// in scratch, and what each row may see.
#if defined(FOVEA_SRC_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/kernel.h"
#include "kernels/softmax-inl.h"
#include "kernels/views-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Keys at positions [first, first + n) of a sequence, of which `first` is a multiple of a block's
// length. Those before first + begin are not resident: they have no rows, and position removes
// them. begin < n.
struct Block {
  int64_t first;
  int64_t n;
  int64_t begin;
};

// The block at position `first` of an item, first < item.keys.end.
HWY_INLINE Block BlockAt(const Item& item, int64_t block_keys, int64_t first) {
  return {first, std::min(block_keys, item.keys.end - first),
          std::max<int64_t>(item.keys.first - first, 0)};
}

// Rows of K or V, keys of a block: the caller's or copied ones, of a type of WithVectorType.
struct BlockRows {
  const void* data;
  int64_t stride;  // elements
  DType dtype = DType::kF32;

  // Row j; T is the type that dtype names.
  template <class T>
  const T* Row(int64_t j) const {
    return static_cast<const T*>(data) + j * stride;
  }
};

struct BlockValues {
  BlockRows rows;
  // Bit j: row j of the caller's V holds a NaN or infinity, which `rows` has as zero. Null when
  // rows are the caller's own values.
  const uint64_t* poisoned;
};

// The keys of a block that a tile computes: first ≤ key < end relative to the block.
struct Span {
  int64_t first;
  int64_t end;   // first where there are none
  bool partial;  // some row does not see all of them by position
  bool masked;   // mask or block map may remove some
  bool in_tree;  // the tree may remove some
  bool biased;   // the bias may change or remove some
};

struct Tile {
  int64_t first_row;  // stacked row number
  int count;          // rows in use
  float* q;           // the engine's packing of scale·Q·2^−exponent
  float* o;           // [rows][Engine::OutputColumns(dv)] as OutputLanes has it: the group's sums …
  float* o_groups;    // … and as many: those of the groups before, …
  float* m_groups;    // … taken from these maxima. Of geometries that have groups
  uint64_t* faults;   // of those sums: FaultWords
  float *run, *lost;  // as in Scratch, of all tiles
  RowState state;
  KeyRange* visible;  // [count] keys that each row sees by position
  // per row: the product of both is 2^exponent, which scores must be multiplied by
  float* exponent[2];
  bool has_exponents;  // some exponent is not 0
  // What Scores multiplies by, for engines that pack Q without it: one for each row, or, where they
  // are null, the one for all.
  const float* factors;
  float factor;
  KeyRange any;  // every key that some row sees lies in here
  KeyRange all;  // every row sees these
};

// Channels of q·k that are summed without compensation (kernels/chains-inl.h).
constexpr int64_t kRunChannels = 896;

// The row stride in bytes, and its multiples, that puts the rows a tile's micro-kernels read at
// once into one set of L1: 64 sets of 64 bytes on every x86 and Arm core so far.
constexpr int64_t kTileAliasing = 4096;

// A worker's scratch, carved from one piece of memory.
struct Scratch {
  ScratchHeader* header;
  float *q, *o, *o_groups, *m_groups, *m, *l, *l_rest, *alpha, *exponents, *factors, *row_values;
  KeyRange* visible;
  float* s[2];        // as many as the engine's pipeline has
  float *run, *lost;  // of heads longer than kRunChannels: S of a run, and what sums of S lost
  float *mask_words, *stage, *k, *v, *v_row;
  uint64_t* poisoned;
  uint64_t* faults;  // of the sums of every tile
  size_t bytes;
};

// An item at work.
struct Job {
  const KernelCall& call;
  const Item& item;
  const Geometry& g;
  const SequenceLengths& sequence;
  Scratch w;

  // The column of a key in biases, masks, maps and matrices, which count resident keys.
  int64_t Column(int64_t position) const { return position - sequence.keys.first; }
  // What V is multiplied by. Not 1 where sums of p·v are mended (kernels/mend-inl.h).
  float value_scale = 1;
};

// Of sums that overflow, or are too small; times these they do not and are not, however many keys
// there are.
constexpr float kScaleDown = 0x1p-64f, kScaleUp = 0x1p64f;

// What a tile sees of a block, and the scores of the two.
struct Part {
  const Geometry* g;
  const Tile* tile;
  Block block;
  Span span;
  float* s;
};

// K and V rows in scratch: whole vectors, and never a multiple of 1 KiB apart (rows would compete
// for one L1 set).
HWY_INLINE int64_t CopiedStride(int64_t d) {
  const int64_t stride = RoundUp(d, 16);
  return stride % 256 == 0 ? stride + 16 : stride;
}

// Cuts arrays, aligned to a cache line, from one piece of memory; from null it only adds up.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <class T>
  T* Take(int64_t n) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<uint64_t>(n) * sizeof(T) + 63) / 64 * 64;
    return p;
  }
  // SIZE_MAX for more than a host of 32 bits can count.
  size_t used() const { return static_cast<size_t>(std::min<uint64_t>(used_, SIZE_MAX)); }

 private:
  char* base_;
  uint64_t used_ = 0;
};

constexpr int64_t kStageColumns = 64;

// Words of which the first says whether a tile's sums have faults, and bits 2·(r·dv + c) of the
// others and the one behind it whether that of row r and channel c is too large, or too small.
HWY_INLINE int64_t FaultWords(int64_t rows, int64_t dv) { return 1 + (2 * rows * dv + 63) / 64; }

template <class Engine>
Scratch CarveScratch(const Geometry& g, char* base) {
  using Lanes = typename Engine::Lanes;
  Carver carver(base);
  Scratch w;
  const int64_t rows = g.tile_lanes;
  w.header = carver.Take<ScratchHeader>(1);
  w.q = carver.Take<float>(g.tiles * Engine::QueryFloats(rows, g.dk));
  const int64_t o_floats =
      g.tiles * Engine::OutputLanes::TileFloats(rows, Engine::OutputColumns(g.dv));
  w.o = carver.Take<float>(o_floats);
  w.o_groups = carver.Take<float>(g.has_groups ? o_floats : 0);
  w.m_groups = carver.Take<float>(g.has_groups ? g.tiles * rows : 0);
  w.m = carver.Take<float>(g.tiles * rows);
  w.l = carver.Take<float>(g.tiles * rows);
  w.l_rest = carver.Take<float>(g.tiles * rows);
  w.alpha = carver.Take<float>(g.tiles * rows);
  w.exponents = carver.Take<float>(g.tiles * 2 * rows);
  w.factors = carver.Take<float>(g.scales_heads ? g.tiles * rows : 0);
  w.row_values = carver.Take<float>(2 * rows);
  w.visible = carver.Take<KeyRange>(g.tiles * rows);
  for (int n = 0; n < Engine::Pipeline::kScoreTiles; ++n)
    w.s[n] = carver.Take<float>(Lanes::TileFloats(rows, Engine::ScoreColumns(g.block_keys)));
  // (gradients have products of dv channels, too)
  const bool has_runs = std::max(g.dk, g.dv) > kRunChannels;
  for (float** s : {&w.run, &w.lost}) {
    *s = carver.Take<float>(has_runs ? Lanes::TileFloats(rows, Engine::ScoreColumns(g.block_keys))
                                     : 0);
  }
  w.mask_words = carver.Take<float>(
      std::max(Lanes::TileFloats(rows, (g.block_keys + 3) / 4), RoundUp(g.block_keys, kLanes)));
  w.stage = carver.Take<float>(rows * kStageColumns);
  w.k = carver.Take<float>(Engine::KeyFloats(g.block_keys, g.dk));
  w.v = carver.Take<float>(Engine::ValueFloats(g.block_keys, g.dv));
  w.v_row = carver.Take<float>(CopiedStride(g.dv));
  w.poisoned = carver.Take<uint64_t>((g.block_keys + 63) / 64);
  w.faults = carver.Take<uint64_t>(g.tiles * FaultWords(rows, g.dv));
  w.bytes = carver.used();
  return w;
}

template <class Engine>
HWY_INLINE Job BeginJob(const KernelCall& call, const Item& item, char* scratch,
                        float value_scale) {
  return {call,
          item,
          call.geometry,
          call.lengths[item.sequence],
          CarveScratch<Engine>(call.geometry, scratch),
          value_scale};
}

template <class Engine>
Tile MakeTile(const Scratch& w, const Geometry& g, int index) {
  const int64_t rows = g.tile_lanes;
  Tile tile;
  tile.q = w.q + index * Engine::QueryFloats(rows, g.dk);
  const int64_t o_first =
      index * Engine::OutputLanes::TileFloats(rows, Engine::OutputColumns(g.dv));
  tile.o = w.o + o_first;
  tile.o_groups = w.o_groups + (g.has_groups ? o_first : 0);
  tile.faults = w.faults + index * FaultWords(rows, g.dv);
  tile.run = w.run;
  tile.lost = w.lost;
  tile.m_groups = w.m_groups + (g.has_groups ? index * rows : 0);
  tile.state = {w.m + index * rows, w.l + index * rows, w.l_rest + index * rows,
                w.alpha + index * rows};
  tile.visible = w.visible + index * rows;
  tile.exponent[0] = w.exponents + index * 2 * rows;
  tile.exponent[1] = tile.exponent[0] + rows;
  tile.has_exponents = false;
  tile.factors = nullptr;
  tile.factor = 1.0f;
  return tile;
}

// Calls f(r, h, i) for the tile's rows: query head h and query i of row r.
template <class F>
HWY_INLINE void ForEachRow(const Job& job, const Tile& tile, const F& f) {
  const int64_t group = job.g.group;
  int64_t i = tile.first_row / group, g = tile.first_row % group;
  for (int r = 0; r < tile.count; ++r) {
    f(r, job.item.kv_head * group + g, i);
    if (++g == group) g = 0, ++i;
  }
}

// values[r] = f(h) of every row's query head. Padding rows repeat row 0, as they do in Q.
template <class F>
HWY_INLINE void PerHead(const Job& job, const Tile& tile, float* values, const F& f) {
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t) { values[r] = f(h); });
  for (int64_t r = tile.count; r < job.g.tile_lanes; ++r) values[r] = values[0];
}
HWY_INLINE void PerHead(const Job& job, const Tile& tile, float* values, const TensorView& view) {
  PerHead(job, tile, values, [&](int64_t h) { return PerHeadAt(view, h); });
}

// What the rows may see by position, cut to the item's keys. Steps before masking (call.stage) see
// every key.
HWY_INLINE void FindVisibleKeys(const Job& job, Tile& tile) {
  const KernelCall& call = job.call;
  const Item& item = job.item;
  const Score& score = call.problem->score;
  const SequenceLengths& lengths = job.sequence;
  const int64_t last_query = (tile.first_row + tile.count - 1) / job.g.group;
  const bool masks = call.stage >= ScoreStage::kMasked;
  const Causal causal = masks ? score.causal : Causal::kNone;
  const Window window = masks ? score.window : Window();
  const bool has_ranges = masks && score.key_ranges.present();
  if (causal == Causal::kNone && window.left < 0 && window.right < 0 && !has_ranges &&
      last_query < lengths.q_length) {
    std::fill_n(tile.visible, tile.count, item.keys);
    tile.any = tile.all = item.keys;
    return;
  }
  tile.any = {item.keys.end, item.keys.first};
  tile.all = item.keys;
  ForEachRow(job, tile, [&](int r, int64_t, int64_t i) {
    KeyRange keys = VisibleKeys(lengths, causal, window, i);
    if (has_ranges) keys = Intersection(keys, RangeOf(score.key_ranges, item.sequence, i));
    keys.first = std::max(keys.first, item.keys.first);
    keys.end = std::max(std::min(keys.end, item.keys.end), keys.first);
    tile.visible[r] = keys;
    tile.all.first = std::max(tile.all.first, keys.first);
    tile.all.end = std::min(tile.all.end, keys.end);
    if (keys.first < keys.end) {
      tile.any.first = std::min(tile.any.first, keys.first);
      tile.any.end = std::max(tile.any.end, keys.end);
    }
  });
}

// Every score of the part through f(scores, row, key), a vector at a time, in place.
template <class Lanes, class F>
HWY_INLINE void ForEachScore(const Part& part, const F& f) {
  const DF df;
  float* HWY_RESTRICT s = part.s;
  const Span span = part.span;
  const int64_t rows = part.tile->count, block_keys = part.g->block_keys;
  for (int64_t row = 0; row < rows; row += Lanes::kRowStep) {
    for (int64_t key = span.first; key < span.end; key += Lanes::kKeyStep) {
      float* p = s + Lanes::Index(row, key, block_keys);
      hn::Store(f(hn::Load(df, p), row, key), df, p);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
