// A cache of keys and values: one description that attention reads from and Append writes to, how
// many bytes it has, and how new tokens get into it. Letters as everywhere: B sequences, Hkv
// key/value heads, n new tokens of each sequence, dk key size, dv value size.
//
//   CacheShape shape;
//   shape.pages = 1000, shape.page = 16, shape.heads = 8, shape.dk = shape.dv = 128;
//   shape.k.dtype = shape.v.dtype = DType::kQ8_0;
//   int64_t bytes;
//   Status s = CacheBytes(shape, &bytes);
//   KVCache cache;
//   s = MakeCache(shape, memory, bytes, &cache);   // or fill in views of any other layout
//   s = Append(cache, tokens);                     // each step: new keys and values
//   SetCache(cache, &problem);                     // and attention over all of them
#ifndef FOVEA_KV_CACHE_H_
#define FOVEA_KV_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "fovea/attention.h"
#include "fovea/cache.h"
#include "fovea/detail/macros_begin.h"
#include "fovea/executor.h"
#include "fovea/export.h"
#include "fovea/status.h"
#include "fovea/target.h"
#include "fovea/tensor.h"

namespace fovea {

struct AppendRows;  // of the library's own sources

// Where keys and values lie, and as what. Rows are numbered through: row r of k is k[r / P, :, r %
// P], P the size of its third axis. Pages of P keys each; or, of caches without pages, sequence b
// has the rows b·P … b·P + P − 1. Any strides, but that units of quantised types are side by side.
// Two tensors may lie in one memory, row by row; no two elements in the same bytes.
struct KVCache {
  MutableTensorView k;  // [pages, Hkv, P, dk]; a float type or a quantised one
  MutableTensorView v;  // [pages, Hkv, P, dv]; its own type; absent where V lies within K
  // Of types with HasScaleViews, as Problem has them. Scales that Append writes are f32 [pages,
  // Hkv, P, groups], one for each group of channels of each token; those that it only reads are of
  // any shape that Problem allows.
  MutableTensorView k_scale;
  MutableTensorView k_zero;   // likewise; of u8, u4 and u4_high, which Append writes too
  MutableTensorView v_scale;  // of v, as k_scale
  MutableTensorView v_zero;   // of v, as k_zero
  // k_scale is the caller's and stays as it is: i8, i4, i4_high. (That of f8 always does.)
  bool k_scale_fixed = false;
  bool v_scale_fixed = false;  // of v, as k_scale_fixed
  // As Problem::k_group_stride: bytes from one group of channels to the next where scales lie
  // between the groups of a row; 0: the channels of a row are dense. Of scales that are written.
  int64_t k_group_stride = 0;
  int64_t v_group_stride = 0;  // of v, as k_group_stride
  bool ring = false;           // as Problem::ring: position p lies in row p mod P
};

// Lets `problem` read the cache: sets k, v, their scales, zeros and group strides, and ring. What
// changes from step to step, pages.table and score.kv_lengths, is up to the caller.
FOVEA_EXPORT void SetCache(const KVCache& cache, Problem* problem) noexcept;

// ---- memory for a cache ----

// How the keys, or the values, of a cache are stored.
struct CacheFormat {
  DType dtype = DType::kF32;  // any that Problem::k may have
  int64_t group = 0;          // channels that share a scale; 0 = all of a row
  // The scales are the caller's, and take no room in the cache: i8, i4, i4_high. (Those of f8 never
  // do.)
  bool scale_fixed = false;
};

// A cache as MakeCache lays it out. A page, or the rows of a sequence, is one block of bytes: K of
// all heads, V of all heads, then scales and zeros. So a page is copied, moved or dropped as one.
struct CacheShape {
  int64_t pages = 0;  // pages; or sequences of a cache without pages
  int64_t page = 0;   // P: keys of a page; or the capacity of each sequence
  int64_t heads = 0;  // Hkv
  int64_t dk = 0;     // whole units of k.dtype
  int64_t dv = 0;     // whole units of v.dtype; 0: V lies within K
  CacheFormat k;      // of the keys
  CacheFormat v;      // of the values
  bool ring = false;  // as KVCache::ring
};

// The bytes of such a cache, those of one page times `pages`; a page takes a multiple of 64 bytes.
// Errors: negative sizes, rows that are no whole units, 2^63 bytes or more.
FOVEA_EXPORT Status CacheBytes(const CacheShape& shape, int64_t* bytes) noexcept;

// The views of such a cache in `memory`, which belongs to the caller and is neither read nor
// written: of at least CacheBytes(shape), at an address that is a multiple of 64. Fixed scales are
// left absent: the caller sets them. On an error *cache is unchanged.
FOVEA_EXPORT Status MakeCache(const CacheShape& shape, void* memory, int64_t bytes,
                              KVCache* cache) noexcept;

// ---- writing ----

// New keys and values, and where they go: to slots, or behind what each sequence has already.
struct NewTokens {
  TensorView k;  // f32, f16 or bf16 [B, Hkv, n, dk], any strides
  TensorView v;  // f32, f16 or bf16 [B, Hkv, n, dv], any strides; absent as that of the cache
  // Packed: i32 or i64 [B + 1], rising from 0 or more. The tokens of sequence b are then rows
  // cu_seqlens[b] ≤ row < cu_seqlens[b + 1] of k and v [1, Hkv, rows, d].
  TensorView cu_seqlens;

  // Slots: i32 or i64 [B, n], or [rows] of packed tokens: the number of the row (KVCache) that a
  // token goes to; below 0: it is skipped. Of equal slots the last one wins.
  TensorView slots;

  // Without slots: token i of sequence b goes to position past_lengths[b] + i. i32 or i64 [B]: the
  // keys that each sequence has before (of a ring: has ever had); absent: none.
  TensorView past_lengths;
  PageTable pages;  // as attention reads it: which pages the positions lie in

  TensorView lengths;  // i32 or i64 [B], 0 … n: so many tokens of each sequence are there; or all
};

// What Append tells.
struct AppendResult {
  // Elements that were NaN and are numbers in the cache, since its integer codes have no NaN: those
  // of i8, i4 and i4_high with fixed scales. Every other format keeps NaN: as such, or by a NaN
  // scale of all channels that share it.
  int64_t lost_nans = 0;
};

// What a caller may prescribe.
struct AppendOptions {
  // StatusCode::kUnsupported for one that is not usable; changes no bit
  Target target = Target::kAuto;
};

// Writes new tokens into the cache, each element rounded to nearest even in float types, else as
// the scalar writer of its type does (docs/caches.md, "Writing"): the same bytes on every target
// and for any number of threads. Does not allocate. In the default floating-point state, as all of
// fovea/attention.h. Thread-safe for caches, or rows, that no other call reads or writes meanwhile.
//
// Errors, before anything is written: what contradicts itself; slots, positions and needed numbers
// of pages out of range (kInvalidArgument); types that are only read, iq4_nl and codes with f32_z4
// scales, and scales or zeros that several tokens share and that are not fixed, since a token would
// have others coded again (kUnsupported).
FOVEA_EXPORT Status Append(const KVCache& cache, const NewTokens& tokens,
                           AppendResult* result = nullptr,
                           Executor& executor = SerialExecutor()) noexcept;
// The same, on the target of the options.
FOVEA_EXPORT Status Append(const KVCache& cache, const NewTokens& tokens,
                           const AppendOptions& options, AppendResult* result,
                           Executor& executor) noexcept;

// The host-driven path: a checked call as independent tasks. The host runs each once, on any
// threads and in any order.
//
// Owns nothing: cache, tokens, their slots, lengths and tables, and *result must outlive it.
// Trivially copyable; no heap.
class FOVEA_EXPORT BoundAppend {
 public:
  // How many tasks there are; 0 before BindAppend.
  int64_t Tasks() const noexcept { return tasks_; }
  // Runs one task, which must exist. Never throws, allocates or blocks. Adds to the result given.
  void RunTask(int64_t task) const noexcept;

  // For the library's own sources.
  struct Access;

 private:
  KVCache cache_;
  NewTokens tokens_;
  int64_t tasks_ = 0;
  int64_t parts_ = 1;  // rows of the cache are dealt out to so many, a power of 2
  int64_t head_blocks_ = 1;
  int64_t (*write_)(const AppendRows& rows) = nullptr;  // of the target
  AppendResult* result_ = nullptr;
};

// Checks everything and fills *call, as Append does. `result` may be null; else it is set to 0. No
// allocation; on an error *call is unchanged.
FOVEA_EXPORT Status BindAppend(const KVCache& cache, const NewTokens& tokens,
                               const AppendOptions& options, AppendResult* result,
                               BoundAppend* call) noexcept;

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_KV_CACHE_H_
