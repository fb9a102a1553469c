// What happens to a score between q·k and the mask, in the contract's order: 2^exponent, softcap,
// ALiBi, then bias and boolean mask together. Each is a pass over the tile in L1.
#if defined(FOVEA_SRC_KERNELS_MODIFIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#undef FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#else
#define FOVEA_SRC_KERNELS_MODIFIERS_INL_H_
#endif

#include <cmath>

#include "kernels/mask-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// One float of each row's query head, for the tile's lanes.
HWY_INLINE void PerHead(const TensorView& per_head, const Tile& tile, const Item& item,
                        int64_t group, int64_t lanes, float* values) {
  ForEachRow(tile, item, group, [&](int r, int64_t h, int64_t) {
    values[r] = ReadAs<float>(static_cast<const char*>(per_head.data) + h * per_head.stride[0]);
  });
  for (int64_t r = tile.count; r < lanes; ++r) values[r] = 0.0f;
}

// n elements from key j of a row on.
HWY_INLINE void LoadKeys(const Broadcast& from, const char* row, int64_t j, int64_t n, float* to) {
  LoadRow({row, from.dtype, from.stride[3]}, j, n, to);
}

// s with b added; −inf where b is −inf, whatever s is.
HWY_INLINE VF Biased(VF s, VF b) {
  return hn::IfThenElse(hn::Eq(b, MinusInfinity()), b, hn::Add(s, b));
}

// S += a row of keys for every row of the tile. `row_of[r]` tells rows apart: those with the same
// one repeat, and are loaded once. load(row, key, n, to) gives n elements from `key` of the block
// on, −inf where it removes; `stage` holds tile_lanes · kStageColumns floats.
template <class Lanes, class RowId, class Load>
HWY_INLINE void AddRows(const RowId* row_of, const Tile& tile, const Geometry& g, const Span& span,
                        const Scratch& w, const Load& load) {
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
    Lanes::WithRows(rows, tile.count, key, n, g.block_keys, w.s,
                    [](VF s, VF b) HWY_ATTR { return Biased(s, b); });
  }
}

// S += bias.
template <class Lanes>
inline HWY_NOINLINE void AddBias(const Broadcast& from, const Tile& tile, const Item& item,
                                 const Geometry& g, const Block& block, const Span& span,
                                 const Scratch& w) {
  const char* row_of[kMaxTileLanes];
  ForEachRow(tile, item, g.group,
             [&](int r, int64_t h, int64_t i) { row_of[r] = from.Row(item.sequence, h, i); });
  const bool copies = from.dtype == DType::kF32 && from.stride[3] == sizeof(float);
  // Always staged: rows of a bias tend to be a multiple of 4 KiB apart, and a transpose would read
  // each of their lines several times.
  AddRows<Lanes>(row_of, tile, g, span, w,
                 [&](const char* row, int64_t key, int64_t n, float* staged) HWY_ATTR {
                   if (copies) {
                     CopyBytes(row + (block.first + key) * from.stride[3], n * from.stride[3],
                               staged);
                   } else {
                     LoadKeys(from, row, block.first + key, n, staged);
                   }
                 });
}

// S = −inf where the block map is false.
template <class Lanes>
inline HWY_NOINLINE void RemoveByBlockMap(const BlockMap& map, const Tile& tile, const Item& item,
                                          const Geometry& g, const Block& block, const Span& span,
                                          const Scratch& w) {
  const Broadcast visible = BroadcastView(map.visible);
  const char* row_of[kMaxTileLanes];
  ForEachRow(tile, item, g.group, [&](int r, int64_t h, int64_t i) {
    row_of[r] = visible.Row(item.sequence, h, i / map.queries);
  });
  AddRows<Lanes>(
      row_of, tile, g, span, w, [&](const char* row, int64_t key, int64_t n, float* staged) {
        for (int64_t j = block.first + key, end = j + n; j < end;) {
          const int64_t next = std::min((j / map.keys + 1) * map.keys, end);
          std::fill(staged + (j - block.first - key), staged + (next - block.first - key),
                    ElementOf(visible, row, j / map.keys));
          j = next;
        }
      });
}

HWY_INLINE int64_t ParentOf(const TensorView& parents, int64_t b, int64_t i) {
  const char* p =
      static_cast<const char*>(parents.data) + b * parents.stride[0] + i * parents.stride[1];
  return parents.dtype == DType::kI32 ? ReadAs<int32_t>(p) : ReadAs<int64_t>(p);
}

// The same for a tree of queries: of the keys from the sequence's offset on, each query sees those
// of itself and its ancestors.
template <class Lanes>
inline HWY_NOINLINE void RemoveByTree(const KernelCall& call, const Tile& tile, const Item& item,
                                      const Block& block, const Span& span, const Scratch& w) {
  const Geometry& g = call.geometry;
  const TensorView& parents = call.problem->score.parents;
  const SequenceLengths& sequence = call.lengths[item.sequence];
  int64_t row_of[kMaxTileLanes];  // the query; for padding rows the last one
  ForEachRow(tile, item, g.group,
             [&](int r, int64_t, int64_t i) { row_of[r] = std::min(i, sequence.q_length - 1); });
  AddRows<Lanes>(row_of, tile, g, span, w,
                 [&](int64_t query, int64_t key, int64_t n, float* staged) {
                   // node of the first key; negative before the tree
                   const int64_t first = block.first + key - sequence.offset;
                   const int64_t before = std::clamp<int64_t>(-first, 0, n);
                   std::fill_n(staged, before, 0.0f);
                   std::fill_n(staged + before, n - before, MinusInfinityScalar());
                   for (int64_t node = query; node >= 0 && node >= first;
                        node = ParentOf(parents, item.sequence, node)) {
                     if (node - first < n) staged[node - first] = 0.0f;
                   }
                 });
}

// S += a bias or mask of which every row of the tile sees the same one. `row` has room for whole
// vectors.
template <class Lanes>
HWY_INLINE void AddKeyBias(const Broadcast& from, const char* from_row, const Tile& tile,
                           const Block& block, const Span& span, int64_t block_keys,
                           float* HWY_RESTRICT row, float* HWY_RESTRICT s) {
  LoadKeys(from, from_row, block.first + span.first, span.end - span.first, row + span.first);
  for (int64_t key = span.end; key % Lanes::kKeyStep != 0; ++key) row[key] = 0.0f;
  ForEachScore<Lanes>(s, tile, span, block_keys, [&](VF score, int64_t, int64_t key) HWY_ATTR {
    return Biased(score, Lanes::PerKey(row, key));
  });
}

// n booleans of a mask row from key j on, as they lie in memory: bytes, or 32 bits a word; what is
// behind them in the last word is any value.
HWY_INLINE void LoadMaskWords(const Broadcast& from, const char* row, int64_t j, int64_t n,
                              float* HWY_RESTRICT words) {
  char* to = reinterpret_cast<char*>(words);
  if (from.dtype == DType::kBool) {
    if (from.stride[3] == 1) return CopyBytes(row + j, n, to);
    for (int64_t x = 0; x < n; ++x) to[x] = row[(j + x) * from.stride[3]];
    return;
  }
  if (from.stride[3] == 0)
    return std::memset(to, (row[0] & 1) != 0 ? 0xff : 0, static_cast<size_t>((n + 7) / 8)), void();
  const int shift = static_cast<int>(j % 8);
  // of the row from byte j / 8 on
  const int64_t bytes = (n + 7) / 8, readable = (j + n + 7) / 8 - j / 8;
  const uint8_t* p = reinterpret_cast<const uint8_t*>(row + j / 8);
  if (shift == 0) return CopyBytes(row + j / 8, bytes, to);
  for (int64_t x = 0; x < bytes; ++x) {
    const int next = x + 1 < readable ? p[x + 1] : 0;
    to[x] = static_cast<char>(p[x] >> shift | next << (8 - shift));
  }
}

// S = −inf for `left` ≤ 4 keys of which `word` holds a byte each: 0 removes; the next key's scores
// are `stride` on.
HWY_INLINE void RemoveByBytes(hn::Vec<hn::RebindToSigned<DF>> word, int64_t left, int64_t stride,
                              float* HWY_RESTRICT s) {
  const hn::RebindToSigned<DF> di;
  const auto remove = [&](int32_t byte, float* p) HWY_ATTR {
    const auto removed =
        hn::RebindMask(DF(), hn::Eq(hn::And(word, hn::Set(di, byte)), hn::Zero(di)));
    hn::Store(hn::IfThenElse(removed, MinusInfinity(), hn::Load(DF(), p)), DF(), p);
  };
  remove(0xff, s);
  if (left > 1) remove(0xff00, s + stride);
  if (left > 2) remove(0xff0000, s + 2 * stride);
  if (left > 3) remove(static_cast<int32_t>(0xff000000u), s + 3 * stride);
}

// The same for `left` ≤ 32 keys of a bit each, from the last one down: the bit in question is the
// sign.
HWY_INLINE void RemoveByBits(hn::Vec<hn::RebindToSigned<DF>> word, int64_t left, int64_t stride,
                             float* HWY_RESTRICT s) {
  word = hn::ShiftLeftSame(word, static_cast<int>(32 - left));
  s += (left - 1) * stride;
  for (; left > 0; --left, s -= stride) {
    const VF allowed = hn::BitCast(DF(), word);
    hn::Store(hn::IfNegativeThenElse(allowed, hn::Load(DF(), s), MinusInfinity()), DF(), s);
    word = hn::Add(word, word);
  }
}

// S = −inf where the mask is false, for lanes that hold queries: a word of every row's mask is
// transposed at a time, that is four or 32 keys.
template <class Lanes>
inline HWY_NOINLINE void RemoveMasked(const Broadcast& mask, const Tile& tile, const Item& item,
                                      const Geometry& g, const Block& block, const Span& span,
                                      const Scratch& w) {
  const hn::RebindToSigned<DF> di;
  const bool bytes = mask.dtype == DType::kBool;
  const int64_t keys_per_word = bytes ? 4 : 32;
  const char* row_of[kMaxTileLanes];
  ForEachRow(tile, item, g.group,
             [&](int r, int64_t h, int64_t i) { row_of[r] = mask.Row(item.sequence, h, i); });
  const float* rows[kMaxTileLanes];
  constexpr int64_t kStep = 4 * kStageColumns;  // keys whose bytes fill the stage
  for (int64_t from = span.first; from < span.end; from += kStep) {
    const int64_t n = std::min(span.end - from, kStep);
    for (int r = 0; r < g.tile_lanes; ++r) {
      if (r >= tile.count) {
        rows[r] = rows[0];
      } else if (r > 0 && row_of[r] == row_of[r - 1]) {
        rows[r] = rows[r - 1];
      } else {
        float* staged = w.stage + r * kStageColumns;
        LoadMaskWords(mask, row_of[r], block.first + from, n, staged);
        rows[r] = staged;
      }
    }
    Lanes::FromRows(rows, tile.count, (n + keys_per_word - 1) / keys_per_word, g.block_keys,
                    w.mask_words);
    const int64_t stride = Lanes::Index(0, 1, g.block_keys);
    for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
      const float* HWY_RESTRICT words = w.mask_words + Lanes::Index(row, 0, g.block_keys);
      float* HWY_RESTRICT s = w.s + Lanes::Index(row, from, g.block_keys);
      for (int64_t left = n; left > 0;
           left -= keys_per_word, words += stride, s += keys_per_word * stride) {
        const auto word = hn::BitCast(di, hn::Load(DF(), words));
        if (bytes) {
          RemoveByBytes(word, std::min<int64_t>(left, 4), stride, s);
        } else {
          RemoveByBits(word, std::min<int64_t>(left, 32), stride, s);
        }
      }
    }
  }
}

// S += view, which removes where it is −inf or false.
template <class Lanes>
HWY_INLINE void AddView(const TensorView& view, const KernelCall& call, const Item& item,
                        const Tile& tile, const Block& block, const Span& span, Scratch& w) {
  const Geometry& g = call.geometry;
  const Broadcast from = BroadcastView(view);
  if (from.stride[2] == 0 && (from.stride[1] == 0 || g.group == 1)) {
    return AddKeyBias<Lanes>(from, from.Row(item.sequence, item.kv_head * g.group, 0), tile, block,
                             span, g.block_keys, w.mask_words, w.s);
  }
  if constexpr (Lanes::kKeyStep == 1) {
    if (from.dtype == DType::kBool || from.dtype == DType::kBit) {
      return RemoveMasked<Lanes>(from, tile, item, g, block, span, w);
    }
  }
  AddBias<Lanes>(from, tile, item, g, block, span, w);
}

// Which pairs of a tile's rows are removed by other than position: asked one by one, where V holds
// NaN.
class Removals {
 public:
  Removals(const KernelCall& call, const Item& item, const Tile& tile) : call_(call), item_(item) {
    const Score& score = call.problem->score;
    for (int x = 0; x < 2; ++x) {
      const TensorView& view = x == 0 ? score.bias : score.mask;
      if (!view.present()) continue;
      const Broadcast from = BroadcastView(view);
      const int n = views_++;
      view_[n] = from;
      ForEachRow(tile, item, call.geometry.group,
                 [&](int r, int64_t h, int64_t i) { row_[n][r] = from.Row(item.sequence, h, i); });
    }
  }

  // Of row r, which is query i of head h, and key j.
  HWY_INLINE bool Has(int r, int64_t h, int64_t i, int64_t j) const {
    for (int n = 0; n < views_; ++n) {
      const Broadcast& from = view_[n];
      if (from.dtype == DType::kBool ? row_[n][r][j * from.stride[3]] == 0
                                     : ElementOf(from, row_[n][r], j) == MinusInfinityScalar()) {
        return true;
      }
    }
    const Score& score = call_.problem->score;
    return (score.block_map.visible.present() || score.parents.present()) &&
           IsRemovedByMapOrTree(h, i, j);
  }

 private:
  HWY_NOINLINE bool IsRemovedByMapOrTree(int64_t h, int64_t i, int64_t j) const {
    const Score& score = call_.problem->score;
    const BlockMap& map = score.block_map;
    if (map.visible.present()) {
      const Broadcast visible = BroadcastView(map.visible);
      if (ElementOf(visible, visible.Row(item_.sequence, h, i / map.queries), j / map.keys) != 0.0f)
        return true;
    }
    const int64_t node = j - call_.lengths[item_.sequence].offset;
    if (!score.parents.present() || node < 0) return false;
    while (i > node) i = ParentOf(score.parents, item_.sequence, i);
    return i != node;
  }

  const KernelCall& call_;
  const Item& item_;
  int views_ = 0;
  Broadcast view_[2];
  const char* row_[2][kMaxTileLanes];
};

// Natural scores in; out come those after the steps up to call.stage, but for what position
// removes.
template <class Lanes>
HWY_NOINLINE void Modify(const KernelCall& call, const Item& item, const Tile& tile,
                         const Block& block, const Span& span, Scratch& w) {
  const DF df;
  const Score& score = call.problem->score;
  const Geometry& g = call.geometry;
  if (tile.has_exponents) {
    ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t) HWY_ATTR {
      return hn::Mul(hn::Mul(s, Lanes::PerRow(tile.exponent[0], row)),
                     Lanes::PerRow(tile.exponent[1], row));
    });
  }
  if (call.stage == ScoreStage::kScaled) return;
  if (score.softcap > 0) {
    const VF cap = hn::Set(df, score.softcap);
    const float inverse = 1.0f / score.softcap;
    if (std::isnormal(inverse)) {
      const VF factor = hn::Set(df, inverse);
      ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t, int64_t) HWY_ATTR {
        return Softcap(df, s, hn::Mul(s, factor), cap);
      });
    } else {  // a cap so small or so great that its reciprocal overflows or loses bits
      ForEachScore<Lanes>(w.s, tile, span, g.block_keys, [&](VF s, int64_t, int64_t) HWY_ATTR {
        return Softcap(df, s, hn::Div(s, cap), cap);
      });
    }
  }
  if (call.stage == ScoreStage::kSoftcapped) return;
  if (score.alibi_slopes.present()) {
    float* slope = w.row_values;
    float* position = w.row_values + g.tile_lanes;  // relative to the block
    PerHead(score.alibi_slopes, tile, item, g.group, g.tile_lanes, slope);
    const double origin =
        static_cast<double>(call.lengths[item.sequence].offset) - static_cast<double>(block.first);
    for (int64_t r = tile.count; r < g.tile_lanes; ++r) position[r] = 0.0f;
    ForEachRow(tile, item, g.group, [&](int r, int64_t, int64_t i) {
      position[r] = static_cast<float>(static_cast<double>(i) + origin);
    });
    ForEachScore<Lanes>(
        w.s, tile, span, g.block_keys, [&](VF s, int64_t row, int64_t key) HWY_ATTR {
          const VF distance = hn::Abs(hn::Sub(Lanes::PerRow(position, row), Lanes::Keys(key)));
          return hn::NegMulAdd(Lanes::PerRow(slope, row), distance, s);
        });
  }
  if (score.bias.present()) AddView<Lanes>(score.bias, call, item, tile, block, span, w);
  if (span.masked && score.mask.present())
    AddView<Lanes>(score.mask, call, item, tile, block, span, w);
  if (span.masked && score.block_map.visible.present())
    RemoveByBlockMap<Lanes>(score.block_map, tile, item, g, block, span, w);
  if (span.in_tree) RemoveByTree<Lanes>(call, tile, item, block, span, w);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
