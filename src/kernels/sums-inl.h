// The order of a row's sums over keys, O = Σ p·v and l = Σ p, so that their rounding does not grow
// with the number of keys.
//
// Keys are cut into *segments* of Engine::kSegmentKeys at multiples of it. Products p·v of a
// segment are summed in chains from zero, key by key (two of f32 products in the tile engine, else
// one); what they give is added to the sum of the *group*: kGroupSegments of them, again at
// multiples. A group that ends is added to what the groups before it gave, and what that addition
// lost begins the next group's sum. l's segments join like groups: it is small.
//
// What that loses at f32 products, in units of 2⁻²⁴ · Σ p·|v|, at most:
//    33  Σ p·v in a chain: an addition for every key and, without fused multiply-adds, a product
//     1  the addition of chains
//    16  additions to the group
//     4  factors alpha, of the group and of those before it: exp and the product lose 2 when m
//        moves, but all before is then e times smaller at least, so all moves lose 2 / (e − 1)
//     1  the groups' sum, at the end
//    15  Σ p: of four keys 2, of four such sums 4, of those 4, of lanes 4, of l's two parts 1
//     2  alpha in l
//     2  1 / l, and the product with it
// which is 74, however many keys there are; the contract allows 160. Groups themselves add less
// than 2⁻⁴⁸ each. Splits, and parts that Merge gets, are joined in doubles.
//
// Short chains are for the rows of which one key weighs most: what is added to it, key by key, is
// rounded away, until the chain ends.
#if defined(FOVEA_SRC_KERNELS_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_SUMS_INL_H_
#undef FOVEA_SRC_KERNELS_SUMS_INL_H_
#else
#define FOVEA_SRC_KERNELS_SUMS_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

static_assert((kSegmentKeysF32 / 2 + 1) + 1 + kGroupSegments + 4 + 1 + (2 + 4 + 4 + 4 + 1) + 2 +
                  2 <=
              160);

// No group has ended.
template <class Engine>
HWY_INLINE void BeginGroups(const Tile& tile, const Geometry& g) {
  if (!g.has_groups) return;
  std::fill_n(tile.o_groups,
              Engine::OutputLanes::TileFloats(g.tile_lanes, Engine::OutputColumns(g.dv)), 0.0f);
  std::fill_n(tile.m_groups, g.tile_lanes, MinusInfinityScalar());
}

// o_groups = alpha · o_groups for what m has moved since; f(o_groups, o, place) for every vector.
template <class Engine, class F>
HWY_INLINE void ForEachSum(const Tile& tile, const Geometry& g, const F& f) {
  using Lanes = typename Engine::OutputLanes;
  const DF df;
  for (int64_t row = 0; row < tile.count; row += Lanes::kRowStep) {
    const VF m = Lanes::PerRow(tile.state.m, row), was = Lanes::PerRow(tile.m_groups, row);
    const VF alpha = hn::IfThenElse(hn::Eq(m, was), hn::Set(df, 1.0f),
                                    ExpNonPositive(df, hn::Sub(was, ExponentBase(m))));
    Lanes::StorePerRow(m, tile.m_groups, row);
    for (int64_t c = 0; c < Engine::OutputColumns(g.dv); c += Lanes::kKeyStep) {
      const int64_t at = Lanes::Index(row, c, g.dv);
      f(hn::Mul(hn::Load(df, tile.o_groups + at), alpha), hn::Load(df, tile.o + at), at);
    }
  }
}

// A group has ended.
template <class Engine>
HWY_NOINLINE void EndGroup(const Tile& tile, const Geometry& g) {
  ForEachSum<Engine>(tile, g, [&](VF groups, VF o, int64_t at) HWY_ATTR {
    VF rest;
    hn::Store(TwoSum(groups, o, rest), DF(), tile.o_groups + at);
    // An infinite sum leaves no rest.
    hn::Store(hn::IfThenZeroElse(hn::IsNaN(rest), rest), DF(), tile.o + at);
  });
}

// The last one: O is the sum of all.
template <class Engine>
HWY_NOINLINE void EndGroups(const Tile& tile, const Geometry& g) {
  ForEachSum<Engine>(tile, g, [&](VF groups, VF o, int64_t at) HWY_ATTR {
    hn::Store(hn::Add(groups, o), DF(), tile.o + at);
  });
}

// l of the tile's rows, once all keys have been seen.
HWY_INLINE void EndDenominators(const Tile& tile, const Geometry& g) {
  const DF df;
  for (int64_t r = 0; r < g.tile_lanes; r += kLanes) {
    const size_t n = static_cast<size_t>(std::min<int64_t>(g.tile_lanes - r, kLanes));
    const VF l = hn::LoadN(df, tile.state.l + r, n), rest = hn::LoadN(df, tile.state.l_rest + r, n);
    hn::StoreN(hn::Add(l, rest), df, tile.state.l + r, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
