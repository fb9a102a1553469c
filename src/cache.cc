#include "cache.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "views.h"

namespace fovea {
namespace {

// Numbers in pages.table of sequence b.
int64_t NumbersOf(const PageTable& pages, int64_t b) {
  return pages.begins.present() ? ReadInteger(pages.begins, b + 1) - ReadInteger(pages.begins, b)
                                : pages.table.shape[1];
}

// Keys of so many pages; kMostPosition for more.
int64_t KeysOf(int64_t numbers, int64_t page) {
  int64_t keys;
  return __builtin_mul_overflow(numbers, page, &keys) ? kMostPosition
                                                      : std::min(keys, kMostPosition);
}

// pages.begins: rising, and within the table.
Status CheckBegins(const PageTable& pages, int64_t B, int64_t* most) {
  const TensorFacts begins = Facts("pages.begins", pages.begins);
  FOVEA_RETURN_IF_ERROR(CheckShape(begins, 0, B + 1, "B + 1"));
  FOVEA_RETURN_IF_ERROR(CheckNotNull(begins));
  int64_t before = 0;
  for (int64_t b = 0; b <= B; ++b) {
    const int64_t begin = ReadInteger(pages.begins, b);
    if (begin < before || begin > pages.table.shape[0]) {
      return Invalid("pages.begins[%" PRId64 "] = %" PRId64 ", expected %" PRId64
                     " (%s) to %" PRId64 " (pages.table.shape[0])",
                     b, begin, before, b == 0 ? "none before" : "the one before",
                     pages.table.shape[0]);
    }
    if (b > 0) *most = std::max(*most, begin - before);
    before = begin;
  }
  return Status();
}

// Whether all of n numbers, `stride` bytes apart, are below `pages`.
template <class T>
bool AreBelow(const char* p, int64_t stride, int64_t n, uint64_t pages) {
  uint64_t beyond = 0;
  for (int64_t x = 0; x < n; ++x, p += stride) {
    T number;
    std::memcpy(&number, p, sizeof(number));
    beyond |= static_cast<uint64_t>(static_cast<uint64_t>(static_cast<int64_t>(number)) >= pages);
  }
  return beyond == 0;
}

}  // namespace

Status CheckCache(const Problem& problem) noexcept {
  const PageTable& pages = problem.pages;
  const TensorView &cu_seqlens_k = problem.cu_seqlens_k, &offsets = problem.score.key_offsets;
  if (!pages.present()) {
    if (pages.begins.present())
      return Invalid("pages.begins.rank = %d, expected 0 (pages.table is absent)",
                     pages.begins.rank);
    if (pages.keys != 0)
      return Invalid("pages.keys = %" PRId64 ", expected 0 (pages.table is absent)", pages.keys);
  } else if (cu_seqlens_k.present()) {
    return Invalid("cu_seqlens_k.rank = %d, expected 0 (k and v lie in pages)", cu_seqlens_k.rank);
  }
  if (!problem.ring) return Status();
  const struct {
    const char* name;
    const TensorView& view;
  } others[] = {
      {"pages.table", pages.table}, {"cu_seqlens_k", cu_seqlens_k}, {"key_offsets", offsets}};
  for (const auto& other : others) {
    if (other.view.present())
      return Invalid("ring = true with %s (rank %d), expected one of them", other.name,
                     other.view.rank);
  }
  return Status();
}

Status CheckPages(const Problem& problem, int64_t B, int64_t* page, int64_t* Tk) noexcept {
  const PageTable& pages = problem.pages;
  const TensorFacts table = Facts("pages.table", pages.table);
  const bool has_begins = pages.begins.present();
  if (table.rank != (has_begins ? 1 : 2)) {
    return Invalid("pages.table.rank = %d, expected %s", table.rank,
                   has_begins ? "1 (pages.begins are given)" : "2 (pages.begins are absent)");
  }
  if (problem.k.shape[2] < 1) {
    return Invalid("k.shape[2] = %" PRId64 ", expected 1 or greater (keys of a page)",
                   problem.k.shape[2]);
  }
  if (pages.keys < 0 || pages.keys > kMostPosition) {
    return Invalid("pages.keys = %" PRId64 ", expected 0 (as many as fit) to 2^62", pages.keys);
  }
  int64_t numbers = 0;
  if (has_begins) {
    FOVEA_RETURN_IF_ERROR(CheckBegins(pages, B, &numbers));
  } else {
    FOVEA_RETURN_IF_ERROR(CheckShape(table, 0, B, "B"));
    numbers = table.shape[1];
  }
  *page = problem.k.shape[2];
  *Tk = pages.keys > 0 ? pages.keys : KeysOf(numbers, *page);
  return Status();
}

Status ReadKeys(const Problem& problem, int64_t b, int64_t most, const char* most_name,
                KeyRange* keys) noexcept {
  const TensorView &lengths = problem.score.kv_lengths, &offsets = problem.score.key_offsets;
  const int64_t rows = most;  // of a ring
  if (problem.pages.present()) {
    const int64_t fit = KeysOf(NumbersOf(problem.pages, b), problem.k.shape[2]);
    if (!lengths.present() && fit < most) {
      return Invalid("kv_lengths is absent, expected lengths: the pages of sequence %" PRId64
                     " hold %" PRId64 " keys of %" PRId64 " (Tk)",
                     b, fit, most);
    }
    if (fit < most) most = fit, most_name = "what its pages hold";
  }
  int64_t length = most;
  if (lengths.present()) {
    length = ReadInteger(lengths, b);
    if (problem.ring) most = kMostPosition, most_name = "2^62";
    if (length < 0 || length > most) {
      return Invalid("kv_lengths[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64 " (%s)", b,
                     length, most, most_name);
    }
  }
  *keys = {0, length};
  if (problem.ring) keys->first = length - std::min(length, rows);
  if (!offsets.present()) return Status();
  keys->first = ReadInteger(offsets, b);
  if (keys->first < 0 || keys->first > kMostPosition - length) {
    return Invalid("key_offsets[%" PRId64 "] = %" PRId64 ", expected 0 to %" PRId64
                   " (2^62 less its keys)",
                   b, keys->first, kMostPosition - length);
  }
  keys->end = keys->first + length;
  return Status();
}

Status CheckNumbers(const Problem& problem, int64_t b, int64_t kv_length) noexcept {
  const PageTable& pages = problem.pages;
  const TensorView& table = pages.table;
  const int64_t page = problem.k.shape[2], all = problem.k.shape[0];
  const int64_t n = kv_length / page + (kv_length % page != 0 ? 1 : 0);
  const bool has_begins = pages.begins.present();
  const int64_t first = has_begins ? ReadInteger(pages.begins, b) : 0;
  const int64_t stride = table.stride[has_begins ? 0 : 1];
  const char* const p =
      static_cast<const char*>(table.data) + (has_begins ? first * stride : b * table.stride[0]);
  const uint64_t limit = static_cast<uint64_t>(all);
  if (table.dtype == DType::kI32 ? AreBelow<int32_t>(p, stride, n, limit)
                                 : AreBelow<int64_t>(p, stride, n, limit))
    return Status();
  for (int64_t x = 0; x < n; ++x) {
    const int64_t number = has_begins ? ReadInteger(table, first + x) : ReadInteger(table, b, x);
    if (number >= 0 && number < all) continue;
    if (has_begins) {
      return Invalid("pages.table[%" PRId64 "] = %" PRId64
                     ", expected 0 or greater and less than %" PRId64 " (k.shape[0]): page %" PRId64
                     " of sequence %" PRId64,
                     first + x, number, all, x, b);
    }
    return Invalid("pages.table[%" PRId64 ",%" PRId64 "] = %" PRId64
                   ", expected 0 or greater and less than %" PRId64 " (k.shape[0])",
                   b, x, number, all);
  }
  return Status();
}

}  // namespace fovea
