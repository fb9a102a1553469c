// The order in which the sums over keys, O = Σ p·v and l = Σ p, are taken, so that their error does
// not grow with the number of keys.
//
//   block   kBlockKeys keys, from a multiple of it on (what the contract calls a segment). Its P·V
//           and Σp start from zero, P·V runs in key order, Σp in four chains; then O = alpha·O +
//           P·V and l = alpha·l + Σp. The running maximum moves between two blocks.
//   group   kGroupKeys keys. At its end O is added to a total without an error (TwoSum): the rest
//   of
//           that sum is what O of the next group starts from. l likewise.
//
// The error of O / l, where u = 2⁻²⁴ and max|v| = 1, in the worst case:
//
//   P·V of a block     kBlockKeys multiply-adds; without fused ones, a product as well        65 u
//   Σp of a block      kBlockKeys / 4 additions in a chain, 4 to fold chains and lanes        20 u
//   joins of a group   kGroupKeys / kBlockKeys of O and of l                                  32 u
//   groups             TwoSum is exact; the total's own rounding, and that of its rest         2 u
//   rescaling          alpha and beta have (4 + x)·u, and a product one more, where x ≥ kMostRise
//                      is how far the maximum moved; what they multiply is e⁻ˣ of the whole, and
//                      what a move before that multiplied e⁻²ˣ …: 1.1 u of O and of l          3 u
//   1 / l, and its product with O                                                              2 u
//
// 124 u of the 160 that the contract has for it, whatever Tk is. The rescaling is bounded because
// the maximum moves by kMostRise or not at all: if it followed the scores, slowly rising ones would
// round everything at each block.
#ifndef FOVEA_EMBEDDED_SUMS_H_
#define FOVEA_EMBEDDED_SUMS_H_

#include "fovea/embedded/math.h"
#include "fovea/embedded/tile.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// total = beta·total + O, and O the rest of that sum; l likewise. beta brings a total to the
// maximum of today.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void JoinGroup(Tile<Lanes>& tile, int64_t dv) {
  const auto join = [&](float* total, float* part, V beta) {
    // before the first group is joined the total is not there
    const V before = tile.has_total ? Opaque(Load(total) * beta) : V(0.0f);
    V rest;
    Store(TwoSum(before, Load(part), rest), total);
    Store(rest, part);
  };
  for (int row = 0; row < tile.count; row += Lanes::kRowStep) {
    const V m = Lanes::PerRow(tile.m, row);
    const V base = xsimd::select(m == V(-kInfinity), V(0.0f), m);
    V beta(0.0f), total(0.0f);
    if (tile.has_total) {
      beta = Exp(Lanes::PerRow(tile.m_total, row) - base);
      total = Opaque(Lanes::PerRow(tile.l_total, row) * beta);
    }
    V rest;
    Lanes::StorePerRow(TwoSum(total, Lanes::PerRow(tile.l, row), rest), tile.l_total, row);
    Lanes::StorePerRow(rest, tile.l, row);
    Lanes::StorePerRow(m, tile.m_total, row);
    for (int64_t c = 0; c < dv; c += Lanes::kKeyStep) {
      const int64_t at = tile.lanes.Index(row, c, dv);
      join(tile.o_total + at, tile.o + at, beta);
    }
  }
  tile.has_total = true;
  tile.has_open_group = false;
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_SUMS_H_
