#include "support/patterns.h"

#include <cmath>

namespace fovea::test {

const char* Name(ScorePattern pattern) {
  static const char* const kNames[] = {
      "equal", "dominant first", "dominant middle", "dominant last", "dominant noise", "rising",
      "steep", "falling",        "last decides",    "alternating",   "normal"};
  return kNames[static_cast<int>(pattern)];
}

const char* Name(ValuePattern pattern) {
  static const char* const kNames[] = {"constant", "two-valued",     "one sign",
                                       "near one", "huge and small", "normal"};
  return kNames[static_cast<int>(pattern)];
}

double ScoreOf(ScorePattern pattern, int64_t j, int64_t Tk, Random& random) {
  const double t = static_cast<double>(j), n = static_cast<double>(Tk);
  switch (pattern) {
    case ScorePattern::kEqual:
      return 0;
    case ScorePattern::kDominantFirst:
      return j == 0 ? 0 : -16.64;
    case ScorePattern::kDominantMiddle:
      return j == Tk / 2 ? 0 : -17;
    case ScorePattern::kDominantLast:
      return j == Tk - 1 ? 0 : -17;
    case ScorePattern::kDominantNoise:
      return j == 0 ? 0 : -17 + 0.5 * random.Normal();
    case ScorePattern::kRising:
      return -8 * (n - 1 - t) / n;
    case ScorePattern::kSteep:
      return t / 16;
    case ScorePattern::kFalling:
      return -8 * t / n;
    case ScorePattern::kLastDecides:
      return j == Tk - 1 ? std::log(n) : 0;
    case ScorePattern::kAlternating:
      return j % 2 == 0 ? 0 : -8;
    case ScorePattern::kNormal:
      break;
  }
  return random.Normal();
}

Channel::Channel(ValuePattern of, bool first, Random& random) : pattern(of) {
  even = random.Uniform() + 0.5, odd = random.Uniform() + 0.5;
  if (pattern == ValuePattern::kConstant) odd = even;
  if (pattern == ValuePattern::kTwoValued && first) even = 0.3, odd = 0.7;
  if (pattern == ValuePattern::kOneSign) even = odd = random.Chance(0.5) ? 1 : -1;
  if (pattern == ValuePattern::kHugeAndSmall) even = 1e4, odd = 1e-4;
}

double Channel::Value(int64_t j, Random& random) const {
  switch (pattern) {
    case ValuePattern::kConstant:
    case ValuePattern::kTwoValued:
    case ValuePattern::kHugeAndSmall:
      return j % 2 == 0 ? even : odd;
    case ValuePattern::kOneSign:
      return even * (0.5 + random.Uniform());
    case ValuePattern::kNearOne:
      return 1 + 0.3 * random.Normal();
    case ValuePattern::kNormal:
      break;
  }
  return random.Normal();
}

}  // namespace fovea::test
