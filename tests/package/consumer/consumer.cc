// Uses the installed package as any program would: exit code 0 if attention over constant values
// gives the constant, on every executor.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "fovea/fovea.h"
#ifdef CONSUMER_USES_TBB
#include "fovea/tbb.h"
#endif
#ifdef CONSUMER_USES_EMBEDDED
#include "fovea/embedded.h"
#endif

namespace {

int Check(const char* name, fovea::Executor& executor) {
  constexpr int64_t kHeads = 2, kTokens = 33, kSize = 16;
  const std::vector<float> q(kHeads * kTokens * kSize, 0.25f), k(q.size(), 0.5f), v(q.size(), 1.5f);
  std::vector<float> out(q.size(), 0.0f);

  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {1, kHeads, kTokens, kSize});
  problem.k = fovea::View(k.data(), {1, kHeads, kTokens, kSize});
  problem.v = fovea::View(v.data(), {1, kHeads, kTokens, kSize});
  problem.out = fovea::View(out.data(), {1, kHeads, kTokens, kSize});
  problem.score.causal = fovea::Causal::kTopLeft;
  const fovea::Status status = fovea::Attention(problem, executor);
  if (!status.ok()) {
    std::printf("%s: %s\n", name, status.message());
    return 1;
  }
  for (const float x : out) {
    if (!(std::fabs(x - 1.5f) <= 1e-5f)) {
      std::printf("%s: %g, expected 1.5\n", name, static_cast<double>(x));
      return 1;
    }
  }
  std::printf("%s: ok\n", name);
  return 0;
}

#ifdef CONSUMER_USES_EMBEDDED
int CheckEmbedded() {
  namespace embedded = fovea::embedded;
  constexpr int64_t kTokens = 33, kSize = 16;
  const std::vector<float> ones(kTokens * kSize, 1.0f);
  std::vector<float> out(ones.size(), 0.0f);
  static unsigned char scratch[embedded::ScratchBytes(kSize, kSize)];
  embedded::Problem problem;
  problem.Tq = problem.Tk = kTokens, problem.dk = problem.dv = kSize;
  problem.q = problem.k = problem.v = embedded::Rows(ones.data(), kTokens, kSize);
  problem.out = embedded::Rows(out.data(), kTokens, kSize);
  if (embedded::Attention(problem, scratch, sizeof(scratch)) != embedded::Error::kOk) return 1;
  for (const float x : out) {
    if (!(std::fabs(x - 1.0f) <= 1e-5f)) return 1;
  }
  std::printf("embedded: ok\n");
  return 0;
}
#endif

}  // namespace

int main() {
  int failures = Check("serial", fovea::SerialExecutor());
#ifdef CONSUMER_USES_TBB
  const auto tbb = fovea::MakeTbbExecutor(2);
  failures += tbb == nullptr ? 1 : Check("oneTBB", *tbb);
#endif
#ifdef CONSUMER_USES_EMBEDDED
  failures += CheckEmbedded();
#endif
  return failures;
}
