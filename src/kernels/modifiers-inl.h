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

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// One float of each row's query head, for the tile's lanes.
HWY_INLINE void PerHead(const Job& job, const Tile& tile, const TensorView& per_head,
                        float* values) {
  ForEachRow(job, tile, [&](int r, int64_t h, int64_t) {
    values[r] = ReadAs<float>(static_cast<const char*>(per_head.data) + h * per_head.stride[0]);
  });
  for (int64_t r = tile.count; r < job.g.tile_lanes; ++r) values[r] = 0.0f;
}

// s with b added; −inf where b is −inf, whatever s is.
HWY_INLINE VF Biased(VF s, VF b) {
  return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(s, b));
}

// S += a row of keys for every row of the tile. `row_of[r]` tells rows apart: those with the same
// one repeat, and are loaded once. load(row, key, n, to) gives n elements from `key` of the block
// on, −inf where it removes; `stage` holds tile_lanes · kStageColumns floats.
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
        rows[r] = w.stage + r * kStageColumns;
        load(row_of[r], key, n, w.stage + r * kStageColumns);
      }
    }
    Lanes::WithRows(rows, tile.count, key, n, g.block_keys, part.s,
                    [](VF s, VF b) HWY_ATTR { return Biased(s, b); });
  }
}

// S += bias.
template <class Lanes>
inline HWY_NOINLINE void AddBias(const Job& job, const Part& part, const Broadcast& from) {
  const Block& block = part.block;
  const char* row_of[kMaxTileLanes];
  ForEachRow(job, *part.tile,
             [&](int r, int64_t h, int64_t i) { row_of[r] = from.Row(job.item.sequence, h, i); });
  const bool copies = from.dtype == DType::kF32 && from.stride[3] == sizeof(float);
  // Always staged: rows of a bias tend to be a multiple of 4 KiB apart, and a transpose would read
  // each of their lines several times.
  AddRows<Lanes>(
      job, part, row_of, [&](const char* row, int64_t key, int64_t n, float* staged) HWY_ATTR {
        if (copies) {
          CopyBytes(row + (block.first + key) * from.stride[3], n * from.stride[3], staged);
        } else {
          LoadFrom(from, row, block.first + key, n, staged);
        }
      });
}

// S = −inf where the block map is false.
template <class Lanes>
inline HWY_NOINLINE void RemoveByBlockMap(const Job& job, const Part& part) {
  const BlockMap& map = job.call.problem->score.block_map;
  const Block& block = part.block;
  const Broadcast visible = BroadcastView(map.visible);
  const char* row_of[kMaxTileLanes];
  ForEachRow(job, *part.tile, [&](int r, int64_t h, int64_t i) {
    row_of[r] = visible.Row(job.item.sequence, h, i / map.queries);
  });
  AddRows<Lanes>(job, part, row_of, [&](const char* row, int64_t key, int64_t n, float* staged) {
    for (int64_t j = block.first + key, end = j + n; j < end;) {
      const int64_t next = std::min((j / map.keys + 1) * map.keys, end);
      std::fill(staged + (j - block.first - key), staged + (next - block.first - key),
                ValueAt(visible, row, j / map.keys));
      j = next;
    }
  });
}

// S = −inf where a tree of queries removes: of the keys from the sequence's offset on, each query
// sees those of itself and its ancestors.
template <class Lanes>
inline HWY_NOINLINE void RemoveByTree(const Job& job, const Part& part) {
  const TensorView& parents = job.call.problem->score.parents;
  const SequenceLengths& sequence = job.sequence;
  int64_t row_of[kMaxTileLanes];  // the query; for padding rows the last one
  ForEachRow(job, *part.tile,
             [&](int r, int64_t, int64_t i) { row_of[r] = std::min(i, sequence.q_length - 1); });
  AddRows<Lanes>(job, part, row_of, [&](int64_t query, int64_t key, int64_t n, float* staged) {
    // node of the first key; negative before the tree
    const int64_t first = part.block.first + key - sequence.offset;
    const int64_t before = std::clamp<int64_t>(-first, 0, n);
    std::fill_n(staged, before, 0.0f);
    std::fill_n(staged + before, n - before, MinusInfinityScalar());
    for (int64_t node = query; node >= 0 && node >= first;
         node = ParentOf(parents, job.item.sequence, node)) {
      if (node - first < n) staged[node - first] = 0.0f;
    }
  });
}

// S += a bias or mask of which every row of the tile sees the same one. `row` has room for whole
// vectors.
template <class Lanes>
HWY_INLINE void AddKeyBias(const Part& part, const Broadcast& from, const char* from_row,
                           float* HWY_RESTRICT row) {
  const Span& span = part.span;
  LoadFrom(from, from_row, part.block.first + span.first, span.end - span.first, row + span.first);
  for (int64_t key = span.end; key % Lanes::kKeyStep != 0; ++key) row[key] = 0.0f;
  ForEachScore<Lanes>(part, [&](VF score, int64_t, int64_t key)
                                HWY_ATTR { return Biased(score, Lanes::PerKey(row, key)); });
}

// S += view, which removes where it is −inf or false.
template <class Lanes>
HWY_INLINE void AddView(const Job& job, const Part& part, const TensorView& view) {
  const Item& item = job.item;
  const int64_t group = job.g.group;
  const Broadcast from = BroadcastView(view);
  if (from.stride[2] == 0 && (from.stride[1] == 0 || group == 1)) {
    return AddKeyBias<Lanes>(part, from, from.Row(item.sequence, item.kv_head * group, 0),
                             job.w.mask_words);
  }
  if constexpr (Lanes::kKeyStep == 1) {
    if (from.dtype == DType::kBool || from.dtype == DType::kBit) {
      return RemoveMasked<Lanes>(job, part, from);
    }
  }
  AddBias<Lanes>(job, part, from);
}

// Natural scores in; out come those after the steps up to call.stage, but for what position
// removes.
template <class Lanes>
HWY_NOINLINE void Modify(const Job& job, const Part& part) {
  const DF df;
  const KernelCall& call = job.call;
  const Score& score = call.problem->score;
  const Geometry& g = job.g;
  const Tile& tile = *part.tile;
  const Span& span = part.span;
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
  if (call.stage == ScoreStage::kSoftcapped) return;
  // 3. ALiBi
  if (score.alibi_slopes.present()) {
    float* slope = job.w.row_values;
    float* position = slope + g.tile_lanes;  // relative to the block
    PerHead(job, tile, score.alibi_slopes, slope);
    const double origin =
        static_cast<double>(job.sequence.offset) - static_cast<double>(part.block.first);
    for (int64_t r = tile.count; r < g.tile_lanes; ++r) position[r] = 0.0f;
    ForEachRow(job, tile, [&](int r, int64_t, int64_t i) {
      position[r] = static_cast<float>(static_cast<double>(i) + origin);
    });
    ForEachScore<Lanes>(part, [&](VF s, int64_t row, int64_t key) HWY_ATTR {
      const VF distance = hn::Abs(hn::Sub(Lanes::PerRow(position, row), Lanes::Keys(key)));
      return hn::NegMulAdd(Lanes::PerRow(slope, row), distance, s);
    });
  }
  // 4. bias, and what mask, block map and tree remove
  if (score.bias.present()) AddView<Lanes>(job, part, score.bias);
  if (span.masked && score.mask.present()) AddView<Lanes>(job, part, score.mask);
  if (span.masked && score.block_map.visible.present()) RemoveByBlockMap<Lanes>(job, part);
  if (span.in_tree) RemoveByTree<Lanes>(job, part);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
