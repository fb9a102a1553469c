// Gradients against those of the double-precision reference, and the laws that they obey.
#include "fovea/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fovea/target.h"
#include "reference/reference.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_gradients.h"
#include "support/score_function.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::ProblemSpec;
using test::RandomGradients;

ProblemSpec Spec(int64_t Tq, int64_t Tk, int64_t dk, int64_t dv) {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = Tk, s.dk = dk, s.dv = dv;
  return s;
}

TEST(GradientTest, AwkwardSizes) {
  const int64_t sizes[][4] = {{1, 1, 1, 1},       {1, 70, 8, 8},    {70, 1, 8, 8},
                              {5, 64, 16, 3},     {33, 65, 7, 17},  {17, 200, 40, 9},
                              {130, 131, 64, 72}, {9, 70, 3, 1900}, {9, 70, 1030, 5}};
  uint64_t seed = test::BaseSeed();
  for (const auto& n : sizes) {
    RandomGradients g(Spec(n[0], n[1], n[2], n[3]), ++seed);
    SCOPED_TRACE(ToString(g.p.spec));
    ExpectGradientsMatchReference(g);
  }
}

TEST(GradientTest, VariedProblems) {
  uint64_t seed = test::BaseSeed();
  for (ProblemSpec s : test::VariedSpecs()) {
    s.function = false, s.weights = false, s.scores.reset(), s.lse = true;
    if (s.page_table != DType::kNone || s.ring || s.key_offsets != DType::kNone)
      continue;  // have no gradients
    RandomGradients g(s, ++seed);
    SCOPED_TRACE(ToString(s));
    ExpectGradientsMatchReference(g);
  }
}

TEST(GradientTest, ManyChunks) {
  for (bool causal : {false, true}) {
    ProblemSpec s = Spec(600, 800, 8, 5);
    s.B = 1, s.Hq = 2, s.Hkv = 1, s.sinks = true, s.head_scales = true;
    if (causal) s.causal = Causal::kBottomRight;
    RandomGradients g(s, test::BaseSeed());
    ExpectGradientsMatchReference(g);
  }
}

TEST(GradientTest, BiasOfEveryBroadcast) {
  uint64_t seed = test::BaseSeed();
  for (Axes axes : test::kAllAxes) {
    if (axes == Axes::kAbsent) continue;
    for (DType type : {DType::kF32, DType::kBF16}) {
      ProblemSpec s = Spec(300, 330, 8, 8);
      s.bias = axes, s.bias_type = type, s.bias_scales = true, s.bias_removes = 0.1;
      s.kv_lengths = DType::kI32, s.q_lengths = DType::kI64, s.softcap = 2;
      RandomGradients g(s, ++seed, type);
      SCOPED_TRACE(ToString(s));
      ExpectGradientsMatchReference(g);
    }
  }
}

TEST(GradientTest, EveryTypeAndNarrowGradients) {
  uint64_t seed = test::BaseSeed();
  for (DType type : test::kFloatTypes) {
    for (DType gradient : test::kFloatTypes) {
      ProblemSpec s = test::WithTypes(Spec(40, 90, 24, 20), type);
      s.causal = Causal::kBottomRight;
      RandomGradients g(s, ++seed, gradient);
      SCOPED_TRACE(ToString(s));
      ExpectGradientsMatchReference(g);
    }
  }
}

TEST(GradientTest, PackedSequencesAreThoseOfAPaddedBatch) {
  ProblemSpec s = Spec(90, 140, 16, 12);
  s.B = 3, s.cu_seqlens_q = s.cu_seqlens_k = DType::kI32, s.causal = Causal::kBottomRight;
  s.bias = Axes::kHQK, s.sinks = true, s.head_scales = true, s.kv_lengths = DType::kI32;
  RandomGradients g(s, test::BaseSeed());
  ExpectGradientsMatchReference(g);
}

// f(target) for all that can run.
template <class F>
void ForEachTarget(const F& f) {
  for (const Target target : UsableTargets()) {
    SCOPED_TRACE(Name(target));
    f(target);
  }
}

ProblemSpec Everything() {
  ProblemSpec s = Spec(300, 520, 16, 24);
  s.causal = Causal::kBottomRight, s.softcap = 3, s.alibi = true, s.sinks = true;
  s.bias = Axes::kHQK, s.bias_scales = true, s.head_scales = true, s.mask = Axes::kBHQK;
  return s;
}

TEST(GradientTest, BitsDoNotDependOnThreadsOrWhatElseIsInTheBatch) {
  RandomGradients g(Everything(), test::BaseSeed());
  ForEachTarget([&](Target target) {
    g.ResetGradients();
    RunGradients(g, target);
    const std::vector<unsigned char> expected = g.Bytes();
    for (int workers : {2, 5}) {
      g.ResetGradients();
      RunGradients(g, target, workers);
      EXPECT_TRUE(g.Bytes() == expected) << workers;
    }
    // The second sequence alone.
    RandomGradients one = g;
    one.Refresh();
    const auto second = [](auto view, int rank) {
      if (!view.present() || view.rank != rank) return view;
      using Byte = std::remove_pointer_t<decltype(view.data)>;
      view.data = static_cast<Byte*>(static_cast<void*>(
          const_cast<char*>(static_cast<const char*>(view.data)) + view.stride[0]));
      view.shape[0] = 1;
      return view;
    };
    Problem& p = one.problem.forward;
    p.q = second(p.q, 4), p.k = second(p.k, 4), p.v = second(p.v, 4), p.out = second(p.out, 4);
    p.lse = second(p.lse, 3), p.score.mask = second(p.score.mask, 4);
    one.problem.dout = second(one.problem.dout, 4), one.problem.dlse = second(one.problem.dlse, 3);
    one.problem.dq = second(one.problem.dq, 4), one.problem.dk = second(one.problem.dk, 4);
    one.problem.dv = second(one.problem.dv, 4), one.problem.dbias = {};
    one.problem.dsinks = {}, one.problem.dhead_scales = {};
    one.ResetGradients();
    PlanOptions options;
    options.target = target;
    const Status status = Gradients(one.problem, options, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const auto& [of_one, of_both] :
         {std::pair{&one.dq, &g.dq}, {&one.dk, &g.dk}, {&one.dv, &g.dv}}) {
      for (int64_t n = of_one->size() / 2; n < of_one->size(); ++n)
        ASSERT_EQ(of_one->Get(n), of_both->Get(n)) << n;
    }
  });
}

TEST(GradientTest, AccumulatingAddsToWhatIsThere) {
  ProblemSpec s = Everything();
  s.kv_lengths = s.q_lengths = DType::kI32;
  RandomGradients g(s, test::BaseSeed());
  ForEachTarget([&](Target target) {
    g.problem.accumulate = false;
    g.ResetGradients();
    RunGradients(g, target);
    std::vector<std::vector<double>> once;
    for (const auto& x : g.gradients()) once.push_back(x.tensor->Dense());
    g.problem.accumulate = true;
    RunGradients(g, target);
    size_t n = 0;
    for (const auto& x : g.gradients()) {
      const std::vector<double> twice = x.tensor->Dense();
      for (size_t i = 0; i < twice.size(); ++i)
        ASSERT_NEAR(twice[i], 2 * once[n][i], 1e-6 * std::abs(once[n][i]) + 1e-30) << x.name;
      ++n;
    }
  });
}

// Keys cut into two sets, each with the lse of both: their gradients add up to those of the whole.
TEST(GradientTest, KeysInTwoSets) {
  ProblemSpec s = Spec(70, 260, 16, 16);
  s.B = 1;
  RandomGradients g(s, test::BaseSeed()), halves = g;
  halves.Refresh();
  ForEachTarget([&](Target target) {
    RunGradients(g, target);
    for (int half = 0; half < 2; ++half) {
      GradientProblem part = halves.problem;
      const int64_t first = half * 130;
      const auto cut = [&](auto& view) {
        using Byte = std::remove_pointer_t<decltype(view.data)>;
        view.data = static_cast<Byte*>(static_cast<void*>(
            const_cast<char*>(static_cast<const char*>(view.data)) + first * view.stride[2]));
        view.shape[2] = 130;
      };
      cut(part.forward.k), cut(part.forward.v), cut(part.dk), cut(part.dv);
      // dq of the second half is added to that of the first; dk and dv have rows of their own.
      PlanOptions options;
      options.target = target;
      part.dk = half == 0 ? part.dk : MutableTensorView(), part.dv = {};
      part.accumulate = half == 1;
      const Status status = Gradients(part, options, SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (int64_t n = 0; n < g.dq.size(); ++n) ASSERT_NEAR(halves.dq.Get(n), g.dq.Get(n), 1e-5) << n;
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t j = 0; j < 130; ++j)
        ASSERT_NEAR(halves.dk.At({0, h, j, 3}), g.dk.At({0, h, j, 3}), 1e-5);
    }
  });
}

// What no query sees may hold anything, and rows and keys without part get exact zeros.
TEST(GradientTest, NaNInWhatTakesNoPartDoesNotShow) {
  ProblemSpec s = Spec(40, 150, 12, 9);
  s.B = 1, s.mask = Axes::kQK, s.sinks = true;
  RandomGradients clean(s, test::BaseSeed());
  // Query 7 sees nothing; keys 20 and 100 are seen by nobody; key 50 is not seen by query 3.
  for (int64_t i = 0; i < s.Tq; ++i) {
    for (int64_t j = 0; j < s.Tk; ++j) {
      if (i == 7 || j == 20 || j == 100 || (i == 3 && j == 50)) clean.p.mask.Set(i * s.Tk + j, 0);
    }
  }
  clean = [&] {
    RandomGradients again = clean;
    const reference::ForwardResult forward = reference::Forward(again.p.problem);
    for (int64_t n = 0; n < again.p.out.size(); ++n)
      again.p.out.Set(n, forward.out[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < again.p.lse.size(); ++n)
      again.p.lse.Set(n, forward.lse[static_cast<size_t>(n)]);
    again.Refresh();
    return again;
  }();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (double bad : {nan, inf, -inf}) {
    RandomGradients spoilt = clean;
    spoilt.p.q = clean.p.q.CopiedTo({}), spoilt.p.k = clean.p.k.CopiedTo({});
    spoilt.p.v = clean.p.v.CopiedTo({}), spoilt.dout = clean.dout.CopiedTo({});
    spoilt.dq = clean.dq.CopiedTo({}), spoilt.dk = clean.dk.CopiedTo({});
    spoilt.dv = clean.dv.CopiedTo({}), spoilt.dsinks = clean.dsinks.CopiedTo({});
    for (int64_t h = 0; h < s.Hq; ++h) {
      spoilt.p.q.SetAt({0, h, 7, 5}, bad);
      spoilt.dout.SetAt({0, h, 7, 2}, bad);
      for (int64_t j : {20, 100}) {
        spoilt.p.k.SetAt({0, h / 2, j, 1}, bad);
        spoilt.p.v.SetAt({0, h / 2, j, 8}, bad);
      }
    }
    spoilt.Refresh();
    ForEachTarget([&](Target target) {
      RunGradients(clean, target);
      RunGradients(spoilt, target);
      EXPECT_TRUE(spoilt.Bytes() == clean.Bytes());
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t c = 0; c < s.dk; ++c) EXPECT_EQ(spoilt.dq.At({0, h, 7, c}), 0);
      }
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t c = 0; c < s.dv; ++c) EXPECT_EQ(spoilt.dv.At({0, h, 20, c}), 0);
      }
    });
    // A NaN in what is seen shows where it reaches, and nowhere else.
    RandomGradients seen = clean;
    seen.dout = clean.dout.CopiedTo({});
    for (int64_t h = 0; h < s.Hq; ++h) seen.dout.SetAt({0, h, 3, 4}, bad);
    seen.Refresh();
    ForEachTarget([&](Target target) {
      RunGradients(seen, target);
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t j = 0; j < s.Tk; ++j) {
          const bool sees = clean.p.mask.Get(3 * s.Tk + j) != 0;
          EXPECT_EQ(!std::isfinite(seen.dv.At({0, h, j, 4})), sees) << j;
          EXPECT_TRUE(std::isfinite(seen.dv.At({0, h, j, 5}))) << j;
          EXPECT_EQ(!std::isfinite(seen.dk.At({0, h, j, 0})), sees) << j;
        }
      }
      EXPECT_FALSE(std::isfinite(seen.dq.At({0, 0, 3, 0})));
      EXPECT_TRUE(std::isfinite(seen.dq.At({0, 0, 4, 0})));
    });
  }
}

TEST(GradientTest, AnUpdatedPlanIsANewOne) {
  ProblemSpec s = Everything();
  s.kv_lengths = s.q_lengths = DType::kI32;
  RandomGradients first(s, test::BaseSeed());
  ForEachTarget([&](Target target) {
    PlanOptions options;
    options.target = target, options.max_queries = 320, options.max_keys = 600;
    GradientPlan plan;
    ASSERT_TRUE(GradientPlan::Create(first.problem, options, &plan).ok());
    for (int64_t Tq : {1, 320, 17}) {
      s.Tq = Tq, s.Tk = 600 - Tq;
      RandomGradients next(s, test::BaseSeed() + static_cast<uint64_t>(Tq));
      ASSERT_TRUE(plan.Update(next.problem).ok());
      std::vector<char> workspace(plan.WorkspaceBytes(1));
      const Status status = fovea::Run(plan, next.problem, {workspace.data(), workspace.size()});
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<unsigned char> updated = next.Bytes();
      next.ResetGradients();
      RunGradients(next, target);
      EXPECT_TRUE(next.Bytes() == updated) << Tq;
    }
  });
}

TEST(GradientTest, NothingInNothingOut) {
  for (auto [Tq, Tk, B] : {std::tuple{0, 5, 2}, {5, 0, 2}, {5, 5, 0}}) {
    ProblemSpec s = Spec(Tq, Tk, 8, 8);
    s.B = B, s.sinks = true;
    RandomGradients g(s, test::BaseSeed());
    ForEachTarget([&](Target target) {
      g.ResetGradients();
      RunGradients(g, target);
      for (const auto& x : g.gradients()) {
        if (std::string(x.name) == "dsinks") continue;
        for (const double value : x.tensor->Dense()) EXPECT_EQ(value, 0) << x.name;
      }
    });
  }
}

TEST(GradientTest, WhatIsWrongIsSaid) {
  RandomGradients g(Everything(), test::BaseSeed());
  const auto expect = [&](const char* text, StatusCode code, const auto& change) {
    GradientProblem problem = g.problem;
    change(problem);
    const Status status = Gradients(problem);
    EXPECT_EQ(status.code(), code) << text;
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status.message();
    EXPECT_TRUE(g.Untouched()) << text;
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  expect("dout.rank = 0", kInvalid, [](auto& p) { p.dout = {}; });
  expect("lse.rank = 0", kInvalid, [](auto& p) { p.forward.lse = {}; });
  expect("dq.shape[3] = 5", kInvalid, [](auto& p) { p.dq.shape[3] = 5; });
  expect("dk.dtype = i32", kInvalid, [](auto& p) { p.dk.dtype = DType::kI32; });
  expect("dbias is given without bias", kInvalid,
         [](auto& p) { p.forward.score.bias = {}, p.forward.score.bias_scales = {}; });
  expect("dv.data = null", kInvalid, [](auto& p) { p.dv.data = nullptr; });
  expect("dsinks.shape[0] = 3", kInvalid, [](auto& p) { p.dsinks.shape[0] = 3; });
  expect("no gradient is given", kInvalid,
         [](auto& p) { p.dq = p.dk = p.dv = p.dbias = p.dsinks = p.dhead_scales = {}; });
  expect("weights.rank = 4", kInvalid, [&](auto& p) {
    static float weights[2 * 4 * 300 * 520];
    p.forward.weights = View(weights, {int64_t{2}, int64_t{4}, int64_t{300}, int64_t{520}});
  });
  const auto nothing = [](float score, int64_t, int64_t, int64_t, int64_t) { return score; };
  expect("score function", StatusCode::kUnsupported,
         [&](auto& p) { p.forward.score.function = test::EachScore(nothing); });
  PlanOptions options;
  options.engine = Engine::kRow;
  EXPECT_EQ(Gradients(g.problem, options, SerialExecutor()).code(), StatusCode::kUnsupported);
  GradientPlan plan;
  ASSERT_TRUE(GradientPlan::Create(g.problem, {}, &plan).ok());
  std::vector<char> workspace(plan.WorkspaceBytes(1));
  EXPECT_EQ(fovea::Run(plan, g.problem, {workspace.data(), workspace.size() - 1}).code(),
            StatusCode::kOutOfMemory);
  GradientProblem other = g.problem;
  other.accumulate = true;
  EXPECT_FALSE(fovea::Run(plan, other, {workspace.data(), workspace.size()}).ok());
  EXPECT_TRUE(g.Untouched());
}

}  // namespace
}  // namespace fovea
