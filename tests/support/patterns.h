// Scores and values by key for which long sums of f32 lose what counts, where a chain grows or
// begins with its largest term. Random numbers hide that, since their errors cancel.
#ifndef FOVEA_TESTS_SUPPORT_PATTERNS_H_
#define FOVEA_TESTS_SUPPORT_PATTERNS_H_

#include <cstdint>

#include "support/random.h"

namespace fovea::test {

// The scores of a row, by key.
enum class ScorePattern {
  kEqual,           // 0
  kDominantFirst,   // 0, then −16.64
  kDominantMiddle,  // −17, with 0 in the middle
  kDominantLast,    // −17, and 0 at the end
  kDominantNoise,   // 0, then normal around −17
  kRising,          // from −8 to 0: the running maximum moves at every key
  kSteep,           // rising by 1/16 for each key: a few hundred of them count
  kFalling,         // from 0 to −8: it never moves
  kLastDecides,     // 0, and at the end a key that weighs as much as all before it
  kAlternating,     // 0 and −8 in turns
  kNormal,          // normal
};
constexpr ScorePattern kScorePatterns[] = {
    ScorePattern::kEqual,        ScorePattern::kDominantFirst, ScorePattern::kDominantMiddle,
    ScorePattern::kDominantLast, ScorePattern::kDominantNoise, ScorePattern::kRising,
    ScorePattern::kSteep,        ScorePattern::kFalling,       ScorePattern::kLastDecides,
    ScorePattern::kAlternating,  ScorePattern::kNormal,
};

// A channel of V, by key.
enum class ValuePattern {
  kConstant,
  kTwoValued,  // two numbers in turns: 0.3 and 0.7 in the first channel, two random ones in others
  kOneSign,    // uniform between 0.5 and 1.5, or −0.5 and −1.5
  kNearOne,    // normal, mean 1 and deviation 0.3
  kHugeAndSmall,  // 10,000 and 0.0001 in turns
  kNormal,        // normal, mean 0
};
constexpr ValuePattern kValuePatterns[] = {
    ValuePattern::kConstant, ValuePattern::kTwoValued,    ValuePattern::kOneSign,
    ValuePattern::kNearOne,  ValuePattern::kHugeAndSmall, ValuePattern::kNormal,
};

const char* Name(ScorePattern pattern);
const char* Name(ValuePattern pattern);

// Score j of Tk.
double ScoreOf(ScorePattern pattern, int64_t j, int64_t Tk, Random& random);

// What the numbers of a channel have in common.
struct Channel {
  ValuePattern pattern;
  double even, odd;  // what they are made from, by the parity of the key

  Channel(ValuePattern pattern, bool first, Random& random);
  double Value(int64_t j, Random& random) const;
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_PATTERNS_H_
