// What the tile engines multiply. Q, K, V and P are made of *words* of 32 bits, which hold one term
// of a sum or more: a float, or two bf16. The terms of a word lie side by side along what is
// summed: channels of Q and K, keys of P and V. A multiply-add takes a vector of words times a
// vector of words to a vector of sums, a lane for a lane. Knows neither loops nor attention.
//
// A product supplies
//   kTerms          terms of a sum in a word
//   Words, Sums     a vector of words, and what a vector of them is summed in
//   Weights         how softmax leaves P for it (see WeightsF32 of softmax-inl.h)
//   Load            a vector of words that are aligned, in scratch
//   LoadAny         the same at any address
//   Broadcast       the word at p in every lane
//   BroadcastSome   the same of a word of which `terms` < kTerms are there: the others are 0, not
//                   read
//   BroadcastLane   a lane of a vector in every lane
//   kChainKeys      keys of P·V that are summed in a chain: a segment, or half of one
//   MultiplyAdd     sum + Σ x·y over the terms of every lane's words, in an order of its own
//   Factor          what sums of q·k must be multiplied by, for a vector of rows: that of each
//                   row, or (factors null) the one of all
//   Scores          sums of q·k times that factor, in natural units …
//   AddScores       … and the same plus scores that are there
#if defined(FOVEA_SRC_KERNELS_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_PRODUCTS_INL_H_
#undef FOVEA_SRC_KERNELS_PRODUCTS_INL_H_
#else
#define FOVEA_SRC_KERNELS_PRODUCTS_INL_H_
#endif

#include <utility>

#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Whether the target has 32 vector registers, not 16.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM;

// Whether a multiply-add takes a lane of a vector as the factor of all lanes, which saves the
// broadcast: then what is broadcast is read a vector at a time.
constexpr bool kFactorsAreLanes = HWY_TARGET_IS_NEON;

// f(n) for every n < kCount, each a constant.
template <class F, int... kIndex>
HWY_INLINE void ForEachIndex(const F& f, std::integer_sequence<int, kIndex...>) {
  (f(std::integral_constant<int, kIndex>()), ...);
}
template <int kCount, class F>
HWY_INLINE void ForEachIndex(const F& f) {
  ForEachIndex(f, std::make_integer_sequence<int, kCount>());
}

constexpr int64_t kWordBytes = 4;

// Rows of words of K or V of a block from `data` on, `stride` bytes apart.
struct WordRows {
  const char* data;
  int64_t stride;
};

using DU32 = hn::RebindToUnsigned<DF>;

// A vector at any address.
HWY_INLINE VF LoadAny(const char* p) {
  return hn::BitCast(
      DF(), hn::LoadU(hn::Repartition<uint8_t, DF>(), reinterpret_cast<const uint8_t*>(p)));
}

// A float times a float. Q is packed with all of the scale, so that sums are scores.
struct F32Product {
  static constexpr int kTerms = 1;
  static constexpr int64_t kChainKeys = kSegmentKeysF32 / 2;
  using Words = VF;
  using Sums = VF;
  using Weights = WeightsF32;

  static HWY_INLINE Words Load(const float* p) { return hn::Load(DF(), p); }
  static HWY_INLINE Words LoadAny(const char* p) { return HWY_NAMESPACE::LoadAny(p); }
  static HWY_INLINE Words Broadcast(const char* p) { return hn::Set(DF(), ReadAs<float>(p)); }
  template <int kLane>
  static HWY_INLINE Words BroadcastLane(Words x) {
    return hn::BroadcastLane<kLane>(x);
  }
  static HWY_INLINE Sums MultiplyAdd(Words x, Words y, Sums sum) { return hn::MulAdd(x, y, sum); }
  static HWY_INLINE VF Factor(const float*, float, int64_t) { return hn::Zero(DF()); }
  static HWY_INLINE VF Scores(Sums sum, VF /*factor*/) { return sum; }
  static HWY_INLINE VF AddScores(Sums sum, VF /*factor*/, VF s) { return hn::Add(s, sum); }
};

using DPairs = hn::Repartition<hwy::bfloat16_t, DF>;
using VPairs = hn::Vec<DPairs>;

// Whether the target has the product of pairs of bf16 as an instruction. Not HWY_NATIVE_DOT_BF16:
// on Arm, Highway 1.2 derives that from what the target before had.
constexpr bool kHasPairProducts =
    HWY_TARGET == HWY_NEON_BF16 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_ZEN4);

// The pairs (p0, p1) of every lane, rounded to nearest even; NaN stays NaN.
HWY_INLINE VF RoundToPairs(VF p0, VF p1) {
  const DF df;
#if HWY_TARGET <= HWY_AVX3_ZEN4
  // All of p0 before all of p1: one instruction narrows both, one brings the pairs together.
  const hn::RebindToUnsigned<DPairs> du16;
  alignas(64) static constexpr uint16_t kPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto narrow = hn::BitCast(du16, hn::OrderedDemote2To(DPairs(), p0, p1));
  return hn::BitCast(df, hn::TableLookupLanes(narrow, hn::SetTableIndices(du16, kPairs)));
#else
  const DU32 du;
  const hn::Rebind<hwy::bfloat16_t, DF> half;
  const hn::Rebind<uint16_t, DF> half_bits;
  const auto widen = [&](VF p) HWY_ATTR {
    return hn::PromoteTo(du, hn::BitCast(half_bits, hn::DemoteTo(half, p)));
  };
  return hn::BitCast(df, hn::Or(widen(p0), hn::ShiftLeft<16>(widen(p1))));
#endif
}

// P as pairs of the keys 2j and 2j + 1, in row j of S's place; keys start at an even one.
struct WeightPairs {
  static constexpr int64_t kTogether = 2;

  static HWY_INLINE void StoreFour(VF p0, VF p1, VF p2, VF p3, int64_t stride, float* to) {
    hn::Store(RoundToPairs(p0, p1), DF(), to);
    hn::Store(RoundToPairs(p2, p3), DF(), to + stride);
  }
  // One to three; the others are 0.
  static HWY_INLINE void StoreSome(int64_t n, VF p0, VF p1, VF p2, int64_t stride, float* to) {
    hn::Store(RoundToPairs(p0, p1), DF(), to);
    if (n > 2) hn::Store(RoundToPairs(p2, hn::Zero(DF())), DF(), to + stride);
  }
  template <class Lanes>
  static HWY_INLINE float At(const float* s, int64_t row, int64_t key, int64_t block_keys) {
    const float* pair = s + Lanes::Index(row, key / 2, block_keys);
    return hwy::F32FromBF16(
        ReadAs<hwy::bfloat16_t>(reinterpret_cast<const char*>(pair) + 2 * (key % 2)));
  }
};

// Two bf16 times two bf16, summed in f32. Q is packed with the scale's power of two, which is
// exact; the rest of the scale is the factor.
struct BF16Product {
  static constexpr int kTerms = 2;
  static constexpr int64_t kChainKeys = kSegmentKeysBF16;
  using Words = VPairs;
  using Sums = VF;
  using Weights = WeightPairs;

  static HWY_INLINE Words Load(const float* p) { return hn::BitCast(DPairs(), hn::Load(DF(), p)); }
  static HWY_INLINE Words LoadAny(const char* p) {
    return hn::BitCast(DPairs(), HWY_NAMESPACE::LoadAny(p));
  }
  static HWY_INLINE Words Broadcast(const char* p) {
    return hn::BitCast(DPairs(), hn::Set(DU32(), ReadAs<uint32_t>(p)));
  }
  static HWY_INLINE Words BroadcastSome(const char* p, int64_t /*terms: 1*/) {
    return hn::BitCast(DPairs(), hn::Set(DU32(), uint32_t{ReadAs<uint16_t>(p)}));
  }
  template <int kLane>
  static HWY_INLINE Words BroadcastLane(Words x) {
    return hn::BitCast(DPairs(), hn::BroadcastLane<kLane>(hn::BitCast(DF(), x)));
  }
  static HWY_INLINE Sums MultiplyAdd(Words x, Words y, Sums sum) {
    const DF df;
    if constexpr (kHasPairProducts) {
      VF unused = hn::Zero(df);
      return hn::ReorderWidenMulAccumulate(df, x, y, sum, unused);
    } else {
      // In the order of x86's instruction.
      sum = hn::MulAdd(hn::PromoteOddTo(df, x), hn::PromoteOddTo(df, y), sum);
      return hn::MulAdd(hn::PromoteEvenTo(df, x), hn::PromoteEvenTo(df, y), sum);
    }
  }
  static HWY_INLINE VF Factor(const float* factors, float factor, int64_t row) {
    return factors != nullptr ? hn::Load(DF(), factors + row) : hn::Set(DF(), factor);
  }
  static HWY_INLINE VF Scores(Sums sum, VF factor) { return hn::Mul(sum, factor); }
  static HWY_INLINE VF AddScores(Sums sum, VF factor, VF s) { return hn::MulAdd(sum, factor, s); }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
