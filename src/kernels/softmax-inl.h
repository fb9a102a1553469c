// The streaming softmax of a tile of scores: S → P in place, the running maximum m and denominator
// l of every row, and alpha, by which what was summed before must be multiplied (Milakov and
// Gimelshein 2018, "Online normalizer calculation for softmax").
//
// m lags: it moves when a score is more than kMostAhead above it, so weights are at most
// e^kMostAhead. Each move then shrinks what was summed before by e at least, and the roundings of
// all moves are a geometric series: they do not grow with the number of keys. Where m stays, alpha
// is exactly 1.
//
// The rules for −inf, empty rows and NaN:
//   - a removed score is −inf, and exp gives exactly 0 for it;
//   - while a row has seen no key, m = −inf and l = 0: the exponent is then taken from 0, so that
//     −inf − (−inf) never arises;
//   - max may hide a NaN score (it does on x86), but its exp is NaN, and l carries it to the output
//     and to lse;
//   - a score of +inf makes m = +inf and exp(inf − inf) = NaN, as the textbook formula does.
#if defined(FOVEA_SRC_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_SOFTMAX_INL_H_
#undef FOVEA_SRC_KERNELS_SOFTMAX_INL_H_
#else
#define FOVEA_SRC_KERNELS_SOFTMAX_INL_H_
#endif

#include "kernels/lanes-inl.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// The running state of a tile's rows.
struct RowState {
  float* m;
  float* l;
  float* l_rest;  // what l lost to rounding
  float* alpha;
};

constexpr float kMostAhead = 1;

// P[key][row] or P[row][key] in f32, in the place of S. An engine with products of its own stores P
// otherwise: `kTogether` keys in a place.
struct WeightsF32 {
  static constexpr int64_t kTogether = 1;

  static HWY_INLINE void StoreFour(VF p0, VF p1, VF p2, VF p3, int64_t stride, float* to) {
    const DF df;
    hn::Store(p0, df, to);
    hn::Store(p1, df, to + stride);
    hn::Store(p2, df, to + 2 * stride);
    hn::Store(p3, df, to + 3 * stride);
  }
  // The first one to three.
  static HWY_INLINE void StoreSome(int64_t n, VF p0, VF p1, VF p2, int64_t stride, float* to) {
    const DF df;
    hn::Store(p0, df, to);
    if (n > 1) hn::Store(p1, df, to + stride);
    if (n > 2) hn::Store(p2, df, to + 2 * stride);
  }
  // The weight of a row and key.
  template <class Lanes>
  static HWY_INLINE float At(const float* s, int64_t row, int64_t key, int64_t block_keys) {
    return s[Lanes::Index(row, key, block_keys)];
  }
};

// a + b, and what the sum lost to rounding (Knuth 1969, "The Art of Computer Programming", 4.2.2).
template <class V>
HWY_INLINE V TwoSum(V a, V b, V& rest) {
  const V sum = hn::Add(a, b), of_b = hn::Sub(sum, a), of_a = hn::Sub(sum, of_b);
  rest = hn::Add(hn::Sub(a, of_a), hn::Sub(b, of_b));
  return sum;
}

// m, or 0 where it is −inf: what exponents are taken from.
HWY_INLINE VF ExponentBase(VF m) { return hn::IfThenZeroElse(hn::Eq(m, MinusInfinity()), m); }

// Scores of keys first ≤ key < end of the block; `first` is a multiple of kFirstKeyStep<Lanes> and
// `end` of kKeyStep. Sums run in an order that depends on a key's place in its block alone,
// whichever rows share the tile: of four keys, of four such sums, and of those.
template <class Lanes>
constexpr int64_t kFirstKeyStep = 4 * Lanes::kKeyStep;

// `along` gets a Step for every four vectors: an engine may have other work to do meanwhile, of
// instructions that do not compete with these.
template <class Lanes, class Weights, class Along>
FOVEA_HOT void Softmax(float* HWY_RESTRICT s, int64_t rows, int64_t first, int64_t end,
                       int64_t block_keys, const RowState& state, Along& along) {
  const DF df;
  constexpr int64_t kStep = Lanes::kKeyStep;
  constexpr int64_t kUnroll = 4 * kStep, kSome = 4 * kUnroll;
  const int64_t unrolled_end = first + (end - first) / kUnroll * kUnroll;
  const int64_t stride = Lanes::Index(0, kStep, block_keys);
  for (int64_t row = 0; row < rows; row += Lanes::kRowStep) {
    const float* const from = s + Lanes::Index(row, first, block_keys);
    const VF m_old = Lanes::PerRow(state.m, row);
    VF max0 = m_old, max1 = m_old, max2 = m_old, max3 = m_old;
    const float* p = from;
    int64_t key = first;
    for (; key < unrolled_end; key += kUnroll, p += 4 * stride) {
      max0 = hn::Max(max0, hn::Load(df, p));
      max1 = hn::Max(max1, hn::Load(df, p + stride));
      max2 = hn::Max(max2, hn::Load(df, p + 2 * stride));
      max3 = hn::Max(max3, hn::Load(df, p + 3 * stride));
    }
    for (; key < end; key += kStep, p += stride) max0 = hn::Max(max0, hn::Load(df, p));
    const VF max = Lanes::FoldMax(hn::Max(hn::Max(max0, max1), hn::Max(max2, max3)));
    const auto moves = hn::Gt(max, hn::Add(m_old, hn::Set(df, kMostAhead)));
    const VF m = hn::IfThenElse(moves, max, m_old);
    const VF base = ExponentBase(m);

    VF sum = hn::Zero(df), sum_of_some = sum;
    p = from;
    float* to = s + Lanes::Index(row, first / Weights::kTogether, block_keys);
    for (key = first; key < unrolled_end;) {
      const int64_t some_end = std::min(unrolled_end, RoundUp(key + 1, kSome));
      for (; key < some_end;
           key += kUnroll, p += 4 * stride, to += 4 / Weights::kTogether * stride) {
        const VF p0 = ExpNonPositive(df, hn::Sub(hn::Load(df, p), base));
        const VF p1 = ExpNonPositive(df, hn::Sub(hn::Load(df, p + stride), base));
        const VF p2 = ExpNonPositive(df, hn::Sub(hn::Load(df, p + 2 * stride), base));
        const VF p3 = ExpNonPositive(df, hn::Sub(hn::Load(df, p + 3 * stride), base));
        Weights::StoreFour(p0, p1, p2, p3, stride, to);
        along.Step();
        sum_of_some = hn::Add(sum_of_some, hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)));
      }
      if (key % kSome != 0) break;
      sum = hn::Add(sum, sum_of_some);
      sum_of_some = hn::Zero(df);
    }
    if (const int64_t left = (end - key) / kStep; left > 0) {
      const VF p0 = ExpNonPositive(df, hn::Sub(hn::Load(df, p), base));
      const VF p1 =
          left > 1 ? ExpNonPositive(df, hn::Sub(hn::Load(df, p + stride), base)) : hn::Zero(df);
      const VF p2 =
          left > 2 ? ExpNonPositive(df, hn::Sub(hn::Load(df, p + 2 * stride), base)) : hn::Zero(df);
      Weights::StoreSome(left, p0, p1, p2, stride, to);
      sum_of_some = hn::Add(sum_of_some, hn::Add(hn::Add(p0, p1), p2));
    }
    sum = hn::Add(sum, sum_of_some);
    sum = Lanes::FoldSum(sum);
    const VF alpha =
        hn::IfThenElse(moves, ExpNonPositive(df, hn::Sub(m_old, base)), hn::Set(df, 1.0f));
    Lanes::StorePerRow(m, state.m, row);
    Lanes::StorePerRow(alpha, state.alpha, row);
    VF rest;
    Lanes::StorePerRow(TwoSum(hn::Mul(Lanes::PerRow(state.l, row), alpha), sum, rest), state.l,
                       row);
    Lanes::StorePerRow(hn::MulAdd(Lanes::PerRow(state.l_rest, row), alpha, rest), state.l_rest,
                       row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
