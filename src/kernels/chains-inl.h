// How the sum of a score's channels, q·k, is put together, so that its rounding does not grow with
// the head.
//
// Products are summed in chains of at most 128: of kChain channels in the tile engines, of
// kRowChain in the row engine, of a step on AMX. Chains are added to each other as they come,
// within a *run* of kRunChains of them. Runs are added with compensation: what these additions lose
// adds up beside the score, and joins it at the end.
//
// What that loses in a tile engine, in units of 2⁻²⁴ · Σ |q·k|, at most:
//   128  products of a chain: an addition for each or, without fused multiply-adds, a product too,
//        of which the first addition is exact
//     6  additions of chains in a run
//     1  the runs' sum, at the end
//     1  the scale, which multiplies Q or sums
// which is 136, however long the head is; the contract allows 8 + min(dk, 128). Of the row engine a
// lane has 33, and its two sums and the lanes are folded in 5 additions; on AMX a step has 17, and
// a run 27 additions.
#if defined(FOVEA_SRC_KERNELS_CHAINS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_CHAINS_INL_H_
#undef FOVEA_SRC_KERNELS_CHAINS_INL_H_
#else
#define FOVEA_SRC_KERNELS_CHAINS_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Whole words of any product; Q of a chain stays in L1.
constexpr int64_t kChain = 128;
constexpr int64_t kRowChain = 32 * kPair;  // 32 vectors in each of two sums
constexpr int64_t kRunChains = kRunChannels / kChain;
static_assert(kRunChannels % kChain == 0);
static_assert(kChain + (kRunChains - 1) + 1 + 1 <= 8 + kChain);

// s += run, and what that loses is added to `lost`; at the end s has that, too. An infinite sum
// loses nothing.
template <class V>
HWY_INLINE void JoinRun(V run, bool is_last, V& s, V& lost) {
  V rest;
  s = TwoSum(s, run, rest);
  lost = hn::Add(lost, hn::IfThenZeroElse(hn::IsNaN(rest), rest));
  if (is_last) s = hn::Add(s, lost);
}

// Joins n scores at `run` to those at s. `lost` is theirs; it is new if `is_second`.
inline HWY_NOINLINE void JoinRuns(const float* HWY_RESTRICT run, int64_t n, bool is_second,
                                  bool is_last, float* HWY_RESTRICT lost, float* HWY_RESTRICT s) {
  const DF df;
  for (int64_t x = 0; x < n; x += kLanes) {
    VF sum = hn::Load(df, s + x), rest = is_second ? hn::Zero(df) : hn::Load(df, lost + x);
    JoinRun(hn::Load(df, run + x), is_last, sum, rest);
    hn::Store(rest, df, lost + x);
    hn::Store(sum, df, s + x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
