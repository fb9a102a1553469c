// What happens to a score between q·k and the mask, in the contract's order: 2^exponent, softcap,
// ALiBi, then bias and boolean mask together. Each is a pass over the tile in L1.
#if defined(FOVEA_SRC_KERNELS_MODIFIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#undef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#else
#define FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#endif

#include <cmath>

#include "kernels/boolean_mask-inl.h"
#include "kernels/tree-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// s with b added; −inf where b is −inf, whatever s is.
HWY_INLINE VF Biased(VF s, VF b) {
  return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(s, b));
}

// S += a row of keys for every row of the tile. `row_of[r]` tells rows apart: those with the same
// one repeat, and are loaded once. load(row, column, n, to) gives n elements from `column` on, −inf
// where it removes; `stage` holds tile_lanes · kStageColumns floats. Keys that are not resident
// have no column: 0.
template <class Lanes, class RowId, class Load>
HWY_INLINE void AddRows(const Job& job, const Part& part, const RowId* row_of, const Load& load) {
  const Geometry& g = job.g;
  const Scratch& w = job.w;
  const Tile& tile = *part.tile;
  const Span& span = part.span;
  const float* rows[kMaxTileLanes];
  for (int64_t key = span.first; key < span.end; key += kStageColumns) {
    const int64_t n = std::min(span.end - key, kStageColumns);
    for (int r = 0; r < g.tile_lanes; ++r) {
      if (r >= tile.count) {
        rows[r] = rows[0];
      } else if (r > 0 && row_of[r] == row_of[r - 1]) {
        rows[r] = rows[r - 1];
      } else {
        float* const staged = w.stage + r * kStageColumns;
        const int64_t absent = std::clamp<int64_t>(part.block.begin - key, 0, n);
        std::fill_n(staged, absent, 0.0f);
        rows[r] = staged;
        load(row_of[r], job.Column(part.block.first + key + absent), n - absent, staged + absent);
      }
    }
    Lanes::WithRows(rows, tile.count, key, n, g.block_keys, part.s,
                    [](VF s, VF b) HWY_ATTR { return Biased(s, b); });
  }
}

// How a bias is used: scales[r] multiplies it for row r (null: 1), or it only removes pairs.
struct BiasUse {
  const float* scales = nullptr;
  bool only_removes = false;
};

// What n elements of a bias add for a row: scale·b, finite where b is; −inf where b is −inf,
// whatever the scale. Or, where the bias only removes, 0 in the place of all other elements.
inline HWY_NOINLINE void UseBias(const BiasUse& use, float scale, int64_t n, float* b) {
  const DF df;
  const VF infinity = hn::Set(df, -MinusInfinityScalar());
  const VF most = hn::Set(df, hwy::HighestValue<float>());
  const VF factor = hn::Set(df, scale);
  for (int64_t j = 0; j < n; j += kLanes) {
    const size_t left = static_cast<size_t>(std::min<int64_t>(n - j, kLanes));
    const VF x = hn::LoadN(df, b + j, left);
    const VF product = hn::Mul(x, factor);
    const VF saturated = ClampAbove(ClampBelow(product, hn::Neg(most)), most);
    VF added = hn::IfThenElse(hn::Lt(hn::Abs(x), infinity), saturated, product);
    if (use.only_removes) added = hn::Zero(df);
    hn::StoreN(hn::IfThenElse(hn::Eq(x, hn::Neg(infinity)), x, added), df, b + j, left);
  }
}

// A row of a bias and what multiplies it.
struct ScaledRow {
  const char* row;
  float scale;
  bool operator==(const ScaledRow& other) const { return row == other.row && scale == other.scale; }
};

// S += bias, as `use` says.
template <class Lanes>
inline HWY_NOINLINE void AddBias(const Job& job, const Part& part, const Broadcast& from,
                                 const BiasUse& use) {
  ScaledRow row_of[kMaxTileLanes];
  ForEachRow(job, *part.tile, [&](int r, int64_t h, int64_t i) {
    row_of[r] = {from.Row(job.item.sequence, h, i), use.scales == nullptr ? 1.0f : use.scales[r]};
  });
  const bool copies = from.dtype == DType::kF32 && from.stride[3] == sizeof(float);
  const bool changes = use.scales != nullptr || use.only_removes;
  // Always staged: rows of a bias tend to be a multiple of 4 KiB apart, and a transpose would read
  // each of their lines several times.
  AddRows<Lanes>(job, part, row_of,
                 [&](const ScaledRow& scaled, int64_t column, int64_t n, float* staged) HWY_ATTR {
                   if (copies) {
                     CopyBytes(scaled.row + column * from.stride[3], n * from.stride[3], staged);
                   } else {
                     LoadFrom(from, scaled.row, column, n, staged);
                   }
                   if (changes) UseBias(use, scaled.scale, n, staged);
                 });
}

// S = −inf where the block map is false.
template <class Lanes>
inline HWY_NOINLINE void RemoveByBlockMap(const Job& job, const Part& part) {
  const BlockMap& map = job.call.problem->score.block_map;
  const Broadcast visible = BroadcastView(map.visible);
  const char* row_of[kMaxTileLanes];
  ForEachRow(job, *part.tile, [&](int r, int64_t h, int64_t i) {
    row_of[r] = visible.Row(job.item.sequence, h, i / map.queries);
  });
  AddRows<Lanes>(job, part, row_of, [&](const char* row, int64_t column, int64_t n, float* staged) {
    for (int64_t j = column, end = j + n; j < end;) {
      const int64_t next = std::min((j / map.keys + 1) * map.keys, end);
      std::fill(staged + (j - column), staged + (next - column),
                ValueAt(visible, row, j / map.keys));
      j = next;
    }
  });
}

// S += a bias or mask of which every row of the tile sees the same one. `row` has room for whole
// vectors.
template <class Lanes>
HWY_INLINE void AddKeyBias(const Job& job, const Part& part, const Broadcast& from,
                           const char* from_row, const BiasUse& use, float* HWY_RESTRICT row) {
  const Span& span = part.span;
  const int64_t n = span.end - span.first;
  const int64_t first = std::max(span.first, part.block.begin);
  std::fill(row + span.first, row + first, 0.0f);
  LoadFrom(from, from_row, job.Column(part.block.first + first), span.end - first, row + first);
  if (use.scales != nullptr || use.only_removes)
    UseBias(use, use.scales == nullptr ? 1.0f : use.scales[0], n, row + span.first);
  for (int64_t key = span.end; key % Lanes::kKeyStep != 0; ++key) row[key] = 0.0f;
  ForEachScore<Lanes>(part, [&](VF score, int64_t, int64_t key)
                                HWY_ATTR { return Biased(score, Lanes::PerKey(row, key)); });
}

// S += view, which removes where it is −inf or false.
template <class Lanes>
HWY_INLINE void AddView(const Job& job, const Part& part, const TensorView& view,
                        const BiasUse& use = {}) {
  const Item& item = job.item;
  const int64_t group = job.g.group;
  const Broadcast from = BroadcastView(view);
  const bool one_head = group == 1 || (from.stride[1] == 0 && use.scales == nullptr);
  if (from.stride[2] == 0 && one_head) {
    return AddKeyBias<Lanes>(job, part, from, from.Row(item.sequence, item.kv_head * group, 0), use,
                             job.w.mask_words);
  }
  if constexpr (Lanes::kLanesAreQueries) {
    if (from.dtype == DType::kBool || from.dtype == DType::kBit) {
      return RemoveMasked<Lanes>(job, part, from);
    }
  }
  AddBias<Lanes>(job, part, from, use);
}

// S through the caller's function: rows of queries that exist, never padding.
template <class Lanes>
inline HWY_NOINLINE void CallFunction(const Job& job, const Part& part) {
  const ScoreFunction& function = job.call.problem->score.function;
  int64_t heads[kMaxTileLanes], positions[kMaxTileLanes];
  int rows = 0;
  ForEachRow(job, *part.tile, [&](int r, int64_t h, int64_t i) {
    if (i >= job.sequence.q_length) return;  // and so are all rows behind it
    heads[r] = h;
    positions[r] = i + job.sequence.offset;
    rows = r + 1;
  });
  if (rows == 0) return;
  const int64_t block_keys = job.g.block_keys;
  const auto index = [&](int64_t row, int64_t key) { return Lanes::Index(row, key, block_keys); };
  ScoreBlock block = {};
  block.size = sizeof(block);
  block.keys = part.span.end - part.span.first;
  block.row_stride = index(1, 0) - index(0, 0);
  block.key_stride = index(0, 1) - index(0, 0);
  block.first_key_position = part.block.first + part.span.first;
  block.sequence = job.item.sequence;
  block.offset = job.sequence.offset;
  for (int row = 0; row < rows; row += Lanes::kRowsInLine) {
    block.scores = part.s + index(row, part.span.first);
    block.rows = std::min(rows - row, Lanes::kRowsInLine);
    block.heads = heads + row;
    block.query_positions = positions + row;
    function.apply(function.context, &block);
  }
}

// The first two steps, as far as call.stage: natural scores in, capped ones out.
template <class Lanes>
HWY_NOINLINE void Cap(const Job& job, const Part& part) {
  const DF df;
  const KernelCall& call = job.call;
  const Score& score = call.problem->score;
  const Tile& tile = *part.tile;
  // 1. scale: what packing Q left out of it
  if (tile.has_exponents) {
    ForEachScore<Lanes>(part, [&](VF s, int64_t row, int64_t) HWY_ATTR {
      return hn::Mul(hn::Mul(s, Lanes::PerRow(tile.exponent[0], row)),
                     Lanes::PerRow(tile.exponent[1], row));
    });
  }
  if (call.stage == ScoreStage::kScaled) return;
  // 2. softcap
  if (score.softcap > 0) {
    const VF cap = hn::Set(df, score.softcap);
    const float inverse = 1.0f / score.softcap;
    if (std::isnormal(inverse)) {
      const VF factor = hn::Set(df, inverse);
      ForEachScore<Lanes>(part, [&](VF s, int64_t, int64_t)
                                    HWY_ATTR { return Softcap(df, s, hn::Mul(s, factor), cap); });
    } else {  // a cap so small or so great that its reciprocal overflows or loses bits
      ForEachScore<Lanes>(part, [&](VF s, int64_t, int64_t)
                                    HWY_ATTR { return Softcap(df, s, hn::Div(s, cap), cap); });
    }
  }
}

// What is added to capped scores, and what is removed but for what position removes.
template <class Lanes>
HWY_NOINLINE void AddAndRemove(const Job& job, const Part& part) {
  const Score& score = job.call.problem->score;
  const Geometry& g = job.g;
  const Tile& tile = *part.tile;
  const Span& span = part.span;
  // 3. ALiBi
  if (score.alibi_slopes.present()) {
    float* slope = job.w.row_values;
    float* position = slope + g.tile_lanes;  // relative to the block
    PerHead(job, tile, slope, score.alibi_slopes);
    // Exact however far out both are.
    const double origin = static_cast<double>(job.sequence.offset - part.block.first);
    ForEachRow(job, tile, [&](int r, int64_t, int64_t i) {
      position[r] = static_cast<float>(static_cast<double>(i) + origin);
    });
    std::fill(position + tile.count, position + g.tile_lanes, position[0]);
    ForEachScore<Lanes>(part, [&](VF s, int64_t row, int64_t key) HWY_ATTR {
      const VF distance = hn::Abs(hn::Sub(Lanes::PerRow(position, row), Lanes::Keys(key)));
      return hn::NegMulAdd(Lanes::PerRow(slope, row), distance, s);
    });
  }
  // 4. bias and the caller's function, which brings no pair back that the bias has removed
  if (span.biased) {
    BiasUse use;
    if (score.bias_scales.present()) {
      PerHead(job, tile, job.w.row_values, score.bias_scales);
      use.scales = job.w.row_values;
    }
    AddView<Lanes>(job, part, score.bias, use);
  }
  if (score.function.present()) {
    CallFunction<Lanes>(job, part);
    if (span.biased) AddView<Lanes>(job, part, score.bias, {nullptr, true});
  }
  // 5. what mask, block map and tree remove
  if (span.masked && score.mask.present()) AddView<Lanes>(job, part, score.mask);
  if (span.masked && score.block_map.visible.present()) RemoveByBlockMap<Lanes>(job, part);
  if (span.in_tree) RemoveByTree<Lanes>(job, part);
}

// Natural scores in; out come those after the steps up to call.stage, but for what position
// removes.
template <class Lanes>
HWY_INLINE void Modify(const Job& job, const Part& part) {
  Cap<Lanes>(job, part);
  if (job.call.stage > ScoreStage::kSoftcapped) AddAndRemove<Lanes>(job, part);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
