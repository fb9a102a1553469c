// The row engine's f32 micro-kernels: lanes hold the head dimension of K and V rows, which are read
// in place, row by row, for all query rows of a tile, so that K and V stream from memory exactly
// once. Rows of 16 bits are widened in registers: they are half as many bytes.
#if defined(FOVEA_SRC_KERNELS_ROW_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#undef FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#else
#define FOVEA_SRC_KERNELS_ROW_F32_INL_H_
#endif

#include "kernels/chains-inl.h"
#include "kernels/pipeline-inl.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Query rows that are multiplied by a row of K or V when it comes from memory. Where a loop has at
// most two multiply-adds for a line the core keeps on reading ahead; the other rows follow while
// the keys are in L1. Few registers hold too few sums for that, and widening would be done twice.
template <class T>
constexpr int kRowsAtOnce = HWY_ARCH_X86 && kManyRegisters && std::is_same_v<T, float> ? 2 : 4;

// ---- sums of lanes ----

// The sums of the lanes of four vectors, in each block of 128 bits: Σ a, Σ b, Σ c, Σ d of the
// block.
HWY_INLINE VF AddNeighbours(VF a, VF b) {
  const DF df;
  return hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
}
HWY_INLINE VF AddPairs(VF ab, VF cd) {
  const DF df;
  const hn::Repartition<uint64_t, DF> du;
  const auto x = hn::BitCast(du, ab), y = hn::BitCast(du, cd);
  return hn::Add(hn::BitCast(df, hn::InterleaveLower(du, x, y)),
                 hn::BitCast(df, hn::InterleaveUpper(du, x, y)));
}

// Block n of the result is the sum of the blocks of t[n].
HWY_INLINE VF AddBlocks(const VF* t) {
  const DF df;
  if constexpr (kLanes == 4) {
    return t[0];
  } else if constexpr (kLanes == 8) {
    return hn::Add(hn::ConcatLowerLower(df, t[1], t[0]), hn::ConcatUpperUpper(df, t[1], t[0]));
  } else {
    const VF a =
        hn::Add(hn::ConcatLowerLower(df, t[2], t[0]), hn::ConcatUpperUpper(df, t[2], t[0]));
    const VF b =
        hn::Add(hn::ConcatLowerLower(df, t[3], t[1]), hn::ConcatUpperUpper(df, t[3], t[1]));
    return hn::Add(hn::OddEvenBlocks(b, a),
                   hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), hn::SwapAdjacentBlocks(a)));
  }
}

// ---- scores ----

// sum[r] = Σ_c k[c] · q[r][c] lane by lane, c < n, for kRows query rows. q rows are in the order of
// pairs (LoadPair) and padded with zeros.
template <int kRows, class T>
HWY_INLINE void MultiplyKey(const T* HWY_RESTRICT k, const float* HWY_RESTRICT q, int64_t q_stride,
                            int64_t n, LinesAhead& lines, VF* sum) {
  constexpr int kBytes = kPair * sizeof(T);
  const DF df;
  VF a[kRows], b[kRows];
  for (int r = 0; r < kRows; ++r) a[r] = b[r] = hn::Zero(df);
  int64_t c = 0;
  for (; c + kPair <= n; c += kPair) {
    lines.Step<kBytes>();
    VF x, y;
    LoadPair(k + c, x, y);
    for (int r = 0; r < kRows; ++r) a[r] = hn::MulAdd(x, hn::Load(df, q + r * q_stride + c), a[r]);
    for (int r = 0; r < kRows; ++r)
      b[r] = hn::MulAdd(y, hn::Load(df, q + r * q_stride + c + kLanes), b[r]);
  }
  if (c < n) {
    lines.Step<kBytes>();
    VF x, y;
    LoadPair(k + c, n - c, x, y);
    for (int r = 0; r < kRows; ++r) {
      a[r] = hn::MulAdd(x, hn::Load(df, q + r * q_stride + c), a[r]);
      b[r] = hn::MulAdd(y, hn::Load(df, q + r * q_stride + c + kLanes), b[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Add(a[r], b[r]);
}

// Keys that some of the rows are multiplied by before the others are, where not all are at once:
// they stay in L1.
constexpr int64_t kKeysAtOnce = 8;

// Sums of a key and kRows query rows (of kTogether that lie together in S), each over the lanes of
// a block: one vector of them for four rows, or one a key.
template <int kTogether, int kRows, class T>
FOVEA_HOT void RowSumsOf(const KeyRows& k, int64_t begin, int64_t end, const float* HWY_RESTRICT q,
                         int64_t q_stride, int64_t first, int64_t n, float* HWY_RESTRICT sums,
                         LinesAhead& lines) {
  const DF df;
  const VF zero = hn::Zero(df);
  q += first;
  if constexpr (kRows <= kRowsAtOnce<T>) {
    LinesAhead ahead = lines;
    for (int64_t key = begin; key < end; ++key) {
      VF sum[4] = {zero, zero, zero, zero};
      MultiplyKey<kRows>(k.Row<T>(key) + first, q, q_stride, n, ahead, sum);
      if constexpr (kTogether == 4)
        sum[0] = AddPairs(AddNeighbours(sum[0], sum[1]), AddNeighbours(sum[2], sum[3]));
      hn::Store(sum[0], df, sums + key * kLanes);
    }
    lines = ahead;
  } else {
    for (int64_t key = begin; key < end;) {
      const int64_t some_end = std::min(end, RoundUp(key + 1, kKeysAtOnce));
      LinesAhead ahead = lines;
      for (int64_t j = key; j < some_end; ++j) {
        VF sum[2];
        MultiplyKey<2>(k.Row<T>(j) + first, q, q_stride, n, ahead, sum);
        hn::Store(AddNeighbours(sum[0], sum[1]), df, sums + j * kLanes);
      }
      lines = ahead;
      LinesAhead none;
      for (; key < some_end; ++key) {
        VF sum[2] = {zero, zero};
        MultiplyKey<kRows - 2>(k.Row<T>(key) + first, q + 2 * q_stride, q_stride, n, none, sum);
        float* const to = sums + key * kLanes;
        hn::Store(AddPairs(hn::Load(df, to), AddNeighbours(sum[0], sum[1])), df, to);
      }
    }
  }
}

// Scores of those sums, added to s if `adds`: whole vectors of kTogether rows.
template <int kTogether>
FOVEA_HOT void RowScoresOf(const float* HWY_RESTRICT sums, int64_t begin, int64_t end, bool adds,
                           float* HWY_RESTRICT s) {
  const DF df;
  constexpr int kBlocks = kLanes / 4;
  for (int64_t key = begin; key < end; key += kLanes / kTogether) {
    const float* from = sums + key * kLanes;
    VF t[kBlocks];
    for (int x = 0; x < kBlocks; ++x) {
      if constexpr (kTogether == 4) {
        t[x] = hn::Load(df, from);
        from += kLanes;
      } else {
        t[x] = AddPairs(
            AddNeighbours(hn::Load(df, from), hn::Load(df, from + kLanes)),
            AddNeighbours(hn::Load(df, from + 2 * kLanes), hn::Load(df, from + 3 * kLanes)));
        from += 4 * kLanes;
      }
    }
    VF scores = AddBlocks(t);
    float* const to = s + key * kTogether;
    if (adds) scores = hn::Add(hn::Load(df, to), scores);
    hn::Store(scores, df, to);
  }
}

// ---- output ----

// Pairs of vectors of channels that stay in registers while V streams by, for so many query rows:
// half of the register file.
template <int kRows>
constexpr int kRowPairs = HWY_MIN(4, (kManyRegisters ? 8 : 4) / kRows);

// o[r][:] = alpha[r] · o[r][:] + Σ_j p[j][r] · v[j][:], first ≤ j < end, for kRows rows and kPairs
// pairs of vectors of channels from c on; kWhole: of the last pair all are there, else `last`.
template <int kTogether, int kRows, int kPairs, bool kWhole, class T>
FOVEA_HOT void RowAccumulateOf(const KeyRows& v, int64_t c, const float* HWY_RESTRICT p,
                               int64_t first, int64_t end, const float* HWY_RESTRICT alpha,
                               float* HWY_RESTRICT o, int64_t o_stride, int64_t last,
                               LinesAhead& lines) {
  constexpr int kBytes = kPairs * kPair * sizeof(T);
  const DF df;
  LinesAhead ahead = lines;
  VF sum[kRows][2 * kPairs];
  for (int r = 0; r < kRows; ++r) {
    for (int x = 0; x < 2 * kPairs; ++x) sum[r][x] = hn::Zero(df);
  }
  for (int64_t j = first; j < end; ++j) {
    ahead.Step<kBytes>();
    const T* const from = v.Row<T>(j) + c;
    VF x[2 * kPairs];
    for (int y = 0; y < kPairs; ++y) {
      if (kWhole || y + 1 < kPairs) {
        LoadPair(from + y * kPair, x[2 * y], x[2 * y + 1]);
      } else {
        LoadPair(from + y * kPair, last, x[2 * y], x[2 * y + 1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const VF pv = hn::Set(df, p[j * kTogether + r]);
      for (int y = 0; y < 2 * kPairs; ++y) sum[r][y] = hn::MulAdd(x[y], pv, sum[r][y]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const VF a = hn::Set(df, alpha[r]);
    for (int y = 0; y < kPairs; ++y) {
      FromPairOrder<T>(sum[r][2 * y], sum[r][2 * y + 1]);
      for (int x = 0; x < 2; ++x) {
        float* const to = o + r * o_stride + c + y * kPair + x * kLanes;
        // Two roundings: the bits do not depend on whether a block that no row sees is visited.
        hn::Store(hn::Add(hn::Mul(hn::Load(df, to), a), sum[r][2 * y + x]), df, to);
      }
    }
  }
  lines = ahead;
}

// kTogether: query rows whose scores lie together, 1 for tiles of one row, else 4.
template <int kTogether>
struct RowEngine : RowOperands {
  using Lanes = LanesAreKeys<kTogether>;
  using Pipeline = AtOnce<RowEngine>;
  static constexpr int kBlockKeys = kRowBlockKeys;

  static int64_t MicroKernelCalls(int64_t /*keys*/, const Geometry&) { return 1; }

  static HWY_INLINE void Scores(const Part& part, const KeyRows& k, Ahead& ahead) {
    WithVectorType(k.dtype, [&](auto zero) HWY_ATTR { ScoresAs<decltype(zero)>(part, k, ahead); });
  }

  static HWY_INLINE void Accumulate(const Part& part, const RowValues& v, Ahead&) {
    WithVectorType(v.rows.dtype,
                   [&](auto zero) HWY_ATTR { AccumulateAs<decltype(zero)>(part, v.rows); });
  }

  // Scores past the span, up to a whole vector, are no keys.
  static HWY_INLINE void Seal(const Part& part) {
    const int64_t end = part.span.end;
    for (int r = 0; r < part.tile->count; ++r) {
      for (int64_t key = end; key < RoundUp(end, Lanes::kKeyStep); ++key)
        part.s[Lanes::Index(r, key, part.g->block_keys)] = MinusInfinityScalar();
    }
  }

 private:
  template <int kRows, class T>
  static HWY_INLINE void ScoresOfRows(const Part& part, const KeyRows& k, int row, Ahead& ahead) {
    ahead.Step();
    HWY_ALIGN float sums[(kRowBlockKeys + kLanes) * kLanes];
    const int64_t dk = part.g->dk, q_stride = LanesAreChannels::RowFloats(dk);
    const float* const q = part.tile->q + row * q_stride;
    float* const s = part.s + Lanes::Index(row, 0, part.g->block_keys);
    const int64_t first = part.span.first, end = part.span.end;
    const int64_t whole_end = RoundUp(end, Lanes::kKeyStep);
    std::fill(sums + end * kLanes, sums + whole_end * kLanes, 0.0f);
    HWY_ALIGN float run[(kRowBlockKeys + kLanes) * kTogether];
    HWY_ALIGN float lost[(kRowBlockKeys + kLanes) * kTogether];
    constexpr int64_t kRun = kRunChains * kRowChain;
    LinesAhead lines;
    if (row == 0) lines = LinesAhead(k, (dk + kPair - 1) / kPair);
    for (int64_t c = 0; c < dk; c += kRowChain) {
      float* const to = c < kRun ? s : run;
      const int64_t n = std::min(dk - c, kRowChain);
      RowSumsOf<kTogether, kRows, T>(k, first, end, q, q_stride, c, n, sums, lines);
      RowScoresOf<kTogether>(sums, first, whole_end, c % kRun != 0, to);
      lines = LinesAhead();
      const int64_t next = c + kRowChain;
      if (c < kRun || (next % kRun != 0 && next < dk)) continue;
      JoinRuns(run + first * kTogether, (whole_end - first) * kTogether, c < 2 * kRun, next >= dk,
               lost, s + first * kTogether);
    }
  }

  template <class T>
  static HWY_NOINLINE void ScoresAs(const Part& part, const KeyRows& k, Ahead& ahead) {
    const int count = part.tile->count;
    if constexpr (kTogether == 1) {
      ScoresOfRows<1, T>(part, k, 0, ahead);
    } else {
      int r = 0;
      for (; r + 4 <= count; r += 4) ScoresOfRows<4, T>(part, k, r, ahead);
      switch (count - r) {
        case 3:
          return ScoresOfRows<3, T>(part, k, r, ahead);
        case 2:
          return ScoresOfRows<2, T>(part, k, r, ahead);
        case 1:
          return ScoresOfRows<1, T>(part, k, r, ahead);
        default:
          return;
      }
    }
  }

  template <int kRows, class T>
  static HWY_INLINE void AccumulateRows(const Part& part, const KeyRows& v, int row) {
    constexpr int kPairs = kRowPairs<kRows>;
    const int64_t dv = part.g->dv, o_stride = LanesAreChannels::RowFloats(dv);
    const Span& span = part.span;
    const float* const p = part.s + Lanes::Index(row, 0, part.g->block_keys);
    const float* const alpha = part.tile->state.alpha + row;
    float* const o = part.tile->o + row * o_stride;
    const int64_t wide = dv / (kPairs * kPair), pairs = (dv + kPair - 1) / kPair;
    LinesAhead ahead;
    if (row == 0) ahead = LinesAhead(v, wide + pairs - wide * kPairs);
    int64_t c = 0;
    for (; c + kPairs * kPair <= dv; c += kPairs * kPair) {
      RowAccumulateOf<kTogether, kRows, kPairs, true, T>(v, c, p, span.first, span.end, alpha, o,
                                                         o_stride, kPair, ahead);
    }
    if constexpr (kPairs > 1) {
      for (; c + kPair <= dv; c += kPair) {
        RowAccumulateOf<kTogether, kRows, 1, true, T>(v, c, p, span.first, span.end, alpha, o,
                                                      o_stride, kPair, ahead);
      }
    }
    if (c < dv) {
      RowAccumulateOf<kTogether, kRows, 1, false, T>(v, c, p, span.first, span.end, alpha, o,
                                                     o_stride, dv - c, ahead);
    }
  }

  template <class T>
  static HWY_NOINLINE void AccumulateAs(const Part& part, const KeyRows& v) {
    const int count = part.tile->count;
    int r = 0;
    if constexpr (kTogether > 1) {
      if constexpr (kRowsAtOnce<T> == 4) {
        for (; r + 4 <= count; r += 4) AccumulateRows<4, T>(part, v, r);
      }
      for (; r + 2 <= count; r += 2) AccumulateRows<2, T>(part, v, r);
    }
    if (r < count) AccumulateRows<1, T>(part, v, r);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
