// A program that uses Highway itself, in its own copy and with other targets, beside Fovea: what it
// forbids its Highway does not reach Fovea, what Fovea chooses does not reach its Highway, and both
// compute right. Linked with the static and with the shared library. Exit code 0 if so.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "highway_host.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float Dot(const float* x, const float* y, size_t count) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  size_t n = 0;
  for (; n + hn::Lanes(d) <= count; n += hn::Lanes(d))
    sum = hn::MulAdd(hn::LoadU(d, x + n), hn::LoadU(d, y + n), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; n < count; ++n) total += x[n] * y[n];
  return total;
}

int64_t TargetOfThisCode() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cmath>
#include <cstdio>
#include <vector>

#include "fovea/fovea.h"

namespace host {

HWY_EXPORT(Dot);
HWY_EXPORT(TargetOfThisCode);

int failures = 0;

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

// Small integers: every order of summation gives the same.
bool DotIsRight() {
  std::vector<float> x(1003), y(x.size());
  float expected = 0;
  for (size_t n = 0; n < x.size(); ++n) {
    x[n] = static_cast<float>(n % 7);
    y[n] = static_cast<float>(n % 5) - 2;
    expected += x[n] * y[n];
  }
  return HWY_DYNAMIC_DISPATCH(Dot)(x.data(), y.data(), x.size()) == expected;
}

std::vector<fovea::Target> Targets() {
  const fovea::TargetList list = fovea::UsableTargets();
  return std::vector<fovea::Target>(list.begin(), list.end());
}

// Attention of a row with one dominant key gives that key's value; all the targets that Fovea can
// use.
std::vector<float> Attend() {
  const int64_t T = 40, d = 24;
  std::vector<float> q(static_cast<size_t>(T * d)), v(q.size()), all;
  for (size_t n = 0; n < q.size(); ++n) {
    q[n] = n / d == n % d ? 30.0f : 0.0f;
    v[n] = static_cast<float>(n % 11);
  }
  for (fovea::Target target : Targets()) {
    std::vector<float> out(q.size());
    fovea::Problem problem;
    problem.q = fovea::View(q.data(), {1, 1, T, d});
    problem.k = fovea::View(q.data(), {1, 1, T, d});
    problem.v = fovea::View(v.data(), {1, 1, T, d});
    problem.out = fovea::View(out.data(), {1, 1, T, d});
    fovea::PlanOptions options;
    options.target = target;
    const fovea::Status status = fovea::Attention(problem, options, fovea::SerialExecutor());
    Expect(status.ok(), status.message());
    for (size_t n = 0; n < static_cast<size_t>(d * d); ++n)
      Expect(std::fabs(out[n] - v[n]) <= 1e-4f, "attention gives the dominant value");
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

int Main() {
  const std::vector<float> before = Attend();
  const std::vector<fovea::Target> targets = Targets();
  const int64_t supported = hwy::SupportedTargets();
  Expect(DotIsRight(), "the host's dot product, on its best target");

  // One target after the other is forbidden, from the best one down, until the baseline is left.
  int64_t forbidden = 0;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::DisableTargets(forbidden);
    // which undoes the choice of a target, so that it comes before
    const int64_t left = hwy::SupportedTargets();
    hwy::GetChosenTarget().Update(left);
    Expect(HWY_DYNAMIC_DISPATCH(TargetOfThisCode)() == target,
           "the host's Highway runs what the host left it");
    Expect(DotIsRight(), "the host's dot product");
    Expect(Targets() == targets, "Fovea's targets are not the host's");
    Expect(Attend() == before, "Fovea's results are the same bits");
    Expect(HWY_DYNAMIC_DISPATCH(TargetOfThisCode)() == target, "the host's choice stands");
    Expect(DotIsRight(), "the host's dot product, after Fovea");
    Expect(hwy::SupportedTargets() == left, "Fovea leaves the host's Highway alone");
    std::printf("host on %s, Fovea on", hwy::TargetName(target));
    for (fovea::Target t : targets) std::printf(" %s", fovea::Name(t));
    std::printf("\n");
    forbidden |= target;
  }
  hwy::DisableTargets(0);
  Expect(hwy::SupportedTargets() == supported, "all is as before");
  return failures == 0 ? 0 : 1;
}

}  // namespace host

int main() { return host::Main(); }

#endif  // HWY_ONCE
