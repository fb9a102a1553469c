// A host that has its own threads drives attention with them: it binds a planned call and runs its
// phases of independent tasks, with a barrier between phases. Fovea starts no thread, takes no lock
// and allocates nothing in a bound call. The results are those of one thread, bit for bit.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fovea/fovea.h"
#include "pool.h"

namespace {

struct Case {
  const char* name;
  int64_t B, Hq, Hkv, Tq, Tk, d;
  fovea::Causal causal;
};

// The same problem by one thread and by pools of 1 to 4: true if all agree bit for bit.
bool Agree(const Case& c) {
  const std::vector<float> q = Numbers(c.B * c.Hq * c.Tq * c.d, 1),
                           k = Numbers(c.B * c.Hkv * c.Tk * c.d, 2),
                           v = Numbers(c.B * c.Hkv * c.Tk * c.d, 3);
  std::vector<float> expected(q.size()), out(q.size());

  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {c.B, c.Hq, c.Tq, c.d});
  problem.k = fovea::View(k.data(), {c.B, c.Hkv, c.Tk, c.d});
  problem.v = fovea::View(v.data(), {c.B, c.Hkv, c.Tk, c.d});
  problem.out = fovea::View(expected.data(), {c.B, c.Hq, c.Tq, c.d});
  problem.score.causal = c.causal;

  fovea::Plan plan;
  fovea::Status status = fovea::Plan::Create(problem, {}, &plan);
  if (status.ok()) {
    std::vector<char> memory(plan.WorkspaceBytes(1));
    status = fovea::Run(plan, problem, {memory.data(), memory.size()});
  }

  problem.out = fovea::View(out.data(), {c.B, c.Hq, c.Tq, c.d});
  for (int workers = 1; status.ok() && workers <= 4; ++workers) {
    Pool pool(workers);
    std::vector<char> memory(plan.WorkspaceBytes(workers));
    fovea::BoundCall call;
    status = fovea::Bind(plan, problem, {memory.data(), memory.size()}, workers, &call);
    for (int run = 0; status.ok() && run < 3; ++run) {
      out.assign(out.size(), -7.0f);
      pool.Run(call);
      if (std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) != 0) {
        std::printf("%s: %d workers differ from one\n", c.name, workers);
        return false;
      }
    }
  }
  if (!status.ok()) {
    std::printf("%s: %s\n", c.name, status.message());
    return false;
  }
  std::printf("%s: 1, 2, 3 and 4 workers give the same bits\n", c.name);
  return true;
}

}  // namespace

int main() {
  bool ok = Agree({"prefill", 1, 8, 2, 300, 300, 64, fovea::Causal::kTopLeft});
  ok &= Agree({"decode", 2, 8, 2, 1, 4096, 64, fovea::Causal::kNone});
  return ok ? 0 : 1;
}
