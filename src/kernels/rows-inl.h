// K and V of a block as the row engine reads them: the address of every row, whatever lies between
// them, and which lines are prefetched while they are multiplied. Knows neither products nor
// softmax.
#if defined(FOVEA_SRC_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_ROWS_INL_H_
#undef FOVEA_SRC_KERNELS_ROWS_INL_H_
#else
#define FOVEA_SRC_KERNELS_ROWS_INL_H_
#endif

#include "kernels/ahead-inl.h"
#include "kernels/products-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Keys of a block: a step of m, and a chain of P·V. K and V of so many lie in L1 beside each other.
constexpr int kRowBlockKeys = 32;

// The rows of a block of K or V.
struct KeyRows {
  const char* row[kRowBlockKeys];
  DType dtype;  // of WithVectorType
  // Rows to be prefetched beside, then the last one again; the first bytes of each, 0 for nothing.
  const char* ahead[kRowBlockKeys + 1];
  int64_t ahead_bytes;

  template <class T>
  HWY_INLINE const T* Row(int64_t j) const {
    return reinterpret_cast<const T*>(row[j]);
  }
};

// rows[j] = the row of key j of the block, where it is resident.
HWY_INLINE void FindRows(const KernelCall& call, const Item& item, const TensorView& view,
                         const Block& block, const char** rows) {
  ForEachRun(call, item, view, block, [&](const KeyRun& run, int64_t j) {
    const char* HWY_RESTRICT row = run.row;
    const int64_t stride = run.row_stride;
    for (int64_t x = 0; x < run.n; ++x) rows[j + x] = row + x * stride;
  });
}

// Whether every row can be read in place.
HWY_INLINE bool IsInPlace(const TensorView& view) {
  if (!IsVectorType(view.dtype)) return false;
  const int64_t size = SizeOf(view.dtype);
  bool plain = view.stride[3] == size &&
               reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(size) == 0;
  for (int axis = 0; axis < 3; ++axis) plain = plain && view.stride[axis] % size == 0;
  return plain;
}

// ---- prefetching ----
//
// Loads that ascend through a stream of rows with few multiply-adds between them keep a core's own
// prefetchers busy. Other loops are told which lines come next, one by one, in the order of the
// stream. On targets with many registers each of K and V looks ahead in itself, far enough for
// memory to answer; with few, what is multiplied next is prefetched meanwhile: V beside K, the next
// block of K beside V.

constexpr int64_t kAheadBytes = 12288;

// Whether K's or V's own rows are prefetched, `rows` query rows being multiplied by them.
HWY_INLINE bool WantsPrefetch(const TensorView& view, int64_t rows, int64_t row_bytes) {
  const bool few_products =
      rows == 1 || (kManyRegisters && HWY_ARCH_X86 && view.dtype == DType::kF32);
  return !few_products || view.stride[2] != row_bytes;
}

// The item's rows from position `first` on, and behind them those that the next item reads first.
HWY_INLINE void FindRowsAhead(const Job& job, const TensorView& view, int64_t first, int64_t n,
                              const char** rows) {
  first = std::max(first, job.item.keys.first);
  const int64_t mine = std::clamp<int64_t>(job.item.keys.end - first, 0, n);
  if (mine > 0) FindRows(job.call, job.item, view, {first, mine, 0}, rows);
  int64_t found = mine;
  if (found < n && job.call.next != nullptr) {
    const Block next = FirstBlock(job.call, *job.call.next);
    const int64_t skipped = next.begin + std::max<int64_t>(first - job.item.keys.end, 0);
    const int64_t some = std::clamp<int64_t>(next.n - skipped, 0, n - found);
    if (some > 0)
      FindRows(job.call, *job.call.next, view, {next.first + skipped, some, 0}, rows + found);
    found += some;
  }
  const char* const last = found > 0 ? rows[found - 1] : static_cast<const char*>(view.data);
  std::fill(rows + found, rows + kRowBlockKeys + 1, last);
}

// What to prefetch while the block's rows of `view` are multiplied; `other` is V for K.
HWY_INLINE void PlanPrefetch(const Job& job, const TensorView& view, const TensorView& other,
                             bool is_key, const Block& block, KeyRows& to) {
  const TensorView& from = kManyRegisters ? view : other;
  const int64_t row_bytes = BytesOf(from.dtype, from.shape[3]);
  to.ahead_bytes = 0;
  if (from.stride[3] != UnitBytes(from.dtype) || row_bytes == 0 ||
      !WantsPrefetch(from, job.g.tile_lanes, row_bytes))
    return;
  to.ahead_bytes = row_bytes;
  int64_t first = block.first;
  if (kManyRegisters) {
    first += (kAheadBytes + row_bytes - 1) / row_bytes;
  } else if (!is_key) {
    first = std::min(first + job.g.block_keys, job.item.keys.end);
  }
  FindRowsAhead(job, from, first, block.n, to.ahead);
}

// Goes through the lines of KeyRows::ahead, `steps` for each of its rows.
class LinesAhead {
 public:
  LinesAhead() = default;  // goes through none
  LinesAhead(const KeyRows& rows, int64_t steps) {
    if (rows.ahead_bytes == 0) return;
    row_ = rows.ahead;
    at_ = *row_++;
    bytes_ = (rows.ahead_bytes + steps - 1) / steps;
    steps_ = left_ = steps;
  }

  // kBytes are read meanwhile.
  template <int kBytes>
  HWY_INLINE void Step() {
    if (bytes_ == 0) return;
    __builtin_prefetch(at_, 0, 2);
    for (int x = kLine; x < kBytes; x += kLine) __builtin_prefetch(at_ + x, 0, 2);
    at_ += bytes_;
    if (--left_ == 0) {
      at_ = *row_++;
      left_ = steps_;
    }
  }

 private:
  static constexpr int kLine = 64;

  const char* const* row_ = nullptr;
  const char* at_ = nullptr;
  int64_t bytes_ = 0;  // from step to step
  int64_t steps_ = 0;
  int64_t left_ = 0;
};

// ---- taking ----

// The block's rows are those of a copy, f32, `stride` floats apart.
HWY_INLINE void UseCopies(const Block& block, const float* copy, int64_t stride, KeyRows& to) {
  to.dtype = DType::kF32;
  for (int64_t j = 0; j < block.n; ++j)
    to.row[j] = reinterpret_cast<const char*>(copy + j * stride);
}

// Rows of a run, `stride` bytes from element to element, side by side.
HWY_INLINE void CopyStored(const KeyRun& run, int64_t stride, int64_t size, int64_t channels,
                           char* to, int64_t to_stride) {
  for (int64_t j = 0; j < run.n; ++j, to += to_stride) {
    const char* const row = run.row + j * run.row_stride;
    for (int64_t c = 0; c < channels; ++c)
      std::memcpy(to + c * size, row + c * stride, static_cast<size_t>(size));
  }
}

// Rows of K or V of a block, in place, or copied as f32; with `as_stored` vectors' types keep
// theirs, so that products go in the same order. For keys that are not resident the first one that
// is stands in, or zeros.
HWY_INLINE void TakeKeyRows(const Job& job, const TensorView& view, const Block& block,
                            bool as_stored, float* copy, KeyRows& to) {
  if (IsInPlace(view)) {
    to.dtype = view.dtype;
    FindRows(job.call, job.item, view, block, to.row);
    std::fill_n(to.row, block.begin, to.row[block.begin]);
    return;
  }
  as_stored = as_stored && IsVectorType(view.dtype);
  const int64_t channels = view.shape[3], stride = CopiedStride(channels);
  std::fill_n(copy, block.begin * stride, 0.0f);
  UseCopies(block, copy, stride, to);
  if (as_stored) to.dtype = view.dtype;
  ForEachRun(job.call, job.item, view, block, [&](const KeyRun& some, int64_t j) {
    float* const rows = copy + j * stride;
    if (as_stored) {
      CopyStored(some, view.stride[3], SizeOf(view.dtype), channels, reinterpret_cast<char*>(rows),
                 stride * int64_t{sizeof(float)});
    } else {
      LoadKeys(job.call, job.item, view, some, some.n, rows, stride);
    }
  });
}

struct RowValues {
  KeyRows rows;
  const uint64_t* poisoned;  // as in BlockValues
};

// How the row engine takes Q, K and V, and keeps O.
struct RowOperands : F32Operands<LanesAreChannels, 0, true> {
  using Keys = KeyRows;
  using Values = RowValues;
  static constexpr int kSegmentKeys = kRowBlockKeys;
  static constexpr bool kPrefetchesRows = true;

  static HWY_INLINE void PackQueries(const Job& job, Tile& tile) {
    HWY_NAMESPACE::PackQueries<LanesAreChannels>(job, tile);
    const TensorView& k = job.call.problem->k;
    if (!IsVectorType(k.dtype)) return;
    WithVectorType(k.dtype, [&](auto zero) HWY_ATTR {
      using T = decltype(zero);
      if constexpr (kEvenAndOdd<T>) {
        const int64_t floats = LanesAreChannels::TileFloats(tile.count, job.g.dk);
        for (float* p = tile.q; p < tile.q + floats; p += kPair) {
          VF a = hn::Load(DF(), p), b = hn::Load(DF(), p + kLanes);
          ToPairOrder<T>(a, b);
          hn::Store(a, DF(), p);
          hn::Store(b, DF(), p + kLanes);
        }
      }
    });
  }

  static HWY_INLINE KeyRows TakeKeys(const Job& job, const Block& block) {
    const Problem& problem = *job.call.problem;
    KeyRows k;
    TakeKeyRows(job, problem.k, block, true, job.w.k, k);
    PlanPrefetch(job, problem.k, problem.v, true, block, k);
    return k;
  }
  static HWY_INLINE RowValues TakeValues(const Job& job, const Block& block, bool removes) {
    const Problem& problem = *job.call.problem;
    const Scratch& w = job.w;
    const int64_t dv = job.g.dv;
    RowValues v;
    v.poisoned = nullptr;
    TakeKeyRows(job, problem.v, block, false, w.v, v.rows);
    PlanPrefetch(job, problem.v, problem.k, false, block, v.rows);
    if (job.value_scale != 1.0f) {
      CopyScaled(v.rows, block.n, dv, job.value_scale, w.v, CopiedStride(dv));
      UseCopies(block, w.v, CopiedStride(dv), v.rows);
    }
    if (removes && HasNonFinite(v.rows, block.n, dv)) {
      IsolateNonFinite(v.rows, block.n, dv, w.v, CopiedStride(dv), w.poisoned);
      UseCopies(block, w.v, CopiedStride(dv), v.rows);
      v.poisoned = w.poisoned;
    }
    return v;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
