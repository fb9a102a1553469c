// A caller's score function: which blocks of scores it is given, and by whom.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "fovea/attention.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/refusal.h"
#include "support/score_function.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::EachScore;
using test::Kernel;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 21, s.Tk = 67, s.dk = 24, s.dv = 17, s.weights = true;
  return s;
}
ProblemSpec Hashed() {
  ProblemSpec s = Spec();
  s.function = true;
  return s;
}

// Notes every pair that comes, and what is wrong with a block.
struct Recorder {
  const RandomProblem& p;
  std::unique_ptr<std::atomic<int>[]> seen;  // of [B, Hq, Tq, Tk]
  std::atomic<int> wrong{0}, calls{0};

  explicit Recorder(const RandomProblem& problem)
      : p(problem), seen(new std::atomic<int>[static_cast<size_t>(Pairs())]) {
    for (int64_t n = 0; n < Pairs(); ++n) seen[static_cast<size_t>(n)] = 0;
  }
  int64_t Pairs() const { return p.spec.B * p.spec.Hq * p.spec.Tq * p.spec.Tk; }
  ScoreFunction function() { return {&Note, this}; }

  static void Note(void* context, const ScoreBlock* block) noexcept {
    Recorder& self = *static_cast<Recorder*>(context);
    ++self.calls;
    if (!self.Look(*block)) ++self.wrong;
  }

  bool Look(const ScoreBlock& block) {
    const ProblemSpec& s = p.spec;
    const int64_t b = block.sequence;
    if (block.size != sizeof(ScoreBlock) || block.rows < 1 || block.keys < 1) return false;
    if (block.row_stride < 1 || block.key_stride < 1) return false;
    if (block.row_stride != 1 && block.key_stride != 1) return false;
    // no score lies on another one
    if (block.row_stride == 1 && block.keys > 1 && block.key_stride < block.rows) return false;
    if (block.row_stride != 1 && block.rows > 1 && block.row_stride < block.keys) return false;
    if (reinterpret_cast<uintptr_t>(block.scores) % alignof(float) != 0) return false;
    if (b < 0 || b >= s.B || block.offset != p.Offset(b)) return false;
    if (block.first_key_position < 0 || block.first_key_position + block.keys > p.KvLength(b))
      return false;
    std::set<std::pair<int64_t, int64_t>> rows;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t h = block.heads[r], i = block.query_positions[r] - block.offset;
      if (h < 0 || h >= s.Hq || i < 0 || i >= p.QueriesOf(b).count) return false;
      if (!rows.emplace(h, i).second) return false;  // a padding lane would repeat a row
      for (int64_t c = 0; c < block.keys; ++c) {
        const int64_t j = block.first_key_position + c;
        ++seen[static_cast<size_t>(((b * s.Hq + h) * s.Tq + i) * s.Tk + j)];
      }
    }
    return true;
  }
};

TEST(ScoreFunctionCallsTest, GetsBlocksOfPairsThatExistAndEveryVisibleOne) {
  uint64_t seed = test::BaseSeed();
  for (int which = 0; which < 7; ++which) {
    ProblemSpec s = Spec();
    s.B = 3, s.weights = false;
    if (which == 1) s.causal = Causal::kBottomRight, s.q_lengths = s.kv_lengths = DType::kI32;
    if (which == 2) s.cu_seqlens_q = s.cu_seqlens_k = DType::kI32, s.query_offset = 9;
    if (which == 3) s.Tq = 1, s.Tk = 1000, s.window = {300, -1}, s.query_offset = 999;
    if (which == 4) s.mask = Axes::kQK, s.mask_allows = 0.05, s.query_offsets = DType::kI32;
    if (which == 5) s.Hq = 14, s.Tq = 5, s.Tk = 131, s.key_ranges = DType::kI32;
    if (which == 6) s.q_type = s.k_type = s.v_type = DType::kBF16, s.Tq = 50, s.weights = true;
    RandomProblem p(s, ++seed);
    for (const Kernel& kernel : test::KernelsFor(p.problem)) {
      SCOPED_TRACE(ToString(kernel) + " " + ToString(s));
      Recorder recorder(p);
      p.problem.score.function = recorder.function();
      p.ResetOutputs();
      ASSERT_TRUE(Attention(p.problem, test::Options(kernel), SerialExecutor()).ok());
      EXPECT_EQ(recorder.wrong, 0);
      EXPECT_GT(recorder.calls, 0);
      for (int64_t n = 0; n < recorder.Pairs(); ++n) {
        const int64_t b = n / (s.Hq * s.Tq * s.Tk), h = n / (s.Tq * s.Tk) % s.Hq,
                      i = n / s.Tk % s.Tq, j = n % s.Tk;
        if (!p.Visible(b, h, i, j)) continue;
        ASSERT_GT(recorder.seen[static_cast<size_t>(n)], 0)
            << b << " " << h << " " << i << " " << j;
      }
    }
  }
}

TEST(ScoreFunctionCallsTest, IsNotCalledWhereThereIsNoScore) {
  for (int what = 0; what < 4; ++what) {
    ProblemSpec s = Spec();
    if (what == 0) s.Tq = 0;
    if (what == 1) s.Tk = 0;
    if (what == 2) s.B = 0;
    if (what == 3) s.kv_lengths = DType::kI32;
    RandomProblem p(s, test::BaseSeed());
    if (what == 3) p.kv_lengths.Fill([] { return 0; });
    Recorder recorder(p);
    p.problem.score.function = recorder.function();
    test::ExpectMatchesReference(p);
    EXPECT_EQ(recorder.calls, 0);
  }
}

TEST(ScoreFunctionCallsTest, AContextWithoutAFunctionMeansNothing) {
  RandomProblem p(Spec(), test::BaseSeed());
  for (const Kernel& kernel : test::Thinned(test::Kernels())) {
    const test::Outcome want = RunSerial(kernel, p);
    p.problem.score.function.context = &p;
    EXPECT_TRUE(Same(RunSerial(kernel, p), want)) << ToString(kernel);
    p.Refresh();
  }
}

TEST(ScoreFunctionCallsTest, GivesTheSameBitsForAnyThreadsAndOrder) {
  ProblemSpec s = Hashed();
  s.B = 4, s.function_removes = 0.2, s.causal = Causal::kBottomRight;
  RandomProblem p(s, test::BaseSeed());
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    const test::Outcome want = RunSerial(kernel, p);
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
    for (int workers : {2, 4}) {
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, workers, test::BaseSeed()).ok());
      EXPECT_TRUE(Same(test::OutcomeOf(p), want)) << ToString(kernel) << " " << workers;
    }
  }
}

TEST(ScoreFunctionCallsTest, MayChangeFromRunToRunOfOnePlanButNotComeOrGo) {
  RandomProblem p(Hashed(), test::BaseSeed());
  const auto half = [](float s, int64_t, int64_t, int64_t, int64_t) { return s / 2; };
  for (const Kernel& kernel : test::Kernels()) {
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
    const test::Memory memory(plan.WorkspaceBytes(1), test::Placement::kAligned, 1);
    for (const ScoreFunction& function : {p.problem.score.function, EachScore(half)}) {
      RandomProblem changed = p;
      changed.problem.score.function = function;
      changed.ResetOutputs();
      ASSERT_TRUE(fovea::Run(plan, changed.problem, {memory.data(), memory.bytes()}).ok());
      EXPECT_TRUE(test::Matches(changed.problem, reference::Forward(changed.problem)))
          << ToString(kernel);
    }
  }
  RandomProblem without = p;
  without.problem.score.function = ScoreFunction();
  EXPECT_TRUE(test::RefusesToRun(p, without, "function"));
  EXPECT_TRUE(test::RefusesToRun(without, p, "function"));
}

}  // namespace
}  // namespace fovea
