// Contexts whose score matrix no machine would store, inside the fixed workspace.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/executors.h"

namespace fovea {
namespace {

std::vector<float> Values(int64_t n, uint64_t seed) {
  // Uniform with variance 1: as good as normal here, and quick to make.
  test::Random random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = static_cast<float>((random.Uniform() - 0.5) * 3.4641016151377544);
  return values;
}

struct LongProblem {
  std::vector<float> q, k, v, out, lse;
  Problem problem;

  LongProblem(int64_t Tq, int64_t Tk, int64_t d)
      : q(Values(Tq * d, 1)),
        k(Values(Tk * d, 2)),
        v(Values(Tk * d, 3)),
        out(static_cast<size_t>(Tq * d)),
        lse(static_cast<size_t>(Tq)) {
    problem.q = View(static_cast<const float*>(q.data()), {1, 1, Tq, d});
    problem.k = View(static_cast<const float*>(k.data()), {1, 1, Tk, d});
    problem.v = View(static_cast<const float*>(v.data()), {1, 1, Tk, d});
    problem.out = View(out.data(), {1, 1, Tq, d});
    problem.lse = View(lse.data(), {1, 1, Tq});
    problem.score.causal = Causal::kTopLeft;
  }

  void ExpectRow(int64_t i, const std::string& what) const {
    const reference::Row row = reference::ForwardRow(problem, 0, 0, i);
    const double t = reference::RelativeTolerance(row);
    EXPECT_NEAR(lse[static_cast<size_t>(i)], row.lse, t + 0x1p-23 * std::fabs(row.lse))
        << what << " row " << i;
    double worst = 0;
    const size_t d = row.out.size();
    for (size_t c = 0; c < d; ++c)
      worst = std::max(
          worst, std::fabs(static_cast<double>(out[static_cast<size_t>(i) * d + c]) - row.out[c]));
    EXPECT_LE(worst, t * row.max_abs_value) << what << " row " << i;
  }
};

TEST(LongContextTest, SomeQueryBlocksOf131072KeysRunInsideTheFixedWorkspace) {
  const bool thinned = test::GridStep() > 1;
  const int64_t Tq = thinned ? 16 : 64, Tk = 131072;
  LongProblem p(Tq, Tk, thinned ? 16 : 128);
  for (int64_t offset : {Tk / 2, Tk - Tq}) {
    for (Engine engine : {Engine::kTile, Engine::kAuto}) {
      p.problem.score.query_offset = offset;
      PlanOptions options;
      options.engine = engine;
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
      EXPECT_LE(plan.WorkspaceBytes(2) - plan.WorkspaceBytes(1), size_t{256} << 10);
      std::fill(p.out.begin(), p.out.end(), std::nanf(""));
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 2, 1).ok());
      const std::string what = std::string(Name(engine)) + " offset " + std::to_string(offset);
      for (int64_t i : {int64_t{0}, Tq - 1}) p.ExpectRow(i, what);
    }
  }
}

TEST(LongContextTest, SlowAFullCausal32768RunsInsideTheFixedWorkspace) {
  const int64_t T = 32768;
  LongProblem p(T, T, 64);
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  EXPECT_LE(plan.WorkspaceBytes(2), size_t{512} << 10);
  ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 2, 1).ok());
  for (int64_t i : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{20011}, T - 1})
    p.ExpectRow(i, "full");
}

}  // namespace
}  // namespace fovea
