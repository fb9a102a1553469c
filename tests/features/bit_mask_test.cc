// Masks of packed booleans: the same bits of results as with a byte for each, and only the bits of
// the mask are looked at.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/equivalent.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Layout;
using test::Outcome;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;
using test::Storage;

ProblemSpec Spec(int64_t Tk) {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 19, s.Tk = Tk, s.dk = 12, s.dv = 9, s.weights = true,
  s.scores = ScoreStage::kMasked;
  s.mask = Axes::kBHQK, s.mask_allows = 0.6;
  return s;
}

OwnedTensor Packed(const OwnedTensor& mask, Storage storage = {}) {
  const TensorView view = mask.view();
  OwnedTensor bits(DType::kBit, std::vector<int64_t>(view.shape, view.shape + view.rank), storage);
  for (int64_t n = 0; n < mask.size(); ++n) bits.Set(n, mask.Get(n));
  return bits;
}

// The result with p's mask of bytes, and with the same mask as bits.
void ExpectTheSameAsBits(RandomProblem& p, Storage storage, const PlanOptions& options = {}) {
  RandomProblem packed = p;
  packed.mask = Packed(p.mask, storage);
  packed.Refresh();
  test::ExpectTheSameBits(packed, p, options);
}

TEST(BitMaskTest, IsTheMaskOfBytesBitForBitForAnyNumberOfKeys) {
  for (int64_t Tk : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200}) {
    RandomProblem p(Spec(Tk), test::BaseSeed() + static_cast<uint64_t>(Tk));
    ExpectTheSameAsBits(p, {});
  }
}

TEST(BitMaskTest, EveryShapeThatBroadcasts) {
  for (Axes axes : test::kAllAxes) {
    if (axes == Axes::kAbsent) continue;
    ProblemSpec s = Spec(77);
    s.mask = axes;
    for (double allows : test::Thinned({0.1, 0.9})) {
      s.mask_allows = allows;
      RandomProblem p(s, test::BaseSeed());
      ExpectTheSameAsBits(p, {});
    }
  }
}

TEST(BitMaskTest, EveryLayoutAndPlaceThatBitsCanHave) {
  RandomProblem p(Spec(77), test::BaseSeed());
  for (Layout layout :
       {Layout::kDense, Layout::kSwapped, Layout::kReversed, Layout::kPadded, Layout::kPage}) {
    for (Placement placement : test::Thinned(test::kPlacements, 2)) {
      ExpectTheSameAsBits(p, {layout, placement});  // guard pages: no byte outside is read
    }
  }
}

TEST(BitMaskTest, AxesOfStrideZero) {
  for (unsigned axes = 1; axes < 8; ++axes) {
    RandomProblem p(Spec(40), test::BaseSeed());
    const Storage storage = {Layout::kDense, Placement::kAligned, axes};
    p.mask = p.mask.CopiedTo(storage);  // of the elements that share memory the last one stays
    p.Refresh();
    ExpectTheSameAsBits(p, storage);
  }
}

TEST(BitMaskTest, BitsBehindTheLastKeyAreNotLookedAt) {
  for (int64_t Tk : {1, 9, 61, 70, 130}) {
    RandomProblem p(Spec(Tk), test::BaseSeed());
    p.mask = Packed(p.mask);
    p.Refresh();
    const TensorView view = p.mask.view();
    // OwnedTensor has set them; now they are cleared.
    RandomProblem cleared = p;
    cleared.mask = p.mask.CopiedTo({});
    cleared.Refresh();
    unsigned char* const bytes = static_cast<unsigned char*>(cleared.mask.mutable_view().data);
    const int64_t row = view.stride[2];
    for (int64_t n = 0; n < view.size() / Tk; ++n) {
      if (Tk % 8 != 0) bytes[(n + 1) * row - 1] &= static_cast<unsigned char>((1 << Tk % 8) - 1);
    }
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 4)) {
      EXPECT_TRUE(Same(RunSerial(kernel, cleared), RunSerial(kernel, p)))
          << ToString(kernel) << " Tk " << Tk;
    }
  }
}

TEST(BitMaskTest, WithCausalWindowLengthsAndTinyTiles) {
  ProblemSpec s = Spec(90);
  s.causal = Causal::kBottomRight, s.window = {40, -1}, s.q_lengths = DType::kI32,
  s.kv_lengths = DType::kI64;
  for (int32_t keys : {0, 1, 5, 16}) {
    PlanOptions options;
    options.block_keys = keys, options.tile_rows = keys == 5 ? 3 : 0,
    options.split_keys = keys == 16 ? 33 : 0;
    RandomProblem p(s, test::BaseSeed() + static_cast<uint64_t>(keys));
    ExpectTheSameAsBits(p, {}, options);
  }
}

TEST(BitMaskTest, DecodeWithSplits) {
  ProblemSpec s = Spec(2500);
  s.Tq = 1, s.Hq = 8, s.mask = Axes::kB11K;
  RandomProblem p(s, test::BaseSeed());
  ExpectTheSameAsBits(p, {});
}

TEST(BitMaskTest, MatchesTheReference) {
  for (int64_t Tk : {13, 64, 150}) {
    ProblemSpec s = Spec(Tk);
    s.mask_type = DType::kBit, s.rest = {Layout::kPadded, Placement::kUnaligned};
    RandomProblem p(s, test::BaseSeed());
    test::ExpectMatchesReference(p);
  }
}

}  // namespace
}  // namespace fovea
