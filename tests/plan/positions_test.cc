// The interval of visible keys against the contract's rules pair by pair. Offsets are within 2^62,
// so distances between small positions do not overflow; windows are any.
#include "positions.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "support/random.h"

namespace fovea {
namespace {

bool Visible(const SequenceLengths& lengths, Causal causal, const Window& window, int64_t i,
             int64_t j) {
  const int64_t position = i + lengths.offset;
  if (i >= lengths.q_length || j < lengths.keys.first || j >= lengths.keys.end) return false;
  if (causal != Causal::kNone && j > position) return false;
  if (window.left != -1 && position - j > window.left) return false;
  if (window.right != -1 && j - position > window.right) return false;
  return true;
}

void Check(const SequenceLengths& lengths, Causal causal, const Window& window, int64_t Tq,
           int64_t Tk) {
  double pairs = 0;
  for (int64_t i = 0; i < Tq; ++i) {
    const KeyRange keys = VisibleKeys(lengths, causal, window, i);
    ASSERT_LE(keys.first, keys.end);
    for (int64_t j = 0; j < Tk; ++j) {
      const bool visible = Visible(lengths, causal, window, i, j);
      pairs += visible ? 1 : 0;
      ASSERT_EQ(j >= keys.first && j < keys.end, visible)
          << "i " << i << " j " << j << " offset " << lengths.offset << " lengths "
          << lengths.q_length << "," << lengths.keys.first << "-" << lengths.keys.end << " window "
          << window.left << "," << window.right << " causal " << static_cast<int>(causal);
    }
    if (keys.first < keys.end) {
      ASSERT_GE(keys.first, lengths.keys.first);
      ASSERT_LE(keys.end, lengths.keys.end);
    }
  }
  ASSERT_EQ(VisiblePairs(lengths, causal, window, 0, Tq), pairs)
      << "offset " << lengths.offset << " window " << window.left << "," << window.right;
  // Sums over any ranges of queries add up.
  for (int64_t cut = 0; cut <= Tq; ++cut) {
    ASSERT_EQ(VisiblePairs(lengths, causal, window, 0, cut) +
                  VisiblePairs(lengths, causal, window, cut, Tq),
              pairs)
        << "cut " << cut;
  }
}

constexpr Causal kCausal[] = {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight};

TEST(PositionsTest, IntervalsAreTheVisibleKeysOfEverySmallProblem) {
  for (Causal causal : kCausal) {
    for (int64_t left = -1; left <= 4; ++left) {
      for (int64_t right = -1; right <= 4; ++right) {
        for (int64_t q_length = 0; q_length <= 5; ++q_length) {
          for (int64_t kv_length = 0; kv_length <= 6; ++kv_length) {
            for (int64_t offset = -7; offset <= 8; ++offset) {
              for (int64_t first : {0, 1, 3})
                Check({q_length, {first, first + kv_length}, offset}, causal, {left, right}, 5, 9);
            }
          }
        }
      }
    }
  }
}

TEST(PositionsTest, ExtremeOffsetsAndWindowsSaturate) {
  const int64_t most = std::numeric_limits<int64_t>::max(), limit = int64_t{1} << 62;  // of offsets
  for (Causal causal : kCausal) {
    for (int64_t offset :
         {-limit, -limit + 1, int64_t{-3}, int64_t{0}, int64_t{3}, limit - 1, limit}) {
      for (int64_t left : {int64_t{-1}, int64_t{0}, int64_t{2}, most / 2, most}) {
        for (int64_t right : {int64_t{-1}, int64_t{0}, int64_t{2}, most / 2, most})
          Check({4, {0, 7}, offset}, causal, {left, right}, 5, 7);
      }
    }
  }
}

TEST(PositionsTest, PairsOfLargeProblemsAreExact) {
  test::Random random(test::BaseSeed());
  SCOPED_TRACE(test::BaseSeed());
  for (int n = 0; n < 200; ++n) {
    const int64_t q_length = random.Between(0, 2000), kv_length = random.Between(0, 2000);
    const int64_t first = random.Between(0, 700);
    const SequenceLengths lengths{
        q_length, {first, first + kv_length}, random.Between(-2500, 2500)};
    const Window window{random.Between(-1, 1500), random.Between(-1, 1500)};
    const Causal causal = random.Pick(std::array<Causal, 2>{Causal::kNone, Causal::kTopLeft});
    double pairs = 0;
    for (int64_t i = 0; i < q_length; ++i) {
      const KeyRange keys = VisibleKeys(lengths, causal, window, i);
      pairs += static_cast<double>(keys.end - keys.first);
    }
    ASSERT_EQ(VisiblePairs(lengths, causal, window, 0, q_length), pairs);
  }
}

}  // namespace
}  // namespace fovea
