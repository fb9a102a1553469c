// NaN and infinities in V: what a removed pair's V holds must not reach a sum, where 0·NaN is NaN.
//
// The hot loops stay plain. Of a block of which some tile removes pairs, the engine's values get
// zeros in the place of non-finite elements, and their rows are noted ("poisoned"). The rows of a
// tile that do see such a key get its p·v afterwards. Where V is finite this costs a look at it.
#if defined(FOVEA_SRC_KERNELS_NONFINITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_NONFINITE_INL_H_
#undef FOVEA_SRC_KERNELS_NONFINITE_INL_H_
#else
#define FOVEA_SRC_KERNELS_NONFINITE_INL_H_
#endif

#include "kernels/kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Whether any of n rows of d floats holds a NaN or an infinity: then 0·x is NaN.
template <class T, class Rows>
HWY_INLINE bool HasNonFiniteOf(const Rows& rows, int64_t n, int64_t d) {
  const DF df;
  const VF zero = hn::Zero(df);
  VF sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
  for (int64_t j = 0; j < n; ++j) {
    const T* p = rows.template Row<T>(j);
    int64_t c = 0;
    for (; c + 4 * kLanes <= d; c += 4 * kLanes) {
      sum0 = hn::MulAdd(LoadAsF32(p + c), zero, sum0);
      sum1 = hn::MulAdd(LoadAsF32(p + c + kLanes), zero, sum1);
      sum2 = hn::MulAdd(LoadAsF32(p + c + 2 * kLanes), zero, sum2);
      sum3 = hn::MulAdd(LoadAsF32(p + c + 3 * kLanes), zero, sum3);
    }
    for (; c + kLanes <= d; c += kLanes) sum0 = hn::MulAdd(LoadAsF32(p + c), zero, sum0);
    if (c < d) sum1 = hn::MulAdd(LoadAsF32(p + c, d - c), zero, sum1);
  }
  return !hn::AllTrue(df, hn::Eq(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)), zero));
}

template <class Rows>
HWY_NOINLINE bool HasNonFinite(const Rows& rows, int64_t n, int64_t d) {
  return WithVectorType(
      rows.dtype, [&](auto zero) HWY_ATTR { return HasNonFiniteOf<decltype(zero)>(rows, n, d); });
}

// Copies n rows to `to` (which may be the rows themselves), f32, with non-finite elements zeroed,
// and notes the rows that had any. Rows of `to` have room for whole vectors.
template <class T, class Rows>
HWY_INLINE void IsolateNonFiniteOf(const Rows& rows, int64_t n, int64_t d, float* to,
                                   int64_t to_stride, uint64_t* poisoned) {
  const DF df;
  const VF zero = hn::Zero(df);
  for (int64_t j = 0; j < n; ++j) {
    if (j % 64 == 0) poisoned[j / 64] = 0;
    bool finite = true;
    for (int64_t c = 0; c < d; c += kLanes) {
      const VF x = LoadAsF32(rows.template Row<T>(j) + c, std::min<int64_t>(d - c, kLanes));
      const auto is_finite = hn::Eq(hn::Mul(x, zero), zero);
      finite = finite && hn::AllTrue(df, is_finite);
      hn::StoreU(hn::IfThenElseZero(is_finite, x), df, to + j * to_stride + c);
    }
    if (!finite) poisoned[j / 64] |= uint64_t{1} << (j % 64);
  }
}

template <class Rows>
HWY_NOINLINE void IsolateNonFinite(const Rows& rows, int64_t n, int64_t d, float* to,
                                   int64_t to_stride, uint64_t* poisoned) {
  WithVectorType(rows.dtype, [&](auto zero) HWY_ATTR {
    IsolateNonFiniteOf<decltype(zero)>(rows, n, d, to, to_stride, poisoned);
  });
}

// Zeroes the non-finite elements of n interleaved rows of d values, and notes the rows that had
// any. `v` has `stride` pairs a row of pairs.
inline HWY_NOINLINE void IsolateNonFinitePairs(float* v, int64_t stride, int64_t n, int64_t d,
                                               uint64_t* poisoned) {
  for (int64_t j = 0; j < n; ++j) {
    if (j % 64 == 0) poisoned[j / 64] = 0;
    char* p = reinterpret_cast<char*>(v + j / 2 * stride) + 2 * (j % 2);
    for (int64_t c = 0; c < d; ++c, p += 4) {
      if ((ReadAs<uint16_t>(p) & 0x7f80) != 0x7f80) continue;
      std::memset(p, 0, 2);
      poisoned[j / 64] |= uint64_t{1} << (j % 64);
    }
  }
}

// Which pairs of a tile's rows are removed by other than position: asked one by one, where V holds
// NaN.
class Removals {
 public:
  Removals(const Job& job, const Tile& tile) : job_(job) {
    const Score& score = job.call.problem->score;
    for (int x = 0; x < 2; ++x) {
      const TensorView& view = x == 0 ? score.bias : score.mask;
      if (!view.present()) continue;
      const Broadcast from = BroadcastView(view);
      const int n = views_++;
      view_[n] = from;
      ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
        row_[n][r] = from.Row(job.item.sequence, h, i);
      });
    }
  }

  // Of row r, which is query i of head h, and the key at a position.
  HWY_INLINE bool Has(int r, int64_t h, int64_t i, int64_t position) const {
    const int64_t j = job_.Column(position);
    for (int n = 0; n < views_; ++n) {
      const Broadcast& from = view_[n];
      if (from.dtype == DType::kBool ? row_[n][r][j * from.stride[3]] == 0
                                     : ValueAt(from, row_[n][r], j) == MinusInfinityScalar()) {
        return true;
      }
    }
    const Score& score = job_.call.problem->score;
    return (score.block_map.visible.present() || score.parents.present()) &&
           IsRemovedByMapOrTree(h, i, position);
  }

 private:
  HWY_NOINLINE bool IsRemovedByMapOrTree(int64_t h, int64_t i, int64_t position) const {
    const Score& score = job_.call.problem->score;
    const BlockMap& map = score.block_map;
    if (map.visible.present()) {
      const Broadcast visible = BroadcastView(map.visible);
      if (ValueAt(visible, visible.Row(job_.item.sequence, h, i / map.queries),
                  job_.Column(position) / map.keys) != 0.0f)
        return true;
    }
    const int64_t node = position - job_.sequence.offset;
    return score.parents.present() && node >= 0 &&
           !job_.call.trees.Sees(job_.item.sequence, i, node);
  }

  const Job& job_;
  int views_ = 0;
  Broadcast view_[2];
  const char* row_[2][kMaxTileLanes];
};

// Which pairs of a part the caller's score function has removed, of the keys where V holds NaN:
// only the scores know it, so it is noted before softmax takes their place.
class RemovedByFunction {
 public:
  template <class Lanes>
  HWY_INLINE void Note(const Job& job, const Part& part, const uint64_t* poisoned) {
    if (job.call.problem->score.function.present()) NoteScores<Lanes>(job, part, poisoned);
  }
  bool Has(const Job& job, int r, int64_t j) const {
    return job.call.problem->score.function.present() && (rows_[j] >> r & 1) != 0;
  }

 private:
  template <class Lanes>
  HWY_NOINLINE void NoteScores(const Job& job, const Part& part, const uint64_t* poisoned) {
    HWY_DASSERT(part.block.n <= kMostBlockKeys);
    for (int64_t j = part.span.first; j < part.span.end; ++j) {
      if ((poisoned[j / 64] >> (j % 64) & 1) == 0) continue;
      rows_[j] = 0;
      for (int r = 0; r < part.tile->count; ++r) {
        const float s = part.s[Lanes::Index(r, j, job.g.block_keys)];
        rows_[j] |= uint64_t{s == MinusInfinityScalar()} << r;
      }
    }
  }

  uint64_t rows_[kMostBlockKeys];  // bit r: row r
};
static_assert(kMaxTileLanes <= 64, "a bit for each row");

// Adds p·v for the non-finite elements of V that TakeValues left out, in the rows that do see them.
template <class Engine>
inline HWY_NOINLINE void AddPoisoned(const Job& job, const Part& part, const uint64_t* poisoned,
                                     const RemovedByFunction& removed) {
  using Lanes = typename Engine::Lanes;
  const Geometry& g = job.g;
  const TensorView& v = job.call.problem->v;
  const Tile& tile = *part.tile;
  float* const v_row = job.w.v_row;
  const Removals removals(job, tile);
  for (int64_t j = part.span.first; j < part.span.end; ++j) {
    if ((poisoned[j / 64] >> (j % 64) & 1) == 0) continue;
    const int64_t key = part.block.first + j;
    bool loaded = false;
    ForEachRow(job, tile, [&](int r, int64_t h, int64_t i) {
      if (key < tile.visible[r].first || key >= tile.visible[r].end || removals.Has(r, h, i, key) ||
          removed.Has(job, r, j))
        return;
      if (!loaded)
        LoadKeys(job.call, job.item, v, RunFrom(job.call, job.item, v, key), 1, v_row, 0);
      loaded = true;
      const float p = Engine::Weights::template At<Lanes>(part.s, r, j, g.block_keys);
      for (int64_t c = 0; c < g.dv; ++c) {
        if (v_row[c] - v_row[c] != 0.0f)
          tile.o[Engine::OutputLanes::Index(r, c, g.dv)] += p * v_row[c];
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
