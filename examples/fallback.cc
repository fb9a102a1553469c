// A host that has attention of its own asks the plan first: whether Fovea can compute the problem
// ("unsupported" is a code of its own, apart from mistakes), whether it is worth waking threads
// for, and how many.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "fovea/fovea.h"
#include "pool.h"

namespace {

float At(const fovea::TensorView& x, int64_t b, int64_t h, int64_t i, int64_t c) {
  float value;
  std::memcpy(&value,
              static_cast<const char*>(x.data) + b * x.stride[0] + h * x.stride[1] +
                  i * x.stride[2] + c * x.stride[3],
              sizeof(value));
  return value;
}

// What the host had before: a loop that stores the scores of a row. f32, no masks.
void OwnAttention(const fovea::Problem& p) {
  const int64_t B = p.q.shape[0], Hq = p.q.shape[1], Hkv = p.k.shape[1], Tq = p.q.shape[2],
                Tk = p.k.shape[2], dk = p.q.shape[3], dv = p.v.shape[3];
  std::vector<double> s(static_cast<size_t>(Tk));
  for (int64_t row = 0; row < B * Hq * Tq; ++row) {
    const int64_t b = row / (Hq * Tq), h = row / Tq % Hq, i = row % Tq, g = h / (Hq / Hkv);
    double m = -INFINITY, l = 0;
    for (int64_t j = 0; j < Tk; ++j) {
      double& x = s[static_cast<size_t>(j)];
      x = 0;
      for (int64_t c = 0; c < dk; ++c)
        x += static_cast<double>(At(p.q, b, h, i, c)) * static_cast<double>(At(p.k, b, g, j, c));
      x /= std::sqrt(static_cast<double>(dk));
      m = std::max(m, x);
    }
    for (double& x : s) l += x = std::exp(x - m);
    for (int64_t c = 0; c < dv; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < Tk; ++j)
        sum += s[static_cast<size_t>(j)] / l * static_cast<double>(At(p.v, b, g, j, c));
      const float x = static_cast<float>(sum);
      std::memcpy(static_cast<char*>(p.out.data) + b * p.out.stride[0] + h * p.out.stride[1] +
                      i * p.out.stride[2] + c * p.out.stride[3],
                  &x, sizeof(x));
    }
  }
}

enum class Way { kOwn, kSerial, kThreads, kError };

// What waking the pool costs, in FLOPs of one core; measured once by a real host.
constexpr double kWakingCost = 1e6;

Way Compute(const fovea::Problem& problem, Pool* pool) {
  fovea::Plan plan;
  fovea::Status status = fovea::Plan::Create(problem, {}, &plan);
  if (status.code() == fovea::StatusCode::kUnsupported) {
    std::printf("  fovea: %s\n", status.message());
    OwnAttention(problem);
    return Way::kOwn;
  }
  const fovea::Cost cost = plan.cost();
  const bool threads = status.ok() && cost.flops > kWakingCost && cost.tasks > 1;
  const int workers = threads ? pool->workers() : 1;
  std::vector<char> workspace(plan.WorkspaceBytes(workers));
  fovea::BoundCall call;
  if (status.ok())
    status = fovea::Bind(plan, problem, {workspace.data(), workspace.size()}, workers, &call);
  if (!status.ok()) {
    // a mistake of the host's: nothing to fall back to
    std::printf("  fovea: %s\n", status.message());
    return Way::kError;
  }
  std::printf("  %.3g FLOP, %.3g bytes of K and V, %lld tasks\n", cost.flops, cost.kv_bytes,
              static_cast<long long>(cost.tasks));
  if (threads) {
    pool->Run(call);
    return Way::kThreads;
  }
  for (int phase = 0; phase < call.Phases(); ++phase) {
    for (int64_t task = 0; task < call.Tasks(phase); ++task) call.RunTask(phase, task, 0);
  }
  return Way::kSerial;
}

// One case: the way that the host should find, and a result that agrees with its own loop.
// `repeated`: all channels of a key are the same number in memory.
bool Check(const char* name, int64_t H, int64_t Tq, int64_t Tk, int64_t d, bool repeated,
           Way expected, Pool* pool) {
  const int64_t dv = repeated ? 4 : d;
  const std::vector<float> q = Numbers(H * Tq * d, 1), k = Numbers(H * Tk * d, 2),
                           v = Numbers(H * Tk * dv, 3);
  std::vector<float> out(static_cast<size_t>(H * Tq * dv)), own(out.size());
  // Stride 0 along the channels makes a head of more than 2^24 channels from one number.
  const int64_t size = repeated ? (int64_t{1} << 24) + 1 : d, step = repeated ? 0 : 1;
  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {1, H, Tq, size}, {H * Tq * d, Tq * d, d, step});
  problem.k = fovea::View(k.data(), {1, H, Tk, size}, {H * Tk * d, Tk * d, d, step});
  problem.v = fovea::View(v.data(), {1, H, Tk, dv});
  problem.out = fovea::View(out.data(), {1, H, Tq, dv});
  std::printf("%s\n", name);
  const Way way = Compute(problem, pool);
  problem.out = fovea::View(own.data(), {1, H, Tq, dv});
  OwnAttention(problem);
  bool same = way == expected;
  for (size_t n = 0; n < out.size(); ++n) same = same && std::fabs(out[n] - own[n]) <= 1e-5f;
  std::printf("  %s\n", same ? "right" : "WRONG");
  return same;
}

}  // namespace

int main() {
  Pool pool(2);
  bool ok = Check("a large problem", 4, 256, 256, 64, false, Way::kThreads, &pool);
  ok &= Check("a small problem", 2, 1, 16, 32, false, Way::kSerial, &pool);
  ok &= Check("a head beyond all sizes", 1, 1, 2, 1, true, Way::kOwn, &pool);
  return ok ? 0 : 1;
}
