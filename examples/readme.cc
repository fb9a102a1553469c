// The example of README.md, word for word (the test compares them).
#include <vector>

#include "fovea/fovea.h"

int main() {
  const int64_t B = 1, H = 8, T = 512, d = 64;
  std::vector<float> q(B * H * T * d, 0.1f), k = q, v = q, out(q.size());
  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {B, H, T, d});
  problem.k = fovea::View(k.data(), {B, H, T, d});
  problem.v = fovea::View(v.data(), {B, H, T, d});
  problem.out = fovea::View(out.data(), {B, H, T, d});
  problem.score.causal = fovea::Causal::kBottomRight;
  return fovea::Attention(problem).ok() ? 0 : 1;
}
