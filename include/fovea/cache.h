// How keys and values lie in a cache: in pages that a table names, in a ring, or one after the
// other. Letters as everywhere: B sequences, Hkv key/value heads, Tk keys, dk query/key size, dv
// value size.
#ifndef FOVEA_CACHE_H_
#define FOVEA_CACHE_H_

#include <cstdint>

#include "fovea/tensor.h"

namespace fovea {

// Which pages hold the keys of which sequence (Kwon et al. 2023, "Efficient Memory Management for
// Large Language Model Serving with PagedAttention", §4.2). k is then [pages, Hkv, page, dk] and v
// [pages, Hkv, page, dv], of any strides, so that both may lie in one memory; a page holds any
// number of keys, 1 or more. Resident key n of sequence b is row n % page of page number
//
//   table[b, n / page]          dense: i32 or i64 [B, max]
//   table[begins[b] + n / page] with begins, as in compressed sparse rows: i32 or i64 [numbers]
//
// With pages of one key the numbers are those of slots. A page may serve several sequences. Numbers
// of pages that hold no resident key name nothing and are not read; all others must be those of
// pages that k and v have.
struct PageTable {
  TensorView table;  // absent: there are no pages
  // i32 or i64 [B + 1], rising from 0 or more: sequence b has the numbers begins[b] ≤ x < begins[b
  // + 1]
  TensorView begins;
  // Tk: the keys that bias, mask, block map, weights and scores have room for, and the most that a
  // sequence may have. 0 = as many as fit: the width of the table, or the most numbers that a
  // sequence has, times page.
  int64_t keys = 0;

  // k and v are in pages.
  constexpr bool present() const { return table.present(); }
};

}  // namespace fovea

#endif  // FOVEA_CACHE_H_
