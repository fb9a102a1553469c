// Where new tokens go in a cache, and whether they may. Knows no kernels' code.
#ifndef FOVEA_SRC_APPEND_H_
#define FOVEA_SRC_APPEND_H_

#include <algorithm>
#include <cstdint>

#include "cache_format.h"
#include "fovea/kv_cache.h"
#include "kernels/append.h"
#include "views.h"

namespace fovea {

// Everything that can be wrong with a call. *count is how many tokens there are, those that are
// skipped included.
Status CheckAppend(const KVCache& cache, const NewTokens& tokens, int64_t* count) noexcept;

// Of K or V of a cache that CheckAppend has passed.
inline ScaleSource SourceOf(DType type, bool has_scale, bool fixed) {
  if (!has_scale) return ScaleSource::kNone;
  return fixed || IsF8(type) ? ScaleSource::kFixed : ScaleSource::kWritten;
}

// A row of the new tokens, and its place in the cache.
struct TokenPlace {
  int64_t from_batch, from_row;
  int64_t page, row;
};

// The tokens of one sequence: rows first … first + n − 1 of batch `from_batch`.
struct TokenSpan {
  int64_t from_batch, first, n;
};

inline int64_t SequencesOf(const NewTokens& tokens) {
  return tokens.cu_seqlens.present() ? tokens.cu_seqlens.shape[0] - 1 : tokens.k.shape[0];
}
inline TokenSpan SpanOf(const NewTokens& tokens, int64_t b) {
  TokenSpan span = {b, 0, tokens.k.shape[2]};
  if (tokens.cu_seqlens.present()) {
    span.from_batch = 0;
    span.first = ReadInteger(tokens.cu_seqlens, b);
    span.n = ReadInteger(tokens.cu_seqlens, b + 1) - span.first;
  }
  return span;
}
inline int64_t LengthOf(const NewTokens& tokens, const TokenSpan& span, int64_t b) {
  return tokens.lengths.present() ? ReadInteger(tokens.lengths, b) : span.n;
}
inline int64_t PastOf(const NewTokens& tokens, int64_t b) {
  return tokens.past_lengths.present() ? ReadInteger(tokens.past_lengths, b) : 0;
}
inline int64_t SlotOf(const NewTokens& tokens, const TokenSpan& span, int64_t b, int64_t i) {
  return tokens.cu_seqlens.present() ? ReadInteger(tokens.slots, span.first + i)
                                     : ReadInteger(tokens.slots, b, i);
}
// Number n of the pages of a sequence.
inline int64_t PageOf(const PageTable& pages, int64_t b, int64_t n) {
  return pages.begins.present() ? ReadInteger(pages.table, ReadInteger(pages.begins, b) + n)
                                : ReadInteger(pages.table, b, n);
}

// Calls f(TokenPlace) for each token that goes somewhere, in order; of a ring, for those that no
// later one of the same sequence replaces.
template <class F>
void ForEachToken(const KVCache& cache, const NewTokens& tokens, const F& f) {
  const int64_t P = cache.k.shape[2];
  for (int64_t b = 0; b < SequencesOf(tokens); ++b) {
    const TokenSpan span = SpanOf(tokens, b);
    const int64_t n = LengthOf(tokens, span, b);
    if (tokens.slots.present()) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = SlotOf(tokens, span, b, i);
        if (slot >= 0) f({span.from_batch, span.first + i, slot / P, slot % P});
      }
      continue;
    }
    const int64_t past = PastOf(tokens, b);
    // Rows follow each other up to the end of a page, or of the ring.
    for (int64_t i = cache.ring ? std::max<int64_t>(0, n - P) : 0; i < n;) {
      const int64_t p = past + i;
      const int64_t page = tokens.pages.present() ? PageOf(tokens.pages, b, p / P) : b;
      int64_t row = p % P;
      for (; i < n && row < P; ++i, ++row) f({span.from_batch, span.first + i, page, row});
    }
  }
}

}  // namespace fovea

#endif  // FOVEA_SRC_APPEND_H_
