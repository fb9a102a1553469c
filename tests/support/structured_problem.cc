#include "support/structured_problem.h"

#include <cmath>
#include <sstream>
#include <vector>

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

std::string ToString(const StructuredSpec& s) {
  std::ostringstream text;
  text << Name(s.scores) << " scores, " << Name(s.values) << " values, " << fovea::Name(s.type)
       << ", heads " << s.Hq << "/1, T " << s.Tq << "x" << s.Tk << ", d " << s.dk << "/" << s.dv;
  return text.str();
}

StructuredProblem::StructuredProblem(const StructuredSpec& s, uint64_t seed)
    : spec(s),
      q(s.type, {1, s.Hq, s.Tq, s.dk}),
      k(s.type, {1, 1, s.Tk, s.dk}),
      v(s.type, {1, 1, s.Tk, s.dv}),
      out(DType::kF32, {1, s.Hq, s.Tq, s.dv}),
      lse(DType::kF32, {1, s.Hq, s.Tq}) {
  Random random(seed);
  q.Fill([] { return 1; });
  k.Fill([] { return 0; });
  for (int64_t j = 0; j < s.Tk; ++j) k.Set(j * s.dk + j % s.dk, ScoreOf(s.scores, j, s.Tk, random));
  std::vector<Channel> channels;
  for (int64_t c = 0; c < s.dv; ++c) channels.emplace_back(s.values, c == 0, random);
  for (int64_t j = 0; j < s.Tk; ++j) {
    for (int64_t c = 0; c < s.dv; ++c)
      v.Set(j * s.dv + c, channels[static_cast<size_t>(c)].Value(j, random));
  }
  problem.q = q.view(), problem.k = k.view(), problem.v = v.view();
  problem.out = out.mutable_view(), problem.lse = lse.mutable_view();
  problem.score.scale = 1.0f;
}

}  // namespace fovea::test
