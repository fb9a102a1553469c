// The C interface is the C++ interface: equal bits, equal answers, equal messages.
#include "fovea/c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "support/c_problem.h"
#include "support/check.h"
#include "support/outcome.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::HostLoop;
using test::Outcome;
using test::OutcomeOf;
using test::OwnedPlan;
using test::ProblemSpec;
using test::RandomProblem;
using test::Same;
using test::ToC;
using test::VariedSpecs;

PlanOptions OptionsOf(const RandomProblem& p, const test::Kernel& kernel) {
  PlanOptions options = test::Options(kernel);
  options.fixed_mask = p.spec.fixed_mask;
  return options;
}

TEST(CTest, GivesTheSameBitsOnEveryPath) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const test::Kernel& kernel : test::KernelsFor(p.problem)) {
      SCOPED_TRACE(ToString(spec) + " " + ToString(kernel));
      const PlanOptions options = OptionsOf(p, kernel);
      p.ResetOutputs();
      ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
      const Outcome expected = OutcomeOf(p);

      const fovea_problem problem = ToC(p.problem);
      const fovea_plan_options c_options = ToC(options);
      fovea_error error;
      p.ResetOutputs();
      ASSERT_EQ(fovea_attention(&problem, &c_options, nullptr, &error), FOVEA_OK) << error.message;
      EXPECT_STREQ(error.message, "");
      EXPECT_TRUE(Same(OutcomeOf(p), expected)) << "fovea_attention";

      fovea_plan* raw = nullptr;
      ASSERT_EQ(fovea_plan_create(&problem, &c_options, &raw, &error), FOVEA_OK) << error.message;
      const OwnedPlan plan(raw);
      const test::Memory memory(fovea_plan_workspace_bytes(raw, 3), test::Placement::kBeforeGuard,
                                1);
      int calls = 0;
      const fovea_executor executor = HostLoop(&calls);
      p.ResetOutputs();
      ASSERT_EQ(fovea_run(raw, &problem, memory.data(), memory.bytes(), &executor, &error),
                FOVEA_OK)
          << error.message;
      EXPECT_TRUE(Same(OutcomeOf(p), expected)) << "fovea_run";

      p.ResetOutputs();
      fovea_call* call = nullptr;
      ASSERT_EQ(fovea_bind(raw, &problem, memory.data(), memory.bytes(), 3, &call, &error),
                FOVEA_OK)
          << error.message;
      EXPECT_EQ(fovea_call_phases(call), calls);
      for (int32_t phase = 0; phase < fovea_call_phases(call); ++phase) {
        for (int64_t task = fovea_call_tasks(call, phase); task-- > 0;) {
          ASSERT_EQ(fovea_call_run_task(call, phase, task, static_cast<int32_t>(task % 3)),
                    FOVEA_OK);
        }
      }
      EXPECT_TRUE(Same(OutcomeOf(p), expected)) << "fovea_call_run_task";
      EXPECT_TRUE(p.OutputPaddingUntouched());
    }
  }
}

TEST(CTest, PlansTheSame) {
  for (const ProblemSpec& spec : VariedSpecs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const test::Kernel& kernel : test::KernelsFor(p.problem)) {
      SCOPED_TRACE(ToString(spec) + " " + ToString(kernel));
      Plan expected;
      ASSERT_TRUE(Plan::Create(p.problem, OptionsOf(p, kernel), &expected).ok());
      const fovea_problem problem = ToC(p.problem);
      const fovea_plan_options options = ToC(OptionsOf(p, kernel));
      fovea_plan* raw = nullptr;
      ASSERT_EQ(fovea_plan_create(&problem, &options, &raw, nullptr), FOVEA_OK);
      const OwnedPlan plan(raw);
      EXPECT_EQ(fovea_plan_target(raw), static_cast<int>(expected.target()));
      EXPECT_EQ(fovea_plan_engine(raw), static_cast<int>(expected.engine()));
      EXPECT_EQ(fovea_plan_product(raw), static_cast<int>(expected.product()));

      fovea_cost cost;
      fovea_cost_init(&cost);
      ASSERT_EQ(fovea_plan_cost(raw, &cost, nullptr), FOVEA_OK);
      EXPECT_EQ(cost.flops, expected.cost().flops);
      EXPECT_EQ(cost.kv_bytes, expected.cost().kv_bytes);
      EXPECT_EQ(cost.pairs, expected.cost().pairs);
      EXPECT_EQ(cost.tasks, expected.cost().tasks);

      const std::string text = expected.ToString();
      ASSERT_EQ(fovea_plan_to_string(raw, nullptr, 0), text.size() + 1);
      std::vector<char> whole(text.size() + 1, 'x'), cut(11, 'x');
      EXPECT_EQ(fovea_plan_to_string(raw, whole.data(), whole.size()), text.size() + 1);
      EXPECT_EQ(whole.data(), text);
      EXPECT_EQ(fovea_plan_to_string(raw, cut.data(), 10), text.size() + 1);
      EXPECT_EQ(cut.data(), text.substr(0, 9));
      EXPECT_EQ(cut[10], 'x');
    }
  }
}

TEST(CTest, UpdatesInPlace) {
  ProblemSpec spec;
  spec.B = 2, spec.Hq = 4, spec.Hkv = 2, spec.Tq = 1, spec.Tk = 40, spec.dk = 16, spec.dv = 16,
  spec.kv_lengths = DType::kI32;
  RandomProblem first(spec, 1);
  spec.Tk = 700;
  RandomProblem second(spec, 2);
  ASSERT_TRUE(Attention(second.problem).ok());
  const Outcome expected = OutcomeOf(second);
  second.ResetOutputs();

  PlanOptions room;
  room.max_keys = 700;
  const fovea_problem before = ToC(first.problem), after = ToC(second.problem);
  const fovea_plan_options options = ToC(room);
  fovea_plan* raw = nullptr;
  fovea_error error;
  ASSERT_EQ(fovea_plan_create(&before, &options, &raw, &error), FOVEA_OK) << error.message;
  const OwnedPlan plan(raw);
  ASSERT_EQ(fovea_plan_update(raw, &after, &error), FOVEA_OK) << error.message;
  std::vector<char> workspace(fovea_plan_workspace_bytes(raw, 1));
  ASSERT_EQ(fovea_run(raw, &after, workspace.data(), workspace.size(), nullptr, &error), FOVEA_OK)
      << error.message;
  EXPECT_TRUE(Same(OutcomeOf(second), expected));
}

TEST(CTest, MergesTheSame) {
  for (int64_t count : {1, 3, 32, 33, 100}) {
    std::vector<float> outs(static_cast<size_t>(count) * 6), lses(static_cast<size_t>(count) * 2);
    test::Random random(test::BaseSeed());
    for (float& x : outs) x = static_cast<float>(random.Normal());
    for (float& x : lses) x = static_cast<float>(random.Normal());
    const int64_t shape[] = {1, 1, 2, 3};
    std::vector<PartialState> parts;
    std::vector<fovea_partial_state> c_parts;
    for (int64_t n = 0; n < count; ++n) {
      parts.push_back({View(&outs[static_cast<size_t>(n) * 6], {1, 1, 2, 3}),
                       View(&lses[static_cast<size_t>(n) * 2], {1, 1, 2})});
      c_parts.push_back({ToC(parts.back().out), ToC(parts.back().lse)});
    }
    float out[6], lse[2], c_out[6], c_lse[2];
    ASSERT_TRUE(Merge(parts.data(), count, View(out, {1, 1, 2, 3}), View(lse, {1, 1, 2})).ok());
    const fovea_tensor out_tensor = fovea_dense(c_out, FOVEA_F32, 4, shape),
                       lse_tensor = fovea_dense(c_lse, FOVEA_F32, 3, shape);
    fovea_error error;
    ASSERT_EQ(fovea_merge(c_parts.data(), count, &out_tensor, &lse_tensor, &error), FOVEA_OK)
        << error.message;
    EXPECT_EQ(std::memcmp(out, c_out, sizeof(out)), 0) << count;
    EXPECT_EQ(std::memcmp(lse, c_lse, sizeof(lse)), 0) << count;
    ASSERT_EQ(fovea_merge(c_parts.data(), count, &out_tensor, nullptr, &error), FOVEA_OK)
        << error.message;
  }
}

TEST(CTest, MakesTheSameDenseViews) {
  const int64_t shape[] = {2, 3, 5, 11};
  const float data = 0;
  const fovea_tensor dense = fovea_dense(&data, FOVEA_F32, 4, shape),
                     expected = ToC(View(&data, {2, 3, 5, 11}));
  EXPECT_EQ(std::memcmp(&dense, &expected, sizeof(dense)), 0);
  const fovea_tensor bits = fovea_dense(&data, FOVEA_BIT, 4, shape),
                     expected_bits = ToC(BitView(&data, {2, 3, 5, 11}));
  EXPECT_EQ(std::memcmp(&bits, &expected_bits, sizeof(bits)), 0);
  const int64_t of_blocks[] = {2, 3, 5, 96};
  const fovea_tensor blocks = fovea_dense(&data, FOVEA_Q4_0, 4, of_blocks),
                     expected_blocks = ToC(View(&data, DType::kQ4_0, {2, 3, 5, 96}));
  EXPECT_EQ(std::memcmp(&blocks, &expected_blocks, sizeof(blocks)), 0);
  for (int32_t rank : {-1, 0, 5}) EXPECT_EQ(fovea_dense(&data, FOVEA_F32, rank, shape).rank, 0);
  EXPECT_EQ(fovea_dense(&data, FOVEA_F32, 4, nullptr).rank, 0);
}

TEST(CTest, NamesAndTargetsAreTheSame) {
  for (int32_t n = -1; n < 25; ++n) {
    EXPECT_STREQ(fovea_dtype_name(n), Name(static_cast<DType>(n)));
    EXPECT_STREQ(fovea_target_name(n), Name(static_cast<Target>(n)));
    EXPECT_STREQ(fovea_engine_name(n), Name(static_cast<Engine>(n)));
    EXPECT_STREQ(fovea_product_name(n), Name(static_cast<Product>(n)));
    EXPECT_EQ(fovea_dtype_bytes(n), SizeOf(static_cast<DType>(n)));
    EXPECT_EQ(fovea_row_bytes(n, 96), BytesOf(static_cast<DType>(n), 96));
  }
  const auto check = [](size_t (*list)(fovea_target*, size_t), TargetList expected) {
    ASSERT_EQ(list(nullptr, 0), expected.count);
    std::vector<fovea_target> targets(expected.count + 1, -1);
    EXPECT_EQ(list(targets.data(), targets.size()), expected.count);
    for (size_t n = 0; n < expected.count; ++n)
      EXPECT_EQ(targets[n], static_cast<fovea_target>(expected.data[n]));
    EXPECT_EQ(targets.back(), -1);
    targets.assign(targets.size(), -1);
    EXPECT_EQ(list(targets.data(), 1), expected.count);
    EXPECT_EQ(targets[1], -1);
  };
  check(fovea_compiled_targets, CompiledTargets());
  check(fovea_usable_targets, UsableTargets());
  for (Target target : UsableTargets()) {
    fovea_target parsed = -1;
    EXPECT_EQ(fovea_parse_target(Name(target), &parsed, nullptr), FOVEA_OK);
    EXPECT_EQ(parsed, static_cast<fovea_target>(target));
  }
  fovea_target active = -1;
  Target expected = Target::kAuto;
  ASSERT_EQ(fovea_active_target(&active, nullptr), FOVEA_OK);
  ASSERT_TRUE(ActiveTarget(&expected).ok());
  EXPECT_EQ(active, static_cast<fovea_target>(expected));

  float slopes[12], expected_slopes[12];
  ASSERT_EQ(fovea_alibi_slopes(12, 5.0f, slopes, nullptr), FOVEA_OK);
  AlibiSlopes(12, expected_slopes, 5.0f);
  EXPECT_EQ(std::memcmp(slopes, expected_slopes, sizeof(slopes)), 0);
}

TEST(CTest, VersionIsTheProjects) {
  const uint32_t v = fovea_version();
  EXPECT_EQ(std::to_string(v >> 16) + "." + std::to_string(v >> 8 & 0xFF) + "." +
                std::to_string(v & 0xFF),
            FOVEA_TEST_VERSION);
}

}  // namespace
}  // namespace fovea
