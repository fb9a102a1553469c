// On one target, a sequence's result is the same bits for any threads, executor, batch, run,
// layout, place in memory and workspace.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/thin.h"

#ifdef FOVEA_TEST_TBB
#include "fovea/tbb.h"
#endif

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Memory;
using test::Outcome;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;
using test::Storage;

// Prefill over several tiles and blocks, decode over several splits, twice a little of everything,
// and both of the first in 16 bits.
std::vector<ProblemSpec> Specs() {
  std::vector<ProblemSpec> specs(6);
  ProblemSpec& prefill = specs[0];
  prefill.B = 2, prefill.Hq = 4, prefill.Hkv = 2, prefill.Tq = 75, prefill.Tk = 150,
  prefill.dk = 40, prefill.dv = 36, prefill.causal = Causal::kBottomRight;
  ProblemSpec& decode = specs[1];
  decode.B = 2, decode.Hq = 8, decode.Hkv = 2, decode.Tq = 1, decode.Tk = 3001, decode.dk = 32,
  decode.dv = 32, decode.kv_lengths = DType::kI32;
  ProblemSpec& all = specs[2];
  all.B = 2, all.Hq = 6, all.Hkv = 2, all.Tq = 17, all.Tk = 66, all.dk = 17, all.dv = 19,
  all.causal = Causal::kTopLeft, all.window = {30, -1}, all.query_offset = 9;
  all.softcap = 4, all.alibi = true, all.sinks = true, all.bias = Axes::kBHQK,
  all.mask = Axes::kBHQK, all.weights = true, all.q_lengths = DType::kI64;
  ProblemSpec& removes = specs[3];
  removes.B = 2, removes.Hq = 4, removes.Hkv = 2, removes.Tq = 33, removes.Tk = 290,
  removes.dk = 20, removes.dv = 12, removes.causal = Causal::kBottomRight;
  removes.mask = Axes::kBHQK, removes.mask_type = DType::kBit, removes.block_map = Axes::kBHQK,
  removes.block_queries = 5, removes.block_keys = 30, removes.parents = DType::kI32,
  removes.scores = ScoreStage::kMasked, removes.kv_lengths = DType::kI32;
  specs[4] = prefill, specs[5] = decode;
  for (DType ProblemSpec::* type :
       {&ProblemSpec::q_type, &ProblemSpec::k_type, &ProblemSpec::v_type, &ProblemSpec::out_type}) {
    specs[4].*type = DType::kF16, specs[5].*type = DType::kBF16;
  }
  return specs;
}

// Of one problem; of the six above, each kernel has one at least where tests are thinned.
std::vector<Kernel> SomeKernels() { return test::Thinned(test::KernelsAndAuto(), 4); }

TEST(RepeatabilityTest, EveryRunGivesTheSameBits) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome first = RunSerial(kernel, p);
      for (int64_t n : test::Thinned(test::Numbers(1, 3)))
        EXPECT_TRUE(Same(RunSerial(kernel, p), first)) << ToString(kernel) << " run " << n;
    }
  }
}

TEST(RepeatabilityTest, HostThreadsInAnyOrderGiveTheSameBits) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome serial = RunSerial(kernel, p);
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
      for (int workers : test::Thinned({1, 2, 3, 7}, 2)) {
        p.ResetOutputs();
        const uint64_t seed = test::BaseSeed() + static_cast<uint64_t>(workers);
        const Status status = test::RunHostDriven(plan, p.problem, workers, seed);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(Same(test::OutcomeOf(p), serial))
            << ToString(kernel) << " workers " << workers << " seed " << seed;
      }
    }
  }
}

#ifdef FOVEA_TEST_TBB
TEST(RepeatabilityTest, TbbGivesTheSameBitsForAnyThreads) {
  std::vector<std::unique_ptr<Executor>> executors;
  for (int threads : {1, 2, 3}) executors.push_back(MakeTbbExecutor(threads));
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome serial = RunSerial(kernel, p);
      for (const auto& executor : executors) {
        p.ResetOutputs();
        ASSERT_TRUE(Attention(p.problem, test::Options(kernel), *executor).ok());
        EXPECT_TRUE(Same(test::OutcomeOf(p), serial))
            << ToString(kernel) << " threads " << executor->Workers();
      }
    }
  }
}
#endif

TEST(RepeatabilityTest, LayoutsAndPlacesInMemoryDoNotChangeBits) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    const std::vector<Kernel> kernels = SomeKernels();
    std::vector<Outcome> dense;
    for (const Kernel& kernel : kernels) dense.push_back(RunSerial(kernel, p));
    const auto expect_the_same = [&](const std::function<Storage()>& next,
                                     const std::string& what) {
      RandomProblem moved = p;
      for (OwnedTensor RandomProblem::* tensor :
           {&RandomProblem::q, &RandomProblem::k, &RandomProblem::v, &RandomProblem::bias,
            &RandomProblem::mask, &RandomProblem::block_map, &RandomProblem::parents,
            &RandomProblem::out, &RandomProblem::lse, &RandomProblem::weights,
            &RandomProblem::scores}) {
        moved.*tensor = (p.*tensor).CopiedTo(next());
      }
      moved.Refresh();
      size_t n = 0;
      for (const Kernel& kernel : kernels)
        EXPECT_TRUE(Same(RunSerial(kernel, moved), dense[n++])) << ToString(kernel) << " " << what;
    };
    for (test::Layout layout : test::Thinned(test::kLayouts, 4)) {
      // All of them with this layout, each in a place of its own.
      expect_the_same(
          [&, place = 0]() mutable { return Storage{layout, test::kPlacements[place++ % 4]}; },
          ToString(Storage{layout, Placement::kAligned}));
    }
    expect_the_same([] { return Storage{test::Layout::kDense, Placement::kUnaligned}; },
                    "unaligned");
  }
}

TEST(RepeatabilityTest, WhatTheWorkspaceHeldAndWhereItLiesDoesNotChangeBits) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome expected = RunSerial(kernel, p);
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
      const size_t bytes = plan.WorkspaceBytes(1);
      const Memory memory(bytes + 128, Placement::kAligned, 1);
      for (int fill : {0x00, 0xFF, 0x7F, 0x55}) {  // zeros, NaN, 3e38, 1e13
        for (size_t shift : test::Thinned<size_t>({0, 1, 4, 63})) {
          std::memset(memory.data(), fill, bytes + 128);
          p.ResetOutputs();
          ASSERT_TRUE(fovea::Run(plan, p.problem, {memory.data() + shift, bytes}).ok());
          EXPECT_TRUE(Same(test::OutcomeOf(p), expected))
              << ToString(kernel) << " fill " << fill << " shift " << shift;
          for (size_t n = 0; n < shift; ++n)
            ASSERT_EQ(static_cast<int>(memory.data()[n]), fill) << "wrote before the workspace";
          for (size_t n = shift + bytes; n < bytes + 128; ++n)
            ASSERT_EQ(static_cast<int>(memory.data()[n]), fill) << "wrote behind the workspace";
        }
      }
    }
  }
}

// A part of a problem along batch and KV heads, outputs included: sequences [b, b + nb), KV heads
// [g, g + ng).
Problem PartOf(const RandomProblem& p, int64_t b, int64_t nb, int64_t g, int64_t ng) {
  const int64_t group = p.spec.Hq / p.spec.Hkv;
  Problem part = p.problem;
  const auto cut = [&](auto& view, int axis, int64_t first, int64_t count) {
    using Byte = std::conditional_t<std::is_same_v<decltype(view.data), void*>, char, const char>;
    if (!view.present() || view.shape[axis] == 1) return;
    view.data = static_cast<Byte*>(view.data) + first * view.stride[axis];
    view.shape[axis] = count;
  };
  for (TensorView* view :
       {&part.q, &part.score.bias, &part.score.mask, &part.score.block_map.visible}) {
    cut(*view, 0, b, nb), cut(*view, 1, g * group, ng * group);
  }
  for (TensorView* view : {&part.k, &part.v}) cut(*view, 0, b, nb), cut(*view, 1, g, ng);
  for (MutableTensorView* view : {&part.out, &part.lse, &part.weights, &part.scores})
    cut(*view, 0, b, nb), cut(*view, 1, g * group, ng * group);
  for (TensorView* view : {&part.score.query_offsets, &part.score.q_lengths, &part.score.kv_lengths,
                           &part.score.parents})
    cut(*view, 0, b, nb);
  for (TensorView* view : {&part.score.alibi_slopes, &part.score.sinks})
    cut(*view, 0, g * group, ng * group);
  return part;
}

TEST(RepeatabilityTest, ASequenceAloneIsTheSequenceInABatch) {
  for (ProblemSpec spec : Specs()) {
    spec.B = 4;
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome whole = RunSerial(kernel, p);
      p.ResetOutputs();
      // One by one, then by pairs: into the same outputs.
      for (int64_t count : {1, 2}) {
        p.ResetOutputs();
        for (int64_t b = 0; b < spec.B; b += count) {
          const Status status =
              Attention(PartOf(p, b, count, 0, spec.Hkv), test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
        }
        EXPECT_TRUE(Same(test::OutcomeOf(p), whole)) << ToString(kernel) << " by " << count;
      }
    }
  }
}

TEST(RepeatabilityTest, AKvHeadAloneIsTheHeadAmongOthers) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome whole = RunSerial(kernel, p);
      p.ResetOutputs();
      for (int64_t g = 0; g < spec.Hkv; ++g) {
        const Status status =
            Attention(PartOf(p, 0, spec.B, g, 1), test::Options(kernel), SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      EXPECT_TRUE(Same(test::OutcomeOf(p), whole)) << ToString(kernel);
    }
  }
}

TEST(RepeatabilityTest, SequencesOfVeryDifferentLengthsDoNotDisturbEachOther) {
  // Chunked prefill beside decode in one batch: each sequence has the engine, tiles and splits of
  // its own lengths.
  ProblemSpec spec;
  spec.B = 5, spec.Hq = 8, spec.Hkv = 2, spec.Tq = 100, spec.Tk = 2500, spec.dk = 32, spec.dv = 32,
  spec.causal = Causal::kBottomRight;
  spec.q_lengths = DType::kI32, spec.kv_lengths = DType::kI32;
  const int64_t q_lengths[] = {1, 100, 7, 1, 33}, kv_lengths[] = {2500, 100, 2001, 1, 0};
  RandomProblem p(spec, test::BaseSeed());
  for (int64_t b = 0; b < spec.B; ++b)
    p.q_lengths.Set(b, static_cast<double>(q_lengths[b])),
        p.kv_lengths.Set(b, static_cast<double>(kv_lengths[b]));
  test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
  for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  for (const Kernel& kernel : test::KernelsAndAuto()) {
    const Outcome whole = RunSerial(kernel, p);
    p.ResetOutputs();
    for (int64_t b = 0; b < spec.B; ++b) {
      const Status status =
          Attention(PartOf(p, b, 1, 0, spec.Hkv), test::Options(kernel), SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_TRUE(Same(test::OutcomeOf(p), whole)) << ToString(kernel);
  }
}

TEST(RepeatabilityTest, TheSizeOfTheCacheAndOfThePaddingDoesNotMatter) {
  // The first queries and 1100 keys of larger tensors, by lengths or by shape.
  ProblemSpec spec;
  spec.Hq = 4, spec.Hkv = 2, spec.Tq = 70, spec.Tk = 4000, spec.dk = 24, spec.dv = 24,
  spec.causal = Causal::kBottomRight;
  spec.q_lengths = DType::kI32, spec.kv_lengths = DType::kI64;
  RandomProblem p(spec, test::BaseSeed());
  test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
  for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  p.kv_lengths.Set(0, 1100);
  for (int64_t queries : {1, 9, 64}) {
    p.q_lengths.Set(0, static_cast<double>(queries));
    OwnedTensor out(DType::kF32, {1, spec.Hq, queries, spec.dv}),
        lse(DType::kF32, {1, spec.Hq, queries});
    Problem trimmed = p.problem;
    trimmed.score.q_lengths = trimmed.score.kv_lengths = TensorView();
    trimmed.q.shape[2] = queries;
    trimmed.k.shape[2] = trimmed.v.shape[2] = 1100;
    trimmed.out = out.mutable_view();
    trimmed.lse = lse.mutable_view();
    for (const Kernel& kernel : test::Thinned(test::KernelsAndAuto(), 3)) {
      RunSerial(kernel, p);
      ASSERT_TRUE(Attention(trimmed, test::Options(kernel), SerialExecutor()).ok());
      for (int64_t h = 0; h < spec.Hq; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          ASSERT_EQ(lse.At({0, h, i}), p.lse.At({0, h, i}))
              << ToString(kernel) << " queries " << queries;
          for (int64_t c = 0; c < spec.dv; ++c)
            ASSERT_EQ(out.At({0, h, i, c}), p.out.At({0, h, i, c}))
                << ToString(kernel) << " queries " << queries;
        }
      }
    }
  }
}

TEST(RepeatabilityTest, RoomForUpdatesDoesNotChangeBits) {
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : SomeKernels()) {
      const Outcome expected = RunSerial(kernel, p);
      PlanOptions options = test::Options(kernel);
      options.max_queries = spec.Tq + 300, options.max_keys = spec.Tk + 5000;
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
      p.ResetOutputs();
      ASSERT_TRUE(test::RunHostDriven(plan, p.problem, 2, test::BaseSeed()).ok());
      EXPECT_TRUE(Same(test::OutcomeOf(p), expected)) << ToString(kernel);
    }
  }
}

TEST(RepeatabilityTest, TileRowsDoNotChangeBits) {
  // "Within an engine, tile shapes agree bit for bit." Blocks of keys and splits do change the
  // order of sums.
  for (const ProblemSpec& spec : Specs()) {
    RandomProblem p(spec, test::BaseSeed());
    for (const Kernel& kernel : test::Thinned(test::Kernels(), 4)) {
      const Outcome expected = RunSerial(kernel, p);
      for (int32_t rows : test::Thinned({1, 2, 3, 5, 16, 40}, 3)) {
        PlanOptions options = test::Options(kernel);
        options.tile_rows = rows;
        p.ResetOutputs();
        ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
        EXPECT_TRUE(Same(test::OutcomeOf(p), expected))
            << ToString(kernel) << " tile rows " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
