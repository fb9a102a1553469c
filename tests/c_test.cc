// The C interface is the C++ interface: equal bits, equal answers, equal messages.
#include "fovea/c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "c_problem.h"
#include "fovea/fovea.h"
#include "support/check.h"
#include "support/random_problem.h"
#ifdef FOVEA_TEST_TBB
#include "fovea/c_tbb.h"
#endif

namespace fovea {
namespace {

using test::Axes;
using test::ProblemSpec;
using test::RandomProblem;
using test::ToC;

struct DestroyPlan {
  void operator()(fovea_plan* plan) const { fovea_plan_destroy(plan); }
};
using OwnedPlan = std::unique_ptr<fovea_plan, DestroyPlan>;

// Every field of the problem is used by some of them.
std::vector<ProblemSpec> Specs() {
  std::vector<ProblemSpec> specs(7);
  ProblemSpec& scores = specs[0];
  scores.B = 2, scores.Hq = 4, scores.Hkv = 2, scores.Tq = 40, scores.Tk = 90, scores.dk = 20,
  scores.dv = 24, scores.scale = -0.3f;
  scores.causal = Causal::kTopLeft, scores.window = {50, 3}, scores.softcap = 3,
  scores.alibi = true, scores.sinks = true;
  scores.bias = Axes::kBHQK, scores.bias_type = DType::kF16, scores.mask = Axes::kHQK,
  scores.weights = true;
  scores.q_lengths = DType::kI32, scores.kv_lengths = DType::kI64,
  scores.query_offsets = DType::kI32;
  scores.k.layout = test::Layout::kTransposed, scores.q.layout = test::Layout::kSwapped,
  scores.v.layout = test::Layout::kReversed;
  ProblemSpec& decode = specs[1];
  decode.B = 2, decode.Hq = 8, decode.Hkv = 2, decode.Tk = 3000, decode.dk = 64, decode.dv = 64,
  decode.kv_lengths = DType::kI32;
  ProblemSpec& empty = specs[2];
  empty.Tq = 3, empty.Tk = 0;
  ProblemSpec& removes = specs[3];
  removes.B = 2, removes.Hq = 4, removes.Hkv = 2, removes.Tq = 40, removes.Tk = 290,
  removes.dk = 20, removes.dv = 24, removes.causal = Causal::kBottomRight,
  removes.mask = Axes::kBHQK, removes.mask_type = DType::kBit, removes.block_map = Axes::kHQK,
  removes.block_queries = 6, removes.block_keys = 50, removes.parents = DType::kI64,
  removes.scores = ScoreStage::kSoftcapped;
  ProblemSpec& packed = specs[4];
  packed.B = 5, packed.Hq = 4, packed.Hkv = 2, packed.Tq = 40, packed.Tk = 290, packed.dk = 20,
  packed.dv = 24, packed.cu_seqlens_q = DType::kI32, packed.cu_seqlens_k = DType::kI64,
  packed.mask = Axes::kQK, packed.fixed_mask = true, packed.weights = true,
  packed.scores = ScoreStage::kWeights;
  ProblemSpec& halves = specs[5];
  halves.B = 1, halves.Hq = 3, halves.Hkv = 3, halves.Tq = 50, halves.Tk = 70, halves.dk = 64,
  halves.dv = 32, halves.query_offset = 15;
  halves.q_type = halves.k_type = halves.v_type = halves.out_type = DType::kBF16,
  halves.causal = Causal::kTopLeft;
  ProblemSpec& stages = specs[6];
  stages.Hq = 2, stages.Hkv = 1, stages.Tq = 20, stages.Tk = 33, stages.dk = 5, stages.dv = 6,
  stages.scores = ScoreStage::kScaled;
  stages.q_type = DType::kF16, stages.v_type = DType::kBF16, stages.lse = false;
  return specs;
}

std::vector<std::vector<unsigned char>> Outputs(const RandomProblem& p) {
  std::vector<std::vector<unsigned char>> bytes;
  for (const test::OwnedTensor* t : {&p.out, &p.lse, &p.weights, &p.scores}) {
    bytes.push_back(t->present() ? t->Bytes() : std::vector<unsigned char>());
  }
  return bytes;
}

PlanOptions OptionsOf(const RandomProblem& p, const test::Kernel& kernel) {
  PlanOptions options = test::Options(kernel);
  options.fixed_mask = p.spec.fixed_mask;
  return options;
}

// A host that runs tasks from the last to the first as three workers.
void Backwards(void* calls, int64_t tasks, fovea_task run, void* task_context) {
  ++*static_cast<int*>(calls);
  for (int64_t n = tasks; n-- > 0;) run(task_context, n, static_cast<int32_t>(n % 3));
}

fovea_executor HostLoop(int* calls) {
  fovea_executor executor;
  fovea_executor_init(&executor);
  executor.context = calls;
  executor.for_each = Backwards;
  executor.workers = 3;
  return executor;
}

TEST(CTest, GivesTheSameBitsOnEveryPath) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const test::Kernel& kernel : test::KernelsFor(p.problem)) {
      SCOPED_TRACE(ToString(spec) + " " + ToString(kernel));
      const PlanOptions options = OptionsOf(p, kernel);
      p.ResetOutputs();
      ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
      const auto expected = Outputs(p);

      const fovea_problem problem = ToC(p.problem);
      const fovea_plan_options c_options = ToC(options);
      fovea_error error;
      p.ResetOutputs();
      ASSERT_EQ(fovea_attention(&problem, &c_options, nullptr, &error), FOVEA_OK) << error.message;
      EXPECT_STREQ(error.message, "");
      EXPECT_EQ(Outputs(p), expected) << "fovea_attention";

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
      EXPECT_EQ(Outputs(p), expected) << "fovea_run";

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
      EXPECT_EQ(Outputs(p), expected) << "fovea_call_run_task";
      EXPECT_TRUE(p.OutputPaddingUntouched());
    }
  }
}

TEST(CTest, PlansTheSame) {
  for (const ProblemSpec& spec : Specs()) {
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
  const auto expected = Outputs(second);
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
  EXPECT_EQ(Outputs(second), expected);
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
  for (int32_t rank : {-1, 0, 5}) EXPECT_EQ(fovea_dense(&data, FOVEA_F32, rank, shape).rank, 0);
  EXPECT_EQ(fovea_dense(&data, FOVEA_F32, 4, nullptr).rank, 0);
}

TEST(CTest, NamesAndTargetsAreTheSame) {
  for (int32_t n = -1; n < 12; ++n) {
    EXPECT_STREQ(fovea_dtype_name(n), Name(static_cast<DType>(n)));
    EXPECT_STREQ(fovea_target_name(n), Name(static_cast<Target>(n)));
    EXPECT_STREQ(fovea_engine_name(n), Name(static_cast<Engine>(n)));
    EXPECT_STREQ(fovea_product_name(n), Name(static_cast<Product>(n)));
    EXPECT_EQ(fovea_dtype_bytes(n), SizeOf(static_cast<DType>(n)));
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

// ---------------------------------------------------------------- structs of other versions

ProblemSpec Small() {
  ProblemSpec spec;
  spec.B = 1, spec.Hq = 2, spec.Hkv = 2, spec.Tq = 9, spec.Tk = 20, spec.dk = 8, spec.dv = 8;
  return spec;
}

// A struct of a newer header: `unknown` more bytes.
template <class Struct>
std::vector<uint64_t> Longer(const Struct& known, uint64_t unknown) {
  std::vector<uint64_t> words(sizeof(Struct) / 8 + 2, 0);
  std::memcpy(words.data(), &known, sizeof(Struct));
  words.back() = unknown;
  reinterpret_cast<Struct*>(words.data())->size = words.size() * 8;
  return words;
}

TEST(CVersionTest, WhatAShorterStructLacksIsTheDefault) {
  RandomProblem p(Small(), 1);
  ASSERT_TRUE(Attention(p.problem).ok());
  const auto expected = Outputs(p);
  p.ResetOutputs();
  // The header of a version that knew tensors up to lse alone; what lies behind is not the
  // library's.
  fovea_problem problem = ToC(p.problem);
  problem.size = offsetof(fovea_problem, weights);
  std::memset(&problem.weights, 0x5A, sizeof(problem) - problem.size);
  fovea_error error;
  ASSERT_EQ(fovea_attention(&problem, nullptr, nullptr, &error), FOVEA_OK) << error.message;
  EXPECT_EQ(Outputs(p), expected);

  fovea_plan_options options = ToC(PlanOptions());
  options.size = offsetof(fovea_plan_options, max_queries);
  std::memset(&options.max_queries, 0x5A, sizeof(options) - options.size);
  const fovea_problem whole = ToC(p.problem);
  ASSERT_EQ(fovea_attention(&whole, &options, nullptr, &error), FOVEA_OK) << error.message;

  fovea_plan* raw = nullptr;
  ASSERT_EQ(fovea_plan_create(&whole, nullptr, &raw, &error), FOVEA_OK) << error.message;
  const OwnedPlan plan(raw);
  fovea_cost cost = {offsetof(fovea_cost, pairs), -1, -1, -1, -1};
  ASSERT_EQ(fovea_plan_cost(raw, &cost, &error), FOVEA_OK) << error.message;
  EXPECT_GT(cost.flops, 0);
  EXPECT_GT(cost.kv_bytes, 0);
  EXPECT_EQ(cost.pairs, -1);
  EXPECT_EQ(cost.tasks, -1);
  EXPECT_EQ(cost.size, offsetof(fovea_cost, pairs));
}

TEST(CVersionTest, WhatALongerStructAddsMustBeZero) {
  RandomProblem p(Small(), 1);
  fovea_error error;
  const fovea_problem problem = ToC(p.problem);
  const auto attention = [&](const fovea_problem* pr, const fovea_plan_options* o,
                             const fovea_executor* e) {
    error.message[0] = '\0';
    return fovea_attention(pr, o, e, &error);
  };
  int calls = 0;
  for (uint64_t unknown : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    const fovea_status expected = unknown == 0 ? FOVEA_OK : FOVEA_INVALID_ARGUMENT;
    auto long_problem = Longer(problem, unknown);
    EXPECT_EQ(attention(reinterpret_cast<fovea_problem*>(long_problem.data()), nullptr, nullptr),
              expected)
        << error.message;
    fovea_allocator allocator;
    fovea_allocator_init(&allocator);
    auto long_allocator = Longer(allocator, unknown);
    fovea_plan_options options = ToC(PlanOptions());
    options.allocator = reinterpret_cast<fovea_allocator*>(long_allocator.data());
    EXPECT_EQ(attention(&problem, &options, nullptr), expected) << error.message;
    auto long_options = Longer(ToC(PlanOptions()), unknown);
    EXPECT_EQ(
        attention(&problem, reinterpret_cast<fovea_plan_options*>(long_options.data()), nullptr),
        expected)
        << error.message;
    auto long_executor = Longer(HostLoop(&calls), unknown);
    EXPECT_EQ(attention(&problem, nullptr, reinterpret_cast<fovea_executor*>(long_executor.data())),
              expected)
        << error.message;
  }
}

// ---------------------------------------------------------------- the caller's allocator

// Counts, and fails from the n-th allocation on.
struct CountingHost {
  int allocations = 0, most = 1 << 30;
  int64_t bytes = 0;
  static void* Allocate(void* context, size_t bytes) {
    auto& host = *static_cast<CountingHost*>(context);
    if (host.allocations >= host.most) return nullptr;
    ++host.allocations;
    host.bytes += static_cast<int64_t>(bytes);
    return std::malloc(bytes);
  }
  static void Release(void* context, void* memory, size_t bytes) {
    static_cast<CountingHost*>(context)->bytes -= static_cast<int64_t>(bytes);
    std::free(memory);
  }
  fovea_allocator ToC() {
    fovea_allocator allocator;
    fovea_allocator_init(&allocator);
    allocator.context = this;
    allocator.allocate = Allocate;
    allocator.release = Release;
    return allocator;
  }
};

TEST(CAllocatorTest, GivesAllMemoryAndGetsItBack) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, 1);
    CountingHost host;
    const fovea_allocator allocator = host.ToC();
    PlanOptions cc_options;
    cc_options.fixed_mask = spec.fixed_mask;
    fovea_plan_options options = ToC(cc_options);
    options.allocator = &allocator;
    const fovea_problem problem = ToC(p.problem);
    fovea_error error;
    fovea_plan* plan = nullptr;
    ASSERT_EQ(fovea_plan_create(&problem, &options, &plan, &error), FOVEA_OK) << error.message;
    EXPECT_GT(host.bytes, 0);
    const int planned = host.allocations;
    ASSERT_EQ(fovea_plan_update(plan, &problem, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(host.allocations, planned);
    fovea_plan_destroy(plan);
    EXPECT_EQ(host.bytes, 0);

    host.allocations = 0;
    ASSERT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(host.bytes, 0);
    const int once = host.allocations;
    EXPECT_EQ(once, planned - 1);  // without the handle and the plan's own memory, with a workspace

    // Whichever allocation fails: a code, nothing leaked, nothing written.
    p.ResetOutputs();
    for (int most = 0; most < planned; ++most) {
      host.allocations = 0, host.most = most;
      plan = nullptr;
      EXPECT_EQ(fovea_plan_create(&problem, &options, &plan, &error), FOVEA_OUT_OF_MEMORY);
      EXPECT_EQ(plan, nullptr);
      EXPECT_EQ(host.bytes, 0);
    }
    for (int most = 0; most < once; ++most) {
      host.allocations = 0, host.most = most;
      EXPECT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_OUT_OF_MEMORY);
      EXPECT_EQ(host.bytes, 0);
    }
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(CAllocatorTest, OneFunctionIsAnError) {
  RandomProblem p(Small(), 1);
  CountingHost host;
  fovea_allocator allocator = host.ToC();
  allocator.release = nullptr;
  fovea_plan_options options = ToC(PlanOptions());
  options.allocator = &allocator;
  const fovea_problem problem = ToC(p.problem);
  fovea_error error;
  EXPECT_EQ(fovea_attention(&problem, &options, nullptr, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "options.allocator.release = null, expected both functions or none");
  EXPECT_EQ(host.allocations, 0);
}

#ifdef FOVEA_TEST_TBB
TEST(CTbbTest, RunsOnOneTbb) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    PlanOptions options;
    options.fixed_mask = spec.fixed_mask;
    ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
    const auto expected = Outputs(p);
    p.ResetOutputs();
    fovea_executor executor;
    fovea_executor_init(&executor);
    fovea_error error;
    ASSERT_EQ(fovea_tbb_create(3, &executor, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(executor.workers, 3);
    const fovea_problem problem = ToC(p.problem);
    const fovea_plan_options c_options = ToC(options);
    ASSERT_EQ(fovea_attention(&problem, &c_options, &executor, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(Outputs(p), expected);
    fovea_tbb_destroy(&executor);
    EXPECT_EQ(executor.context, nullptr);
    EXPECT_EQ(fovea_attention(&problem, &c_options, &executor, &error), FOVEA_INVALID_ARGUMENT);
    fovea_tbb_destroy(&executor);
  }
  fovea_tbb_destroy(nullptr);
  fovea_executor executor;
  fovea_executor_init(&executor);
  EXPECT_EQ(fovea_tbb_create(1, nullptr, nullptr), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_tbb_create(-1, &executor, nullptr), FOVEA_INVALID_ARGUMENT);
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(executor) + 8, SIZE_MAX}) {
    executor.size = size;
    EXPECT_EQ(fovea_tbb_create(1, &executor, nullptr), FOVEA_INVALID_ARGUMENT);
  }
  // Another's executor is left alone.
  int host = 0;
  executor.context = &host;
  executor.for_each = [](void*, int64_t, fovea_task, void*) {};
  fovea_tbb_destroy(&executor);
  EXPECT_EQ(executor.context, &host);
}
#endif

}  // namespace
}  // namespace fovea
