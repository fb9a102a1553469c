// The caller's floating-point state: no bit of a result depends on it, and no call changes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"
#include "laws/merge_state.h"
#include "support/executors.h"
#include "support/float_states.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"
#ifdef FOVEA_TEST_TBB
#include "fovea/tbb.h"
#endif

namespace fovea {
namespace {

using test::FloatState;
using test::FloatStates;
using test::InState;
using test::Kernel;
using test::Outcome;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

// f() in the state. It must not change it.
template <class F>
auto In(const FloatState& state, const F& f, bool* entered) {
  bool unchanged = true;
  auto result = [&] {
    const InState in(state);
    *entered = in.entered;
    if (!in.entered) return decltype(f())();
    auto value = f();
    unchanged = in.Unchanged();
    return value;
  }();
  EXPECT_TRUE(unchanged) << state.name;
  return result;
}

// f() gives bytes, the same in every state.
void ExpectSameBytes(const std::function<std::vector<unsigned char>()>& f) {
  const std::vector<unsigned char> want = f();
  for (const FloatState& state : FloatStates()) {
    bool entered;
    const std::vector<unsigned char> got = In(state, f, &entered);
    if (entered) {
      EXPECT_EQ(got, want) << state.name;
    }
  }
}

void ExpectSameOutcome(RandomProblem& p, const std::vector<Kernel>& kernels) {
  for (const Kernel& kernel : kernels) {
    const Outcome want = RunSerial(kernel, p);
    for (const FloatState& state : FloatStates()) {
      bool entered;
      const Outcome got = In(state, [&] { return RunSerial(kernel, p); }, &entered);
      if (entered) {
        EXPECT_TRUE(Same(got, want)) << ToString(kernel) << ", " << state.name;
      }
    }
  }
}

TEST(FloatStateTest, ChangesNoBitAndIsNotChanged) {
  uint64_t seed = test::BaseSeed();
  for (const ProblemSpec& spec : test::VariedSpecs()) {
    RandomProblem p(spec, seed++);
    ExpectSameOutcome(p, test::Thinned(test::KernelsAndAuto(), 3));
  }
}

// Splits, whose partial states a task merges.
TEST(FloatStateTest, ChangesNoBitOfDecode) {
  ProblemSpec spec;
  spec.Hq = 4, spec.Hkv = 2, spec.Tk = 3001, spec.dk = 32, spec.dv = 24;
  RandomProblem p(spec, test::BaseSeed());
  ExpectSameOutcome(p, test::KernelsAndAuto());
}

// Products and rounding of 16-bit types.
TEST(FloatStateTest, ChangesNoBitOfNarrowTypes) {
  for (DType type : test::kNarrowTypes) {
    ProblemSpec spec = test::WithTypes(test::SmallSpec(), type);
    RandomProblem p(spec, test::BaseSeed());
    p.v.Fill([n = 0]() mutable { return ++n, std::ldexp(1 + n % 7 / 8.0, n % 40 - 24); });
    ExpectSameOutcome(p, test::KernelsFor(p.problem));
  }
}

// What is flushed where flushing is on, in V, in scores and in the softcap.
TEST(FloatStateTest, ChangesNoBitOfSubnormalNumbers) {
  ProblemSpec spec;
  spec.Hq = 2, spec.Hkv = 1, spec.Tq = 19, spec.Tk = 70, spec.dk = 9, spec.dv = 17;
  RandomProblem p(spec, test::BaseSeed());
  p.v.Fill([n = 0]() mutable { return ++n, std::ldexp(n % 5 - 2.0, -127 - n % 20); });
  ExpectSameOutcome(p, test::Kernels());
}

// Rows without keys, a bias of −inf and NaN in masked places: the rules that −inf rests on.
TEST(FloatStateTest, EmptyRowsAndInfiniteBiasesNeitherTrapNorLeak) {
  ProblemSpec spec;
  spec.Tq = 40, spec.Tk = 50, spec.dk = 8, spec.dv = 8;
  spec.bias = test::Axes::kBHQK, spec.bias_removes = 0.4, spec.sinks = true;
  spec.causal = Causal::kBottomRight;
  RandomProblem p(spec, test::BaseSeed());
  for (int64_t n = 0; n < 50; ++n) p.bias.Set(n, -std::numeric_limits<double>::infinity());
  ExpectSameOutcome(p, test::Kernels());
  spec.sinks = false;
  RandomProblem q(spec, test::BaseSeed());
  for (int64_t n = 0; n < 50; ++n) q.bias.Set(n, -std::numeric_limits<double>::infinity());
  for (const Kernel& kernel : test::Kernels()) {
    for (const FloatState& state : FloatStates()) {
      bool entered;
      In(state, [&] { return RunSerial(kernel, q); }, &entered);
      if (!entered) continue;
      for (int64_t c = 0; c < spec.dv; ++c) EXPECT_EQ(q.out.Get(c), 0) << state.name;
      EXPECT_EQ(q.lse.Get(0), -std::numeric_limits<double>::infinity()) << state.name;
    }
  }
}

// Threads of an executor have a state of their own, which is that of whoever made them.
TEST(FloatStateTest, OfOneThreadDoesNotMixWithThatOfOthers) {
  ProblemSpec spec;
  spec.B = 4, spec.Hq = 4, spec.Hkv = 4, spec.Tq = 33, spec.Tk = 65, spec.dk = 16, spec.dv = 16;
  RandomProblem p(spec, test::BaseSeed());
  p.v.Fill([n = 0]() mutable { return std::ldexp(n++ % 9 - 4.0, -124); });
  for (const Kernel& kernel : test::Kernels()) {
    const PlanOptions options = test::Options(kernel);
    const Outcome want = RunSerial(kernel, p);
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
    for (const FloatState& state : FloatStates()) {
      bool entered;
      const auto run = [&] {
        p.ResetOutputs();
        EXPECT_TRUE(test::RunHostDriven(plan, p.problem, 2, 1).ok());
        return OutcomeOf(p);
      };
      const Outcome got = In(state, run, &entered);
      if (entered) {
        EXPECT_TRUE(Same(got, want)) << ToString(kernel) << ", " << state.name;
      }
    }
#ifdef FOVEA_TEST_TBB
    const std::unique_ptr<Executor> executor = MakeTbbExecutor(2);  // by a thread in another state
    for (const FloatState& state : FloatStates()) {
      bool entered;
      const auto run = [&] {
        p.ResetOutputs();
        EXPECT_TRUE(Attention(p.problem, options, *executor).ok());
        return OutcomeOf(p);
      };
      const Outcome got = In(state, run, &entered);
      if (entered) {
        EXPECT_TRUE(Same(got, want)) << ToString(kernel) << ", " << state.name;
      }
    }
#endif
  }
}

TEST(FloatStateTest, OfPlansAndTheirCosts) {
  ProblemSpec spec = test::SmallSpec();
  spec.causal = Causal::kTopLeft;
  RandomProblem p(spec, test::BaseSeed());
  ExpectSameBytes([&] {
    Plan plan;
    EXPECT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
    EXPECT_TRUE(plan.Update(p.problem).ok());
    const Cost cost = plan.cost();
    const std::string text = plan.ToString();
    std::vector<unsigned char> bytes(text.begin(), text.end());
    for (double x : {cost.flops, cost.kv_bytes, cost.pairs}) {
      unsigned char raw[sizeof(x)];
      std::memcpy(raw, &x, sizeof(x));
      bytes.insert(bytes.end(), raw, raw + sizeof(x));
    }
    return bytes;
  });
}

// What is refused is refused: comparing with NaN may trap.
TEST(FloatStateTest, OfErrors) {
  RandomProblem p(test::SmallSpec(), test::BaseSeed());
  for (float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::denorm_min()}) {
    p.problem.score.softcap = wrong;
    ExpectSameBytes([&] {
      const Status status = Attention(p.problem);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      const size_t length = std::strlen(status.message());
      return std::vector<unsigned char>(status.message(), status.message() + length);
    });
  }
}

TEST(FloatStateTest, OfMerging) {
  test::Random random(test::BaseSeed());
  std::vector<test::State> states;
  for (int n = 0; n < 4; ++n) states.push_back(test::RandomState(random, 20));
  states[1].lse.Set(3, -std::numeric_limits<double>::infinity());
  states[2].lse.Set(4, std::numeric_limits<double>::quiet_NaN());
  for (int64_t c = 0; c < test::kD; ++c) states[0].out.Set(c, 0x1p-130);
  ExpectSameBytes([&] {
    std::vector<PartialState> parts;
    for (const test::State& state : states) parts.push_back(state.view());
    test::State merged = test::MakeState();
    EXPECT_TRUE(Merge(parts.data(), 4, merged.out.mutable_view(), merged.lse.mutable_view()).ok());
    std::vector<unsigned char> bytes = merged.out.Bytes();
    const std::vector<unsigned char> lse = merged.lse.Bytes();
    bytes.insert(bytes.end(), lse.begin(), lse.end());
    return bytes;
  });
}

TEST(FloatStateTest, OfSlopes) {
  ExpectSameBytes([] {
    float slopes[23];
    AlibiSlopes(23, slopes, 300.0f);  // some are subnormal
    std::vector<unsigned char> bytes(sizeof(slopes));
    std::memcpy(bytes.data(), slopes, sizeof(slopes));
    return bytes;
  });
}

// A score function is part of a task, and runs in the same state wherever it is called.
TEST(FloatStateTest, ScoreFunctionsRunInTheDefaultOne) {
  static bool right;
  RandomProblem p(test::SmallSpec(), test::BaseSeed());
  p.problem.score.function.apply = [](void*, const ScoreBlock*) noexcept {
    right = right && std::fegetround() == FE_TONEAREST;
  };
  for (const FloatState& state : FloatStates()) {
    right = true;
    bool entered;
    In(state, [&] { return Attention(p.problem).ok(); }, &entered);
    EXPECT_TRUE(right) << state.name;
  }
}

}  // namespace
}  // namespace fovea
