// A host that gives up in the middle: it looks at a flag between tasks, leaves when it is set, and
// may use plan, workspace and tensors for the next run at once. Nothing has to be told to Fovea,
// which holds no state between tasks.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fovea/fovea.h"
#include "pool.h"

int main() {
  const int64_t B = 1, H = 4, T = 1024, d = 64;
  const std::vector<float> q = Numbers(B * H * T * d, 1), k = Numbers(B * H * T * d, 2),
                           v = Numbers(B * H * T * d, 3);
  std::vector<float> out(q.size(), -7.0f), expected(q.size());
  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {B, H, T, d});
  problem.k = fovea::View(k.data(), {B, H, T, d});
  problem.v = fovea::View(v.data(), {B, H, T, d});
  problem.out = fovea::View(expected.data(), {B, H, T, d});
  problem.score.causal = fovea::Causal::kTopLeft;
  fovea::Status status = fovea::Attention(problem);

  Pool pool(2);
  fovea::Plan plan;
  fovea::BoundCall call;
  std::vector<char> workspace;
  problem.out = fovea::View(out.data(), {B, H, T, d});
  if (status.ok()) status = fovea::Plan::Create(problem, {}, &plan);
  if (status.ok()) {
    workspace.resize(plan.WorkspaceBytes(pool.workers()));
    status =
        fovea::Bind(plan, problem, {workspace.data(), workspace.size()}, pool.workers(), &call);
  }
  if (!status.ok()) {
    std::printf("%s\n", status.message());
    return 1;
  }

  // Somebody presses the key after five tasks.
  std::atomic<int64_t> begun{0};
  const auto abort_flag = [&begun] { return begun++ >= 5; };
  const bool finished = pool.Run(call, abort_flag);
  size_t written = 0;
  for (float x : out) written += x != -7.0f;
  std::printf("aborted: %zu of %zu numbers written\n", written, out.size());
  if (finished || written == 0 || written == out.size()) return 1;

  const bool finished_now = pool.Run(call);
  const bool same = std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0;
  std::printf("the next run: %s\n", finished_now && same ? "all of it, and right" : "wrong");
  return finished_now && same ? 0 : 1;
}
