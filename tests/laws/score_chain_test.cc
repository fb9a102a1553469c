// Chains of q·k: over many channels, the sum of a score errs no more than a chain of 128 does.
// Of products of bf16 lse shows it, which rounded weights leave alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Kernel;
using test::ProblemSpec;
using test::RandomProblem;

constexpr double kEps = 0x1p-24;

// Every row of out and lse of `p` within 1e-5 + c·2⁻²⁴·max|partial score|; lse within 1e-6 of
// itself besides.
void Hold(RandomProblem& p, double c, const std::string& what) {
  std::vector<reference::Row> rows;
  for (int64_t h = 0; h < p.spec.Hq; ++h) {
    for (int64_t i = 0; i < p.spec.Tq; ++i)
      rows.push_back(reference::ForwardRow(p.problem, 0, h, i));
  }
  for (const Kernel& kernel : test::KernelsFor(p.problem)) {
    RunOn(kernel, p);
    double worst = 0;  // share of the bound
    for (size_t r = 0; r < rows.size(); ++r) {
      const reference::Row& row = rows[r];
      const double t = c * kEps * row.max_partial_score;
      const double lse = std::fabs(p.lse.Get(static_cast<int64_t>(r)) - row.lse);
      worst = std::max(worst, lse / (t + std::max(1e-5, 1e-6 * std::fabs(row.lse))));
      const double w = reference::WeightTolerance(kernel.product);
      for (int64_t n = 0; n < p.spec.dv; ++n) {
        const double out = p.out.Get(static_cast<int64_t>(r) * p.spec.dv + n);
        const double error = std::fabs(out - row.out[static_cast<size_t>(n)]);
        worst = std::max(worst, error / ((t + 1e-5 + w) * row.max_abs_value));
      }
    }
    EXPECT_LE(worst, 1) << ToString(kernel) << ", " << what << ": times the bound";
  }
}

ProblemSpec Spec(int64_t Tq, int64_t Tk, int64_t dk) {
  ProblemSpec s;
  s.Hq = 2, s.Tq = Tq, s.Tk = Tk, s.dk = dk, s.dv = 3, s.scale = 1.0f;
  return s;
}

constexpr int64_t kLongChains[] = {512, 900, 1024, 2500, 4096};
// Heads so long that joins of chains would be a long chain themselves.
constexpr int64_t kVeryLong[] = {65536, 131072};

TEST(ScoreChainTest, ALargeChannelDoesNotSwallowThoseThatFollow) {
  // 64, and behind it terms just below half a unit in its last place: a chain that begins with it
  // loses each of them. The large channel in turns at the beginning, elsewhere and at the end.
  const double small = 0.98 * 64 * kEps;
  for (int64_t dk : test::Thinned(kLongChains)) {
    for (int64_t Tq : {1, 20}) {
      RandomProblem p(Spec(Tq, 40, dk), test::BaseSeed());
      p.q.Fill([] { return 1; });
      for (int64_t j = 0; j < 40; ++j) {
        for (int64_t c = 0; c < dk; ++c)
          p.k.SetAt({0, 0, j, c}, c == j * j * j % dk || c == 0 ? 64 : small);
      }
      Hold(p, 8 + 128, "dk " + std::to_string(dk));
    }
  }
}

TEST(ScoreChainTest, ChannelsOfOneSign) {
  for (int64_t dk : test::Thinned({64, 128, 512, 1024, 4096})) {
    for (int64_t Tq : {1, 20}) {
      RandomProblem p(Spec(Tq, 40, dk), test::BaseSeed());
      p.spec.scale = static_cast<float>(60.0 / static_cast<double>(dk)), p.Refresh();
      test::Random random(test::BaseSeed());
      for (bool constant : {true, false}) {
        const auto number = [&](double x) { return constant ? x : 0.5 + random.Uniform(); };
        p.q.Fill([&] { return number(0.78341991); });
        // Half of the keys are nearly as near as the others: what rounds alike cancels, what rounds
        // otherwise shows in out.
        for (int64_t n = 0; n < p.k.size(); ++n)
          p.k.Set(n, number(n / dk % 2 == 0 ? 1.00182199 : 1.00135446));
        for (int64_t n = 0; n < p.v.size(); ++n) p.v.Set(n, n / p.spec.dv % 2 == 0 ? 1 : -1);
        Hold(p, 8 + static_cast<double>(std::min<int64_t>(dk, 128)),
             "dk " + std::to_string(dk) + (constant ? " constant" : " uniform"));
      }
    }
  }
}

TEST(ScoreChainTest, ChannelsOfMixedSigns) {
  for (int64_t dk : test::Thinned(kLongChains)) {
    for (int64_t Tq : {1, 20}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        RandomProblem p(Spec(Tq, 70, dk), test::BaseSeed() + seed);
        p.spec.scale = static_cast<float>(4 / std::sqrt(static_cast<double>(dk))), p.Refresh();
        Hold(p, 8, "dk " + std::to_string(dk) + " seed " + std::to_string(seed));
      }
    }
  }
}

TEST(ScoreChainTest, JoinsOfManyChains) {
  // Behind 64, chains whose sums are just below half a unit in its last place: each join that
  // rounds loses one. In turns at the beginning, in the middle and at the end; and channels of one
  // sign, whose joins round alike.
  const double small = 0.98 * 0.5 * kEps;
  for (int64_t dk : test::Thinned(kVeryLong)) {
    for (DType type : {DType::kF32, DType::kBF16}) {
      for (int64_t Tq : {1, 20}) {
        ProblemSpec s = test::WithTypes(Spec(Tq, 5, dk), type);
        s.Hq = 1, s.out_type = DType::kF32;
        RandomProblem p(s, test::BaseSeed());
        const int64_t places[] = {0, 1, dk / 2, dk - 1, 0};
        p.q.Fill([] { return 1; });
        for (int64_t j = 0; j < 5; ++j) {
          for (int64_t c = 0; c < dk; ++c) p.k.SetAt({0, 0, j, c}, c == places[j] ? 64 : small);
        }
        const std::string what =
            "dk " + std::to_string(dk) + (type == DType::kF32 ? " f32" : " bf16");
        Hold(p, 8 + 128, what + ", one large");
        p.spec.scale = static_cast<float>(60.0 / static_cast<double>(dk)), p.Refresh();
        p.q.Fill([] { return 0.78341991; });
        p.k.Fill([] { return 1.00182199; });
        Hold(p, 8 + 128, what + ", constant");
      }
    }
  }
}

}  // namespace
}  // namespace fovea
