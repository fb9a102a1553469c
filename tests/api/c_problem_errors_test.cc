// Wrong problems and options given to every entry point of the C interface that takes them.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "api/c_errors.h"
#include "fovea/c.h"
#include "fovea/fovea.h"
#include "support/c_problem.h"

namespace fovea {
namespace {

using test::CErrorsTest;
using test::ToC;

// What is wrong with a problem is said as in C++, code and words alike.
TEST_F(CErrorsTest, InconsistentProblems) {
  const std::vector<std::function<void(Problem&)>> mistakes = {
      [](Problem& p) { p.v.shape[2] = 29; },
      [](Problem& p) { p.k.shape[3] = 7; },
      [](Problem& p) { p.k.shape[1] = 3; },
      [](Problem& p) { p.k.shape[0] = 1; },
      [](Problem& p) { p.q.shape[2] = -1; },
      [](Problem& p) { p.q.rank = 3; },
      [](Problem& p) { p.q.rank = -1; },
      [](Problem& p) { p.k.rank = 5; },
      [](Problem& p) { p.v.rank = std::numeric_limits<int32_t>::max(); },
      [](Problem& p) { p.out = {}; },
      [](Problem& p) { p.q = {}; },
      [](Problem& p) { p.v.dtype = DType::kI32; },
      [](Problem& p) { p.v.dtype = static_cast<DType>(99); },
      [](Problem& p) { p.out.dtype = static_cast<DType>(-1); },
      [](Problem& p) { p.q.stride[0] = std::numeric_limits<int64_t>::max(); },
      [](Problem& p) { p.k.shape[2] = p.v.shape[2] = std::numeric_limits<int64_t>::max(); },
      [](Problem& p) { p.lse.shape[2] = 8; },
      [](Problem& p) { p.weights.dtype = DType::kF16; },
      [](Problem& p) { p.score.scale = std::numeric_limits<float>::quiet_NaN(); },
      [](Problem& p) { p.score.softcap = -1; },
      [](Problem& p) { p.score.causal = static_cast<Causal>(3); },
      [](Problem& p) { p.score.window.left = -2; },
      [](Problem& p) { p.score.query_offset = std::numeric_limits<int64_t>::min(); },
      [](Problem& p) { p.score_stage = static_cast<ScoreStage>(4); },
      [](Problem& p) { p.score.block_map.queries = 4; },
      [](Problem& p) { p.score.bias.shape[3] = 31; },
      [](Problem& p) { p.score.bias.rank = 9; },
      [](Problem& p) { p.score.mask.dtype = DType::kF32; },
      [](Problem& p) { p.score.kv_lengths.shape[0] = 3; },
      [](Problem& p) { p.score.kv_lengths.dtype = DType::kF32; },
      [](Problem& p) { p.score.kv_lengths.data = nullptr; },
      [](Problem& p) { p.cu_seqlens_q = p.score.q_lengths; },
      [](Problem& p) {
        static const int32_t beyond[2] = {31, 0};
        p.score.kv_lengths.data = beyond, p.score.kv_lengths.dtype = DType::kI32,
        p.score.kv_lengths.stride[0] = 4;
      },
      [](Problem& p) {
        static const int64_t negative[2] = {-1, 9};
        p.score.q_lengths.data = negative, p.score.q_lengths.dtype = DType::kI64,
        p.score.q_lengths.stride[0] = 8;
      },
  };
  for (size_t n = 0; n < mistakes.size(); ++n) {
    SCOPED_TRACE(n);
    Problem wrong = random.problem;
    mistakes[n](wrong);
    Plan none;
    const Status expected = Plan::Create(wrong, {}, &none);
    ASSERT_FALSE(expected.ok());
    const fovea_problem p = ToC(wrong);
    ExpectProblemError(&p, expected.message(), static_cast<fovea_status>(expected.code()));
  }
}

TEST_F(CErrorsTest, MissingData) {
  for (fovea_tensor fovea_problem::* tensor :
       {&fovea_problem::q, &fovea_problem::k, &fovea_problem::v, &fovea_problem::out,
        &fovea_problem::lse, &fovea_problem::weights, &fovea_problem::bias, &fovea_problem::mask,
        &fovea_problem::kv_lengths, &fovea_problem::q_lengths}) {
    fovea_problem p = problem;
    (p.*tensor).data = nullptr;
    ExpectError("", [&](fovea_error* e) { return fovea_attention(&p, nullptr, nullptr, e); });
    ExpectError("", [&](fovea_error* e) {
      return fovea_run(plan, &p, workspace.data(), workspace.size(), nullptr, e);
    });
    ExpectError("", [&](fovea_error* e) {
      return fovea_bind(plan, &p, workspace.data(), workspace.size(), 2, &untouched_call, e);
    });
  }
  EXPECT_EQ(untouched_call, nullptr);
}

TEST_F(CErrorsTest, Options) {
  const std::vector<std::function<void(fovea_plan_options&)>> mistakes = {
      [](fovea_plan_options& o) { o.target = 99; },
      [](fovea_plan_options& o) { o.target = -1; },
      [](fovea_plan_options& o) { o.engine = 3; },
      [](fovea_plan_options& o) { o.product = -1; },
      [](fovea_plan_options& o) { o.max_keys = -1; },
      [](fovea_plan_options& o) { o.tile_rows = -1; },
      [](fovea_plan_options& o) { o.block_keys = -8; },
      [](fovea_plan_options& o) { o.product = FOVEA_PRODUCT_BF16; },
  };
  for (const auto& mistake : mistakes) {
    fovea_plan_options o = options;
    mistake(o);
    ExpectError("options.", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
    ExpectError("options.",
                [&](fovea_error* e) { return fovea_attention(&problem, &o, nullptr, e); });
  }
  EXPECT_EQ(untouched_plan, nullptr);
}

TEST_F(CErrorsTest, FlagsAreZeroOrOne) {
  for (int32_t flag : {2, -1}) {
    for (int32_t fovea_problem::* member : {&fovea_problem::has_scale, &fovea_problem::has_window,
                                            &fovea_problem::has_query_offset}) {
      fovea_problem p = problem;
      p.*member = flag;
      ExpectProblemError(&p, "problem.has_");
    }
    fovea_plan_options o = options;
    o.fixed_mask = flag;
    ExpectError("options.fixed_mask", [&](fovea_error* e) {
      return fovea_plan_create(&problem, &o, &untouched_plan, e);
    });
  }
}

TEST_F(CErrorsTest, ShapesThatOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const float x = 0;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}, {2, kMost / 2, 3, 4}}) {
    fovea_problem p = problem;
    p.q = fovea_dense(&x, FOVEA_F32, 4, shape.data());
    p.mask = fovea_dense(&x, FOVEA_BIT, 4, shape.data());
    ExpectProblemError(&p, "q.");
  }
  ExpectError("Hq = -1", [&](fovea_error* e) { return fovea_alibi_slopes(-1, 8, nullptr, e); });
  EXPECT_EQ(fovea_alibi_slopes(0, 8, nullptr, nullptr), FOVEA_OK);
}

}  // namespace
}  // namespace fovea
