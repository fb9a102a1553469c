#include "support/random_gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/target.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/executors.h"

namespace fovea::test {
namespace {

OwnedTensor Like(const TensorView& view, DType type) {
  return OwnedTensor(type, std::vector<int64_t>(view.shape, view.shape + view.rank));
}

double Rounding(DType type) {
  return type == DType::kBF16 ? 0x1p-8 : type == DType::kF16 ? 0x1p-11 : 0;
}

// What bounds are made of.
struct Largest {
  double score = 0, dp = 0, q = 0, k = 0, dout = 0, delta = 0, scale = 0, bias_scale = 1,
         product = 0;
  double rows = 1;   // that a key may have
  double pairs = 1;  // of a head, in all sequences
};

Largest LargestOf(const RandomGradients& g) {
  const RandomProblem& p = g.p;
  const Problem& problem = p.problem;
  const ProblemSpec& s = p.spec;
  Largest most;
  most.rows = static_cast<double>(s.Tq * (s.Hkv == 0 ? 1 : s.Hq / s.Hkv));
  most.pairs = static_cast<double>(s.B * s.Tq * s.Tk);
  const double scale = problem.score.scale.has_value() ? static_cast<double>(*problem.score.scale)
                                                       : 1 / std::sqrt(static_cast<double>(s.dk));
  for (int64_t b = 0; b < s.B; ++b) {
    const RandomProblem::Rows queries = p.QueriesOf(b), keys = p.KeysOf(b);
    for (int64_t h = 0; h < s.Hq; ++h) {
      const double factor = scale * (p.head_scales.present() ? p.head_scales.Get(h) : 1.0);
      most.scale = std::max(most.scale, std::abs(factor));
      if (p.bias_scales.present())
        most.bias_scale = std::max(most.bias_scale, std::abs(p.bias_scales.Get(h)));
      const int64_t hkv = h / (s.Hq / s.Hkv);
      for (int64_t i = 0; i < p.QLength(b); ++i) {
        const int64_t qt = queries.first + i;
        double delta = g.dlse.present() ? -g.dlse.At({queries.batch, h, qt}) : 0;
        for (int64_t c = 0; c < s.dv; ++c) {
          const double d = g.dout.At({queries.batch, h, qt, c});
          delta += d * p.out.At({queries.batch, h, qt, c});
          most.dout = std::max(most.dout, std::abs(d));
        }
        most.delta = std::max(most.delta, std::abs(delta));
        const double lse = p.lse.At({queries.batch, h, qt});
        if (std::isfinite(lse)) most.score = std::max(most.score, std::abs(lse));
        for (int64_t j = 0; j < p.KvLength(b); ++j) {
          const int64_t kt = keys.first + j;
          double dp = 0, qk = 0;
          for (int64_t c = 0; c < s.dv; ++c) {
            dp += g.dout.At({queries.batch, h, qt, c}) * p.v.At({keys.batch, hkv, kt, c});
          }
          for (int64_t c = 0; c < s.dk; ++c) {
            const double q = p.q.At({queries.batch, h, qt, c}),
                         k = p.k.At({keys.batch, hkv, kt, c});
            qk += q * k;
            most.q = std::max(most.q, std::abs(q));
            most.k = std::max(most.k, std::abs(k));
          }
          most.dp = std::max(most.dp, std::abs(dp) + std::abs(delta));
          most.product = std::max(most.product, std::abs(scale * qk));
          double score = std::abs(factor * qk);
          if (p.alibi_slopes.present())
            score = std::max(
                score, p.alibi_slopes.Get(h) * std::abs(static_cast<double>(i + p.Offset(b) - j)));
          if (p.bias.present()) {
            const double bias = RandomProblem::Broadcast(p.bias, b, h, i, j);
            if (std::isfinite(bias)) score = std::max(score, std::abs(bias) * most.bias_scale);
          }
          most.score = std::max(most.score, score);
        }
      }
    }
  }
  return most;
}

void ExpectNear(const char* name, const OwnedTensor& tensor, const std::vector<double>& expected,
                double bound) {
  ASSERT_EQ(static_cast<size_t>(tensor.size()), expected.size()) << name;
  const double rounding = Rounding(tensor.view().dtype);
  double worst = 0;
  int64_t at = -1;
  for (int64_t n = 0; n < tensor.size(); ++n) {
    const double e = expected[static_cast<size_t>(n)], x = tensor.Get(n);
    if (std::isnan(e) && std::isnan(x)) continue;
    const double excess = std::abs(x - e) / (bound + rounding * std::abs(e) + 1e-30);
    if (!(excess <= worst)) worst = excess, at = n;
    if (std::isnan(excess)) break;
  }
  EXPECT_LE(worst, 1) << name << "[" << at << "] = " << (at < 0 ? 0 : tensor.Get(at))
                      << ", expected " << (at < 0 ? 0 : expected[static_cast<size_t>(at)])
                      << " within " << bound;
  EXPECT_FALSE(std::isnan(worst)) << name;
}

// Rows outside of every packed sequence are padding: nobody writes them.
std::vector<double> WithPaddingOf(const OwnedTensor& tensor, std::vector<double> expected,
                                  const std::function<bool(int64_t row)>& is_there) {
  const TensorView view = tensor.view();
  const int64_t rows = view.shape[2], d = view.shape[3];
  for (int64_t n = 0; n < tensor.size(); ++n) {
    const int64_t row = n / d % rows;
    if (is_there(row)) continue;
    EXPECT_TRUE(tensor.ElementUntouched(n)) << "row " << row << " is of no sequence";
    expected[static_cast<size_t>(n)] = tensor.Get(n);
  }
  return expected;
}

}  // namespace

RandomGradients::RandomGradients(const ProblemSpec& spec, uint64_t seed, DType gradient_type)
    : p(spec, seed) {
  const reference::ForwardResult forward = reference::Forward(p.problem);
  for (int64_t n = 0; n < p.out.size(); ++n) p.out.Set(n, forward.out[static_cast<size_t>(n)]);
  for (int64_t n = 0; n < p.lse.size(); ++n) p.lse.Set(n, forward.lse[static_cast<size_t>(n)]);
  Random random(seed ^ 0x5eed);
  dout = Like(p.out.view(), spec.out_type);
  dlse = Like(p.lse.view(), DType::kF32);
  dout.Fill([&] { return random.Normal(); });
  dlse.Fill([&] { return random.Normal(); });
  // Nothing is read of rows behind the lengths, or of no sequence.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TensorView view = dout.view();
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    for (int64_t row = 0; row < view.shape[2]; ++row) {
      bool there = false;
      for (int64_t s = 0; s < spec.B; ++s) {
        const RandomProblem::Rows rows = p.QueriesOf(s);
        there = there || (rows.batch == b && row >= rows.first && row < rows.first + p.QLength(s));
      }
      for (int64_t h = 0; h < view.shape[1] && !there; ++h) {
        dlse.SetAt({b, h, row}, nan);
        for (int64_t c = 0; c < view.shape[3]; ++c) dout.SetAt({b, h, row, c}, nan);
      }
    }
  }
  dq = Like(p.q.view(), gradient_type);
  dk = Like(p.k.view(), gradient_type);
  dv = Like(p.v.view(), gradient_type);
  if (p.bias.present()) dbias = Like(p.bias.view(), gradient_type);
  if (p.sinks.present()) dsinks = Like(p.sinks.view(), DType::kF32);
  if (p.head_scales.present()) dhead_scales = Like(p.head_scales.view(), DType::kF32);
  ResetGradients();
  Refresh();
}

void RandomGradients::Refresh() {
  p.Refresh();
  problem = {};
  problem.forward = p.problem;
  problem.dout = dout.view();
  problem.dlse = dlse.view();
  problem.dq = dq.mutable_view();
  problem.dk = dk.mutable_view();
  problem.dv = dv.mutable_view();
  problem.dbias = dbias.mutable_view();
  problem.dsinks = dsinks.mutable_view();
  problem.dhead_scales = dhead_scales.mutable_view();
}

std::vector<RandomGradients::Gradient> RandomGradients::gradients() const {
  std::vector<Gradient> present;
  for (const Gradient& x : {Gradient{"dq", &dq},
                            {"dk", &dk},
                            {"dv", &dv},
                            {"dbias", &dbias},
                            {"dsinks", &dsinks},
                            {"dhead_scales", &dhead_scales}}) {
    if (x.tensor->present()) present.push_back(x);
  }
  return present;
}

void RandomGradients::ResetGradients() {
  for (OwnedTensor* x : {&dq, &dk, &dv, &dbias, &dsinks, &dhead_scales}) {
    if (x->present()) x->Reset();
  }
}

bool RandomGradients::Untouched() const {
  for (const Gradient& x : gradients()) {
    if (!x.tensor->Untouched()) return false;
  }
  return true;
}

std::vector<unsigned char> RandomGradients::Bytes() const {
  std::vector<unsigned char> bytes;
  for (const Gradient& x : gradients()) {
    const std::vector<unsigned char> more = x.tensor->Bytes();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

void RunGradients(RandomGradients& g, Target target, int workers) {
  PlanOptions options;
  options.target = target;
  GradientPlan plan;
  Status status = GradientPlan::Create(g.problem, options, &plan);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(plan.target(), target);
  status = RunHostDrivenAs<BoundGradients>(plan, g.problem, workers, BaseSeed());
  ASSERT_TRUE(status.ok()) << status.message();
  for (const RandomGradients::Gradient& x : g.gradients())
    EXPECT_TRUE(x.tensor->PaddingUntouched()) << x.name;
}

void ExpectGradientsMatch(const RandomGradients& g) {
  const RandomProblem& p = g.p;
  const reference::GradientResult e = reference::Gradients(p.problem, g.dout.view(), g.dlse.view());
  const Largest most = LargestOf(g);
  const double narrow = std::max({Rounding(p.spec.out_type), 0.0});
  const double t = 1e-5 + 8 * 0x1p-24 * most.score + narrow;
  const auto in = [&](bool queries) {
    return [&p, queries](int64_t row) {
      for (int64_t b = 0; b < p.spec.B; ++b) {
        const RandomProblem::Rows rows = queries ? p.QueriesOf(b) : p.KeysOf(b);
        if (row >= rows.first && row < rows.first + rows.count) return true;
      }
      return false;
    };
  };
  const double of_rows = std::sqrt(most.rows), of_pairs = std::sqrt(most.pairs);
  ExpectNear("dq", g.dq, WithPaddingOf(g.dq, e.dq, in(true)), t * most.scale * most.dp * most.k);
  ExpectNear("dk", g.dk, WithPaddingOf(g.dk, e.dk, in(false)),
             t * of_rows * most.scale * most.dp * most.q);
  ExpectNear("dv", g.dv, WithPaddingOf(g.dv, e.dv, in(false)), t * of_rows * most.dout);
  if (g.dsinks.present()) ExpectNear("dsinks", g.dsinks, e.dsinks, t * of_pairs * most.delta);
  if (g.dhead_scales.present())
    ExpectNear("dhead_scales", g.dhead_scales, e.dhead_scales,
               t * of_pairs * most.dp * most.product);
  if (!g.dbias.present()) return;
  std::vector<double> dbias(static_cast<size_t>(g.dbias.size()), 0.0);
  const ProblemSpec& s = p.spec;
  const TensorView view = g.dbias.view();
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < s.Tq; ++i) {
        for (int64_t j = 0; j < s.Tk; ++j) {
          const int64_t index[4] = {b, h, i, j};
          int64_t n = 0;
          for (int a = 0; a < view.rank; ++a)
            n = n * view.shape[a] + (view.shape[a] == 1 ? 0 : index[4 - view.rank + a]);
          dbias[static_cast<size_t>(n)] +=
              e.dbias[static_cast<size_t>(((b * s.Hq + h) * s.Tq + i) * s.Tk + j)];
        }
      }
    }
  }
  ExpectNear("dbias", g.dbias, dbias,
             t * of_pairs * std::sqrt(static_cast<double>(s.Hq)) * most.bias_scale * most.dp);
}

void ExpectGradientsMatchReference(RandomGradients& g) {
  for (const Target target : UsableTargets()) {
    if (target == Target::kAuto) continue;
    SCOPED_TRACE(Name(target));
    g.ResetGradients();
    RunGradients(g, target);
    ExpectGradientsMatch(g);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace fovea::test
