#include "support/structured_problem.h"

#include <sstream>
#include <vector>

namespace fovea::test {

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
