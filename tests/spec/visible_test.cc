// The reference on which pairs of a query and a key exist.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "spec/example.h"

namespace fovea::reference {
namespace {

// The visible pairs of a Tq × Tk problem as rows of 0 and 1.
using Lines = std::vector<std::string>;
Lines Picture(const Problem& problem, int64_t b = 0, int64_t h = 0) {
  const Sizes n = SizesOf(problem);
  Lines rows;
  for (int64_t i = 0; i < n.Tq; ++i) {
    std::string row;
    for (int64_t j = 0; j < n.Tk; ++j) row += Visible(problem, b, h, i, j) ? '1' : '0';
    rows.push_back(row);
  }
  return rows;
}

TEST(Visible, CausalBothWays) {
  Example wide(MakeSizes(1, 1, 1, 2, 4, 1, 1)), tall(MakeSizes(1, 1, 1, 4, 2, 1, 1));
  wide.problem.score.causal = tall.problem.score.causal = Causal::kTopLeft;
  EXPECT_EQ(Picture(wide.problem), (Lines{"1000", "1100"}));
  EXPECT_EQ(Picture(tall.problem), (Lines{"10", "11", "11", "11"}));
  wide.problem.score.causal = tall.problem.score.causal = Causal::kBottomRight;
  EXPECT_EQ(Picture(wide.problem), (Lines{"1110", "1111"}));
  EXPECT_EQ(Picture(tall.problem), (Lines{"00", "00", "10", "11"}));
}

TEST(Visible, OffsetMovesCausalAndWindow) {
  Example e(MakeSizes(1, 1, 1, 2, 5, 1, 1));
  e.problem.score.query_offset = 2;
  e.problem.score.causal = Causal::kBottomRight;  // the explicit offset wins
  EXPECT_EQ(Picture(e.problem), (Lines{"11100", "11110"}));
  e.problem.score.causal = Causal::kNone;
  e.problem.score.window = {1, -1};
  EXPECT_EQ(Picture(e.problem), (Lines{"01111", "00111"}));
  e.problem.score.window = {-1, 1};
  EXPECT_EQ(Picture(e.problem), (Lines{"11110", "11111"}));
  e.problem.score.window = {0, 0};
  EXPECT_EQ(Picture(e.problem), (Lines{"00100", "00010"}));
  e.problem.score.query_offset = -1;
  EXPECT_EQ(Picture(e.problem), (Lines{"00000", "10000"}));
}

TEST(Visible, LengthsAndOffsetsOfEachSequence) {
  Example e(MakeSizes(2, 1, 1, 3, 4, 1, 1));
  const int32_t q_lengths[] = {2, 3};
  const int64_t kv_lengths[] = {4, 3};
  e.problem.score.q_lengths = View(q_lengths, {2});
  e.problem.score.kv_lengths = View(kv_lengths, {2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1111", "1111", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1110", "1110", "1110"}));
  e.problem.score.causal = Causal::kBottomRight;  // the last query of a sequence sees its last key
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1110", "1111", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1000", "1100", "1110"}));
  const int32_t offsets[] = {0, -2};
  e.problem.score.query_offsets = View(offsets, {2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1000", "1100", "0000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"0000", "0000", "1000"}));
}

TEST(Visible, MaskAndMinusInfinityRemovePairsAndLowestDoesNot) {
  Example e(MakeSizes(1, 1, 1, 2, 3, 1, 1));
  const bool mask[] = {true, false, true};
  const float bias[] = {-kInf, std::numeric_limits<float>::lowest()};
  e.problem.score.mask = View(mask, {3});
  EXPECT_EQ(Picture(e.problem), (Lines{"101", "101"}));
  e.problem.score.bias = View(bias, {2, 1});
  EXPECT_EQ(Picture(e.problem), (Lines{"000", "101"}));
}

TEST(Visible, KeyRangesOfEachQuery) {
  Example e(MakeSizes(2, 1, 1, 3, 5, 1, 1));
  const int64_t most = std::numeric_limits<int64_t>::max(),
                least = std::numeric_limits<int64_t>::min();
  const int64_t ranges[] = {1, 3, least, most, 4, 2, /* sequence 1 */ -7, 2, 4, 99, 3, 3};
  e.problem.score.key_ranges = View(ranges, {2, 3, 2});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"01100", "11111", "00000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"11000", "00001", "00000"}));
  const int32_t narrow[] = {0, 1, 1, 4, 2, 5};
  e.problem.score.key_ranges = View(narrow, {1, 3, 2});  // of both sequences
  e.problem.score.causal = Causal::kTopLeft;             // all that is given must allow a pair
  for (int64_t b : {0, 1}) EXPECT_EQ(Picture(e.problem, b), (Lines{"10000", "01000", "00100"}));
  e.problem.score.query_offset = 2;  // ranges are of keys: they stay where they are
  EXPECT_EQ(Picture(e.problem), (Lines{"10000", "01110", "00111"}));
}

TEST(Visible, MaskOfBits) {
  Example e(MakeSizes(1, 2, 1, 2, 10, 1, 1));
  const uint8_t mask[] = {0b00000101, 0b10, 0b11110000, 0b01};
  e.problem.score.mask = BitView(mask, {2, 10});
  EXPECT_EQ(Picture(e.problem), (Lines{"1010000001", "0000111110"}));
  e.problem.score.mask = BitView(mask, {2, 1, 10});  // a row for each head
  EXPECT_EQ(Picture(e.problem, 0, 1), (Lines{"0000111110", "0000111110"}));
}

TEST(Visible, BlockMapRemovesWholeBlocks) {
  Example e(MakeSizes(1, 2, 1, 5, 7, 1, 1));
  const bool map[] = {true, false, true, false, true, false, /* head 1 */ false,
                      true, false, true, true,  true};
  // blocks of 3 × 3, the last ones cut off
  e.problem.score.block_map = {View(map, {2, 2, 3}), 3, 3};
  EXPECT_EQ(Picture(e.problem, 0, 0),
            (Lines{"1110001", "1110001", "1110001", "0001110", "0001110"}));
  EXPECT_EQ(Picture(e.problem, 0, 1),
            (Lines{"0001110", "0001110", "0001110", "1111111", "1111111"}));
  const uint8_t bits[] = {0b011};
  e.problem.score.block_map = {BitView(bits, {1, 3}), 5, 3};  // of keys alone
  EXPECT_EQ(Picture(e.problem), (Lines(5, "1111110")));
  e.problem.score.block_map = {BitView(bits, {2}), 100, 4};
  EXPECT_EQ(Picture(e.problem), (Lines(5, "1111111")));
  e.problem.score.causal = Causal::kTopLeft;  // all that is given must allow a pair
  e.problem.score.block_map = {View(map, {2, 2, 3}), 3, 3};
  EXPECT_EQ(Picture(e.problem, 0, 0),
            (Lines{"1000000", "1100000", "1110000", "0001000", "0001100"}));
}

TEST(Visible, TreeShowsAncestorsAndThePast) {
  // 0 has the children 1 and 2, 2 has the child 3; 4 is a root of its own.
  const int32_t parents[] = {-1, 0, 0, 2, -1};
  Example e(MakeSizes(1, 1, 1, 5, 8, 1, 1));
  e.problem.score.parents = View(parents, {1, 5});
  // Nodes' keys from offset 0: those behind the nodes are nobody's.
  EXPECT_EQ(Picture(e.problem),
            (Lines{"10000000", "11000000", "10100000", "10110000", "00001000"}));
  e.problem.score.query_offset = 3;  // three keys of the past
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11110000", "11111000", "11110100", "11110110", "11100001"}));
  e.problem.score.query_offset.reset();
  e.problem.score.causal = Causal::kBottomRight;  // the same offset, and a tree only looks back
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11110000", "11111000", "11110100", "11110110", "11100001"}));
  e.problem.score.window = {2, -1};
  EXPECT_EQ(Picture(e.problem),
            (Lines{"01110000", "00111000", "00010100", "00000110", "00000001"}));
  e.problem.score.window = {-1, -1};
  e.problem.score.causal = Causal::kNone;
  e.problem.score.query_offset = -1;  // node 0 has no key
  EXPECT_EQ(Picture(e.problem),
            (Lines{"00000000", "10000000", "01000000", "01100000", "00010000"}));
  const int64_t wide[] = {-1, 0, 1, 2, 3};  // a chain is causal
  e.problem.score.parents = View(wide, {1, 5});
  e.problem.score.query_offset = 2;
  EXPECT_EQ(Picture(e.problem),
            (Lines{"11100000", "11110000", "11111000", "11111100", "11111110"}));
}

TEST(Visible, TreeOfEachSequenceWithLengths) {
  const int32_t parents[] = {-1, -1, 0, -1, 0, 1}, q_lengths[] = {3, 2}, kv_lengths[] = {4, 3};
  Example e(MakeSizes(2, 1, 1, 3, 4, 1, 1));
  e.problem.score.parents = View(parents, {2, 3});
  e.problem.score.q_lengths = View(q_lengths, {2});
  e.problem.score.kv_lengths = View(kv_lengths, {2});
  e.problem.score.causal = Causal::kBottomRight;  // offsets 1 and 1
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"1100", "1010", "1101"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"1100", "1110", "0000"}));
}

TEST(Visible, PackedSequencesHaveLengthsAndOffsetsOfTheirOwn) {
  // q rows: one spare, 2, 0 and 3 of sequences; k rows: 3, 1 and 2, one spare
  Example e(MakeSizes(1, 1, 1, 6, 7, 1, 1));
  const int32_t cu_q[] = {1, 3, 3, 6};
  const int64_t cu_k[] = {0, 3, 4, 6};
  e.problem.cu_seqlens_q = View(cu_q, {4});
  e.problem.cu_seqlens_k = View(cu_k, {4});
  const Sizes n = SizesOf(e.problem);
  EXPECT_EQ(n.B, 3);
  EXPECT_EQ(n.Tq, 3);
  EXPECT_EQ(n.Tk, 3);
  e.problem.score.causal = Causal::kBottomRight;
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"110", "111", "000"}));
  EXPECT_EQ(Picture(e.problem, 1), (Lines{"000", "000", "000"}));
  EXPECT_EQ(Picture(e.problem, 2), (Lines{"000", "100", "110"}));
  EXPECT_EQ(SequenceOf(e.problem, 0).offset, 1);
  EXPECT_EQ(SequenceOf(e.problem, 1).offset, 1);
  EXPECT_EQ(SequenceOf(e.problem, 2).offset, -1);
  const int32_t q_lengths[] = {1, 0, 3}, kv_lengths[] = {3, 0, 1};
  e.problem.score.q_lengths = View(q_lengths, {3});
  e.problem.score.kv_lengths = View(kv_lengths, {3});
  EXPECT_EQ(Picture(e.problem, 0), (Lines{"111", "000", "000"}));
  EXPECT_EQ(Picture(e.problem, 2), (Lines{"000", "000", "100"}));
}

}  // namespace
}  // namespace fovea::reference
