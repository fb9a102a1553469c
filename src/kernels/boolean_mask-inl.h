// Boolean masks of bytes or bits for lanes that hold queries: words of them are transposed, not
// floats.
#if defined(FOVEA_SRC_KERNELS_BOOLEAN_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_BOOLEAN_MASK_INL_H_
#undef FOVEA_SRC_KERNELS_BOOLEAN_MASK_INL_H_
#else
#define FOVEA_SRC_KERNELS_BOOLEAN_MASK_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

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
inline HWY_NOINLINE void RemoveMasked(const Job& job, const Part& part, const Broadcast& mask) {
  const Geometry& g = job.g;
  const Scratch& w = job.w;
  const Tile& tile = *part.tile;
  const Span& span = part.span;
  const hn::RebindToSigned<DF> di;
  const bool bytes = mask.dtype == DType::kBool;
  const int64_t keys_per_word = bytes ? 4 : 32;
  const char* row_of[kMaxTileLanes];
  ForEachRow(job, tile,
             [&](int r, int64_t h, int64_t i) { row_of[r] = mask.Row(job.item.sequence, h, i); });
  const float* rows[kMaxTileLanes];
  constexpr int64_t kStep = 4 * kStageColumns;  // keys whose bytes fill the stage
  for (int64_t from = std::max(span.first, part.block.begin); from < span.end; from += kStep) {
    const int64_t n = std::min(span.end - from, kStep);
    for (int r = 0; r < g.tile_lanes; ++r) {
      if (r >= tile.count) {
        rows[r] = rows[0];
      } else if (r > 0 && row_of[r] == row_of[r - 1]) {
        rows[r] = rows[r - 1];
      } else {
        float* staged = w.stage + r * kStageColumns;
        LoadMaskWords(mask, row_of[r], job.Column(part.block.first + from), n, staged);
        rows[r] = staged;
      }
    }
    Lanes::FromRows(rows, tile.count, (n + keys_per_word - 1) / keys_per_word, g.block_keys,
                    w.mask_words);
    const int64_t stride = Lanes::Index(0, 1, g.block_keys);
    for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
      const float* HWY_RESTRICT words = w.mask_words + Lanes::Index(row, 0, g.block_keys);
      float* HWY_RESTRICT s = part.s + Lanes::Index(row, from, g.block_keys);
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

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
