// Plans given what they were not made for: invalid ones, another problem, other lengths, and what
// an update refuses.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "api/broken_problem.h"
#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::FullLengths;
using test::kMost;
using test::Packed;
using test::Plain;
using test::Planned;
using test::ProblemSpec;
using test::RandomProblem;
using test::Says;

TEST(ValidateTest, InvalidPlans) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  Plan moved_to = std::move(planned.plan);
  Plan fresh;
  for (Plan* plan : {&fresh, &planned.plan}) {
    EXPECT_FALSE(plan->valid());
    EXPECT_EQ(plan->WorkspaceBytes(1), 0u);
    BoundCall call;
    for (const Status& status :
         {fovea::Run(*plan, p.problem, planned.workspace),
          Bind(*plan, p.problem, planned.workspace, 1, &call), plan->Update(p.problem)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, {"plan"}));
    }
    EXPECT_EQ(call.Phases(), 0);
    // Nothing else crashes either.
    plan->ToString();
    plan->cost();
    plan->target();
    plan->engine();
  }
  EXPECT_TRUE(p.OutputsUntouched());
  EXPECT_TRUE(moved_to.valid());
  EXPECT_TRUE(fovea::Run(moved_to, p.problem, planned.workspace).ok());
}

// Legal problems that are not the planned one.
struct Other {
  const char* name;
  void (*change)(RandomProblem&);
  const char* field;
};

std::vector<Other> OtherProblems() {
  return {
      {"batch",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.k.shape, p.problem.v.shape, p.problem.out.shape,
               p.problem.lse.shape, p.problem.weights.shape, p.problem.scores.shape})
           shape[0] = 1;
         for (TensorView* view :
              {&p.problem.score.query_offsets, &p.problem.score.q_lengths,
               &p.problem.score.kv_lengths, &p.problem.score.bias, &p.problem.score.mask,
               &p.problem.score.block_map.visible, &p.problem.score.parents})
           view->shape[0] = 1;
       },
       "shape[0]"},
      {"query heads",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape, p.problem.weights.shape,
               p.problem.scores.shape, p.problem.score.bias.shape, p.problem.score.mask.shape,
               p.problem.score.block_map.visible.shape})
           shape[1] = 2;
         p.problem.score.alibi_slopes.shape[0] = p.problem.score.sinks.shape[0] = 2;
       },
       "q.shape[1]"},
      {"KV heads", [](RandomProblem& p) { p.problem.k.shape[1] = p.problem.v.shape[1] = 1; },
       "k.shape[1]"},
      {"dk", [](RandomProblem& p) { p.problem.q.shape[3] = p.problem.k.shape[3] = 5; }, "shape[3]"},
      {"dv", [](RandomProblem& p) { p.problem.v.shape[3] = p.problem.out.shape[3] = 6; },
       "shape[3]"},
      {"no lse", [](RandomProblem& p) { p.problem.lse = MutableTensorView(); }, "lse"},
      {"no weights", [](RandomProblem& p) { p.problem.weights = MutableTensorView(); }, "weights"},
      {"no bias", [](RandomProblem& p) { p.problem.score.bias = TensorView(); }, "bias"},
      {"no mask", [](RandomProblem& p) { p.problem.score.mask = TensorView(); }, "mask"},
      {"no slopes", [](RandomProblem& p) { p.problem.score.alibi_slopes = TensorView(); },
       "alibi_slopes"},
      {"no sinks", [](RandomProblem& p) { p.problem.score.sinks = TensorView(); }, "sinks"},
      {"no block map", [](RandomProblem& p) { p.problem.score.block_map = BlockMap(); },
       "block_map"},
      {"no parents", [](RandomProblem& p) { p.problem.score.parents = TensorView(); }, "parents"},
      {"no scores", [](RandomProblem& p) { p.problem.scores = MutableTensorView(); }, "scores"},
      {"q type", [](RandomProblem& p) { p.problem.q.dtype = DType::kBF16; }, "q.dtype"},
      {"k type", [](RandomProblem& p) { p.problem.k.dtype = DType::kF16; }, "k.dtype"},
      {"v type", [](RandomProblem& p) { p.problem.v.dtype = DType::kF16; }, "v.dtype"},
      {"out type", [](RandomProblem& p) { p.problem.out.dtype = DType::kBF16; }, "out.dtype"},
      {"bias type", [](RandomProblem& p) { p.problem.score.bias.dtype = DType::kF16; }, "bias"},
  };
}

// What Update may change, and Run may not.
std::vector<Other> OtherLengths() {
  static const int32_t other_q_lengths[] = {2, 3}, other_offsets[] = {1, -1};
  static const int64_t other_kv_lengths[] = {0, 0};
  return {
      {"fewer queries",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape, p.problem.weights.shape,
               p.problem.scores.shape, p.problem.score.bias.shape, p.problem.score.mask.shape})
           shape[2] = 4;
         p.problem.score.parents.shape[1] = 4;
         p.problem.score.block_map.visible.shape[2] = 2;
         p.q_lengths.Fill([] { return 4; });
       },
       "q.shape[2]"},
      {"fewer keys",
       [](RandomProblem& p) {
         p.problem.k.shape[2] = p.problem.v.shape[2] = 8;
         for (int64_t* shape : {p.problem.weights.shape, p.problem.scores.shape,
                                p.problem.score.bias.shape, p.problem.score.mask.shape})
           shape[3] = 8;
         p.problem.score.block_map.visible.shape[3] = 2;
         p.kv_lengths.Fill([] { return 8; });
       },
       "k.shape[2]"},
      {"q_lengths", [](RandomProblem& p) { p.problem.score.q_lengths.data = other_q_lengths; },
       "q_lengths"},
      {"kv_lengths", [](RandomProblem& p) { p.problem.score.kv_lengths.data = other_kv_lengths; },
       "kv_lengths"},
      {"query_offsets",
       [](RandomProblem& p) { p.problem.score.query_offsets.data = other_offsets; },
       "query_offsets"},
      {"causal", [](RandomProblem& p) { p.problem.score.causal = Causal::kNone; }, "causal"},
      {"causal the other way",
       [](RandomProblem& p) { p.problem.score.causal = Causal::kBottomRight; }, "causal"},
      {"window.left", [](RandomProblem& p) { p.problem.score.window.left = -1; }, "window.left"},
      {"window.right", [](RandomProblem& p) { p.problem.score.window.right = 3; }, "window.right"},
  };
}

TEST(ValidateTest, RunAndBindRefuseAProblemThatIsNotThePlannedOne) {
  std::vector<Other> all = OtherProblems();
  for (const Other& other : OtherLengths()) all.push_back(other);
  for (const Other& other : all) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths();
    Planned planned(p);
    other.change(p);
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(run.code(), StatusCode::kInvalidArgument) << run.message();
    EXPECT_TRUE(Says(run, {other.field}));
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_STREQ(bind.message(), run.message());
    EXPECT_EQ(call.Phases(), 0);
    EXPECT_TRUE(p.OutputsUntouched());
    // By itself it is a legal problem.
    EXPECT_TRUE(Attention(p.problem).ok());
  }
}

// What has as many sequences, queries or keys as the batch.
void DropWhatHasTheShapeOfTheBatch(Problem& problem) {
  Score& score = problem.score;
  for (TensorView* view : {&score.query_offsets, &score.q_lengths, &score.kv_lengths,
                           &score.parents, &score.bias, &score.mask}) {
    *view = TensorView();
  }
  score.block_map = BlockMap();
  problem.weights = problem.scores = MutableTensorView();
}

TEST(ValidateTest, RunAndBindRefuseOtherSequences) {
  struct OtherSequences {
    int32_t q[3];
    int64_t k[3];
    const char* field;
  };
  for (const OtherSequences& other : {OtherSequences{{1, 6, 8}, {0, 3, 12}, nullptr},
                                      {{1, 6, 9}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{0, 5, 7}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{2, 7, 9}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 6, 7}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 3, 8}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 4, 8}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 2, 4}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 6, 8}, {1, 4, 13}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {1, 3, 12}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 9, 12}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 2, 11}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 3, 9}, "cu_seqlens_k"}}) {
    RandomProblem p = Packed(true, true);
    DropWhatHasTheShapeOfTheBatch(p.problem);
    Planned planned(p);
    p.problem.cu_seqlens_q = View(other.q, {3});
    p.problem.cu_seqlens_k = View(other.k, {3});
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(run.ok(), other.field == nullptr) << run.message();
    if (other.field == nullptr) continue;
    EXPECT_EQ(run.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(run, {other.field}));
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_STREQ(bind.message(), run.message());
    EXPECT_EQ(call.Phases(), 0);
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, ABatchThatIsNoLongerPackedIsAnotherProblem) {
  for (bool update : {false, true}) {
    for (int which = 0; which < 3; ++which) {
      RandomProblem packed = Packed(which != 1, which != 0), dense = FullLengths();
      Planned planned(packed), planned_dense(dense);
      const Status there = update ? planned.plan.Update(dense.problem)
                                  : fovea::Run(planned.plan, dense.problem, planned.workspace);
      const Status back =
          update ? planned_dense.plan.Update(packed.problem)
                 : fovea::Run(planned_dense.plan, packed.problem, planned_dense.workspace);
      for (const Status& status : {there, back}) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
        EXPECT_TRUE(Says(status, {which == 1 ? "cu_seqlens_k" : "cu_seqlens_q"}));
      }
      EXPECT_TRUE(packed.OutputsUntouched());
      EXPECT_TRUE(dense.OutputsUntouched());
    }
  }
}

TEST(ValidateTest, UpdateRefusesAnotherNumberOfSequences) {
  RandomProblem p = Packed(true, true);
  DropWhatHasTheShapeOfTheBatch(p.problem);
  Planned planned(p);
  Problem fewer = p.problem;
  fewer.cu_seqlens_q.shape[0] = fewer.cu_seqlens_k.shape[0] = 2;
  EXPECT_TRUE(Attention(fewer).ok());
  p.ResetOutputs();
  for (const Status& status :
       {planned.plan.Update(fewer), fovea::Run(planned.plan, fewer, planned.workspace)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {"cu_seqlens"}));
  }
  EXPECT_TRUE(p.OutputsUntouched());
  EXPECT_TRUE(fovea::Run(planned.plan, p.problem, planned.workspace).ok()) << "the plan changed";
}

TEST(ValidateTest, RoomForAFixedMaskBeyondMemoryIsAnError) {
  PlanOptions options;
  options.fixed_mask = true;
  for (auto [queries, keys] : {std::pair<int64_t, int64_t>{kMost, kMost},
                               {kMost, 0},
                               {0, kMost},
                               {kMost / 2, kMost / 2}}) {
    options.max_queries = queries, options.max_keys = keys;
    ProblemSpec s = Plain();
    s.Tk = 200, s.mask = Axes::kQK;
    RandomProblem large(s, 1);
    Plan plan;
    EXPECT_FALSE(Plan::Create(large.problem, options, &plan).ok());
    EXPECT_FALSE(plan.valid());
  }
}

TEST(ValidateTest, RunRefusesAnotherExplicitOffset) {
  ProblemSpec s = Plain();
  s.causal = Causal::kTopLeft, s.query_offset = 3;
  RandomProblem p(s, 1);
  Planned planned(p);
  for (int how = 0; how < 2; ++how) {
    p.problem.score.query_offset.reset();
    if (how == 0) p.problem.score.query_offset = 2;
    const Status status = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {"query_offset"}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, ScaleAndSoftcapMayChangeFromRunToRun) {
  for (const test::Kernel& kernel : test::Kernels()) {
    ProblemSpec s = Plain();
    s.Tq = 40, s.Tk = 150, s.causal = Causal::kTopLeft;
    RandomProblem p(s, test::BaseSeed());
    Planned planned(p, test::Options(kernel));
    for (float scale : {2.0f, -1.0f}) {
      for (float softcap : {0.0f, 1.0f}) {
        p.problem.score.scale = scale;
        p.problem.score.softcap = softcap;
        const Status status = fovea::Run(planned.plan, p.problem, planned.workspace);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem)))
            << ToString(kernel) << " scale " << scale << " softcap " << softcap;
      }
    }
  }
}

TEST(ValidateTest, UpdateRefusesAnotherProblem) {
  for (const Other& other : OtherProblems()) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths(), changed = FullLengths();
    Planned planned(p);
    other.change(changed);
    const Status status = planned.plan.Update(changed.problem);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {other.field}));
    EXPECT_TRUE(fovea::Run(planned.plan, p.problem, planned.workspace).ok()) << "the plan changed";
  }
  for (const Other& other : OtherLengths()) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths();
    Planned planned(p);
    other.change(p);
    const Status status = planned.plan.Update(p.problem);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ValidateTest, UpdateRefusesSizesBeyondItsRoom) {
  PlanOptions options;
  options.max_queries = 8, options.max_keys = 20;
  const auto sized = [](int64_t Tq, int64_t Tk) {
    ProblemSpec s = Plain();
    s.Tq = Tq, s.Tk = Tk;
    return RandomProblem(s, 1);
  };
  RandomProblem p = sized(5, 9);
  Planned planned(p, options);
  struct Sizes {
    int64_t Tq, Tk;
    const char* field;  // null: fits
    const char* values[2];
  };
  for (const Sizes& size : {Sizes{8, 20, nullptr, {}}, Sizes{9, 20, "q.shape[2]", {"9", "8"}},
                            Sizes{8, 21, "k.shape[2]", {"21", "20"}}, Sizes{1, 1, nullptr, {}},
                            Sizes{8, 20, nullptr, {}}, Sizes{0, 20, nullptr, {}},
                            Sizes{8, 0, nullptr, {}}, Sizes{5, 9, nullptr, {}}}) {
    RandomProblem other = sized(size.Tq, size.Tk);
    const Status status = planned.plan.Update(other.problem);
    if (size.field == nullptr) {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, {size.field, size.values[0], size.values[1]}));
    }
  }
  // Without options the room is the problem's own.
  Planned tight(p);
  EXPECT_FALSE(tight.plan.Update(sized(6, 9).problem).ok());
  EXPECT_FALSE(tight.plan.Update(sized(5, 10).problem).ok());
  EXPECT_TRUE(tight.plan.Update(sized(4, 8).problem).ok());
}

}  // namespace
}  // namespace fovea
