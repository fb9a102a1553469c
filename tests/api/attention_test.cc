// The kernels against the double reference through the public call, one thing at a time, in sizes
// of its own: every usable target, both engines. Every pair of things is in all_pairs_test.cc, what
// the score's mathematics demands beyond the formula in laws/, NaN, Inf and empty rows in
// laws/nonfinite_test.cc.
#include "fovea/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::ExpectMatchesReference;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;

ProblemSpec Small() {
  ProblemSpec s;
  s.B = 2, s.Hq = 6, s.Hkv = 2, s.Tq = 19, s.Tk = 45, s.dk = 24, s.dv = 20;
  return s;
}

TEST(AttentionTest, PlainProblem) { ExpectMatchesReference(Small(), 0); }

TEST(AttentionTest, EveryHeadSizeFromOneToForty) {
  for (int64_t d : test::Thinned(test::Numbers(1, 40), 5)) {
    ProblemSpec s;
    s.Tq = 5, s.Tk = 11, s.dk = d, s.dv = 41 - d;
    ExpectMatchesReference(s, static_cast<uint64_t>(d));
  }
}

TEST(AttentionTest, EveryNumberOfQueriesAroundTiles) {
  for (int64_t Tq : test::Thinned(test::Numbers(1, 70), 7)) {
    ProblemSpec s;
    s.Tq = Tq, s.Tk = 37, s.dk = 8, s.dv = 12, s.causal = Causal::kBottomRight;
    ExpectMatchesReference(s, static_cast<uint64_t>(Tq));
  }
}

TEST(AttentionTest, EveryNumberOfKeysAroundBlocks) {
  for (int64_t Tk : test::Thinned(test::Numbers(1, 140), 13)) {
    ProblemSpec s;
    s.Tq = 5, s.Tk = Tk, s.dk = 8, s.dv = 12, s.causal = Causal::kTopLeft, s.query_offset = Tk / 2;
    ExpectMatchesReference(s, static_cast<uint64_t>(Tk));
  }
}

TEST(AttentionTest, ManyBlocksAndTiles) {
  ProblemSpec s;
  s.Tq = test::GridStep() > 1 ? 100 : 300, s.Tk = 515, s.dk = 64, s.dv = 64;
  for (Causal causal : test::Thinned({Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})) {
    s.causal = causal;
    ExpectMatchesReference(s, 1);
  }
  s.window = {70, 3};
  ExpectMatchesReference(s, 2);
}

TEST(AttentionTest, LongKeysWithFewQueriesSplitAndMerge) {
  for (int64_t Tq : test::Thinned({1, 3})) {
    ProblemSpec s;
    s.Hq = 8, s.Hkv = 2, s.Tq = Tq, s.Tk = 5003, s.dk = test::GridStep() > 1 ? 16 : 64, s.dv = 48,
    s.causal = Causal::kBottomRight, s.kv_lengths = DType::kI64, s.B = 2;
    ExpectMatchesReference(s, static_cast<uint64_t>(Tq));
    s.sinks = true, s.softcap = 5, s.alibi = true, s.mask = Axes::kK;
    ExpectMatchesReference(s, static_cast<uint64_t>(Tq) + 10);
  }
}

TEST(AttentionTest, SplitsWhoseKeysAreAllRemovedLeaveNoTrace) {
  ProblemSpec s;
  s.Hq = 4, s.Hkv = 2, s.Tq = 2, s.Tk = 257, s.dk = 16, s.dv = 16, s.window = {20, 0},
  s.query_offset = 130;
  PlanOptions options;
  options.split_keys = 32;
  for (bool sinks : {false, true}) {
    s.sinks = sinks;
    ExpectMatchesReference(s, 1, options);
  }
}

TEST(AttentionTest, LatentAttentionSizes) {
  for (auto [dk, dv] : {std::pair<int64_t, int64_t>{576, 512}, {320, 256}, {192, 128}}) {
    ProblemSpec s;
    s.Hq = 4, s.Hkv = 1, s.Tq = 3, s.Tk = 70, s.dk = dk, s.dv = dv, s.causal = Causal::kBottomRight;
    ExpectMatchesReference(s, static_cast<uint64_t>(dk));
  }
}

TEST(AttentionTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = Small();
  s.causal = Causal::kBottomRight, s.bias = Axes::kQK, s.bias_removes = 0.2;
  for (int32_t rows = 0; rows <= 4; ++rows) {
    for (int32_t keys : test::Thinned({0, 1, 2, 3, 4}, 3)) {
      PlanOptions options;
      options.tile_rows = rows, options.block_keys = keys, options.split_keys = rows == 2 ? 7 : 0;
      ExpectMatchesReference(s, static_cast<uint64_t>(rows * 5 + keys), options);
    }
  }
}

// ---- layouts ----

TEST(AttentionLayoutTest, EveryLayoutAndPlaceOfEachTensor) {
  for (Layout layout : test::kLayouts) {
    for (Placement placement : test::kPlacements) {
      for (test::Storage ProblemSpec::* which :
           test::Thinned({&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::out,
                          &ProblemSpec::rest})) {
        ProblemSpec s;
        s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 6, s.Tk = 17, s.dk = 9, s.dv = 10;
        s.weights = true, s.bias = Axes::kBHQK, s.mask = Axes::kHQK;
        s.*which = {layout, placement};
        ExpectMatchesReference(s, 1);
      }
    }
  }
}

TEST(AttentionLayoutTest, BroadcastInputsOverEverySetOfAxes) {
  for (unsigned axes = 1; axes < 16; ++axes) {
    for (test::Storage ProblemSpec::* which :
         test::Thinned({&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::rest})) {
      ProblemSpec s;
      s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 5, s.Tk = 9, s.dk = 7, s.dv = 6;
      s.mask = Axes::kBHQK, s.bias = Axes::kBHQK;
      s.lse = which != &ProblemSpec::rest;  // outputs are never broadcast
      (s.*which).broadcast = axes;
      ExpectMatchesReference(s, axes);
    }
  }
}

TEST(AttentionLayoutTest, PackedQkvOfOneBuffer) {
  // [B, T, 3, H, d], as a projection of all three writes it.
  const int64_t B = 2, T = 21, H = 3, d = 20;
  OwnedTensor packed(DType::kF32, {B * T, 3 * H * d});
  test::Random random(test::BaseSeed());
  packed.Fill([&] { return random.Normal(); });
  ProblemSpec spec;
  spec.B = B, spec.Hq = spec.Hkv = H, spec.Tq = spec.Tk = T, spec.dk = spec.dv = d,
  spec.causal = Causal::kTopLeft;
  RandomProblem p(spec, 1);
  const float* data = static_cast<const float*>(packed.view().data);
  const auto part = [&](int64_t n) {
    return View(data + n * H * d, {B, H, T, d}, {T * 3 * H * d, d, 3 * H * d, 1});
  };
  p.problem.q = part(0);
  p.problem.k = part(1);
  p.problem.v = part(2);
  ExpectMatchesReference(p);
}

TEST(AttentionLayoutTest, ValuesMayBeAViewIntoKeys) {
  ProblemSpec s;
  s.Hq = 4, s.Tq = 4, s.Tk = 33, s.dk = 40, s.dv = 24;
  RandomProblem p(s, test::BaseSeed());
  p.problem.v = p.problem.k;
  p.problem.v.shape[3] = s.dv;
  ExpectMatchesReference(p);
}

TEST(AttentionLayoutTest, RowStridesOfWholePagesWithManyHeads) {
  // BTHD with H·d·4 = 4 KiB: the rows of one head fall into the same cache sets.
  ProblemSpec s;
  s.Hq = s.Hkv = 16, s.Tq = 20, s.Tk = 70, s.dk = s.dv = 64, s.causal = Causal::kBottomRight;
  s.q.layout = s.k.layout = s.v.layout = s.out.layout = Layout::kSwapped;
  ExpectMatchesReference(s, 1);
}

TEST(AttentionLayoutTest, MemoryBehindKvLengthsIsNeverTouched) {
  // K and V end with their last valid key, an inaccessible page behind it, while their shape
  // promises more.
  for (const int64_t length : {0, 1, 13, 64, 100}) {
    for (const int64_t Tq : {1, 40}) {
      ProblemSpec s;
      s.Hq = 3, s.Hkv = 1, s.Tq = Tq, s.Tk = length, s.dk = 20, s.dv = 33, s.weights = true;
      s.k.placement = s.v.placement = Placement::kBeforeGuard;
      RandomProblem p(s, test::BaseSeed());
      const int64_t Tk = 200, kv_lengths[] = {length};
      OwnedTensor weights(DType::kF32, {1, s.Hq, Tq, Tk});
      Problem larger = p.problem;
      larger.k.shape[2] = larger.v.shape[2] = Tk;
      larger.weights = weights.mutable_view();
      larger.score.kv_lengths = View(kv_lengths, {1});
      const auto expected = reference::Forward(larger);
      for (const test::Kernel& kernel : test::Kernels()) {
        const Status status = Attention(larger, test::Options(kernel), SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(test::Matches(larger, expected)) << ToString(kernel) << " length " << length;
      }
    }
  }
}

TEST(AttentionLayoutTest, ElementsAtAnyByteAddress) {
  // Any stride is legal: rows of 4·d + 1 bytes put elements at every address.
  const int64_t Tq = 9, Tk = 37, d = 18;
  ProblemSpec s;
  s.Tq = Tq, s.Tk = Tk, s.dk = s.dv = d;
  RandomProblem p(s, test::BaseSeed());
  const auto expected = reference::Forward(p.problem);
  std::vector<std::vector<unsigned char>> memory;
  const auto shifted = [&](auto view) {
    memory.emplace_back(static_cast<size_t>(view.shape[2] * (4 * d + 1) + 1));
    for (int64_t t = 0; t < view.shape[2]; ++t) {
      std::memcpy(memory.back().data() + 1 + t * (4 * d + 1),
                  static_cast<const char*>(view.data) + t * view.stride[2], 4 * d);
    }
    view.data = memory.back().data() + 1;
    view.stride[2] = 4 * d + 1;
    return view;
  };
  p.problem.q = shifted(p.problem.q);
  p.problem.k = shifted(p.problem.k);
  p.problem.v = shifted(p.problem.v);
  p.problem.out = shifted(p.problem.out);
  for (const test::Kernel& kernel : test::Kernels()) {
    const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(test::Matches(p.problem, expected)) << ToString(kernel);
  }
}

// Any number is legal there, and a step of it leaves the address space, which
// UndefinedBehaviorSanitizer reports.
TEST(AttentionLayoutTest, StridesOfAxesOfOneElementAreNotLookedAt) {
  struct Sizes {
    int64_t Tq, Tk, d;
  };
  for (const Sizes sizes : {Sizes{1, 1, 1}, Sizes{1, 1, 40}, Sizes{3, 300, 1}, Sizes{40, 1, 1},
                            Sizes{1, 300, 20}, Sizes{2, 0, 1}}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      ProblemSpec s;
      s.Tq = sizes.Tq, s.Tk = sizes.Tk, s.dk = s.dv = sizes.d, s.weights = true,
      s.bias = Axes::kBHQK, s.mask = Axes::kBHQK;
      s.q_type = s.k_type = s.v_type = type;
      RandomProblem p(s, test::BaseSeed());
      for (const int64_t stride : {INT64_MAX, -(int64_t{1} << 62)}) {
        const auto widen = [&](auto& view) {
          const bool empty = view.size() == 0;
          for (int a = 0; a < view.rank; ++a) {
            if (empty || view.shape[a] == 1) view.stride[a] = stride;
          }
        };
        Problem problem = p.problem;
        for (TensorView* view :
             {&problem.q, &problem.k, &problem.v, &problem.score.bias, &problem.score.mask})
          widen(*view);
        for (MutableTensorView* view : {&problem.out, &problem.weights}) widen(*view);
        const auto expected = reference::Forward(problem);
        for (const test::Kernel& kernel : test::KernelsFor(problem)) {
          p.ResetOutputs();
          const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(test::Matches(problem, expected, reference::WeightTolerance(kernel.product)))
              << ToString(kernel) << "\n"
              << ToString(s);
        }
      }
    }
  }
}

TEST(AttentionTest, EveryByteButZeroIsTrueInAMask) {
  ProblemSpec s;
  s.Hq = 2, s.Tq = 20, s.Tk = 70, s.dk = 8, s.dv = 8, s.mask = Axes::kQK, s.weights = true;
  RandomProblem p(s, test::BaseSeed());
  std::vector<unsigned char> bytes(static_cast<size_t>(s.Tq * s.Tk));
  test::Random random(test::BaseSeed());
  for (unsigned char& byte : bytes)
    byte = random.Pick(std::array<unsigned char, 6>{0, 0, 1, 2, 128, 255});
  p.problem.score.mask = View(static_cast<const void*>(bytes.data()), DType::kBool, {s.Tq, s.Tk});
  ExpectMatchesReference(p);
}

// ---- sizes of zero ----

TEST(AttentionTest, EmptyBatchesAndQueriesReturnAtOnce) {
  for (const test::Kernel& kernel : test::Kernels()) {
    for (int which = 0; which < 2; ++which) {
      ProblemSpec s = Small();
      s.weights = true;
      (which == 0 ? s.B : s.Tq) = 0;
      RandomProblem p(s, 1);
      const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
      EXPECT_TRUE(status.ok()) << status.message();
      for (auto* view : {&p.problem.q, &p.problem.k, &p.problem.v})
        view->data = view->size() == 0 ? nullptr : view->data;
      p.problem.out.data = p.problem.lse.data = p.problem.weights.data = nullptr;
      const Status null = Attention(p.problem, test::Options(kernel), SerialExecutor());
      EXPECT_TRUE(null.ok()) << null.message();
    }
  }
}

TEST(AttentionTest, WithoutKeysEveryRowIsEmpty) {
  for (bool sinks : {false, true}) {
    ProblemSpec s = Small();
    s.Tk = 0, s.sinks = sinks, s.weights = true;
    ExpectMatchesReference(s, 1);
    RandomProblem p(s, 1);
    p.problem.k.data = p.problem.v.data = nullptr;
    p.problem.weights.data = nullptr;
    ExpectMatchesReference(p);
  }
}

// ---- optional outputs ----

TEST(AttentionTest, OptionalOutputsDoNotChangeTheOthers) {
  for (const test::Kernel& kernel : test::Kernels()) {
    std::vector<unsigned char> out;
    for (int which = 0; which < 4; ++which) {
      ProblemSpec s = Small();
      s.causal = Causal::kBottomRight, s.lse = which & 1, s.weights = which & 2;
      RandomProblem p(s, test::BaseSeed());
      ASSERT_TRUE(Attention(p.problem, test::Options(kernel), SerialExecutor()).ok());
      if (which == 0) out = p.out.Bytes();
      EXPECT_EQ(out, p.out.Bytes())
          << ToString(kernel) << (s.lse ? " lse" : "") << (s.weights ? " weights" : "");
    }
  }
}

TEST(AttentionTest, TheShortCallIsTheDefaultPlan) {
  RandomProblem p(Small(), test::BaseSeed());
  const auto expected = reference::Forward(p.problem);
  ASSERT_TRUE(Attention(p.problem).ok());
  EXPECT_TRUE(test::Matches(p.problem, expected));
  const auto out = p.out.Bytes();
  p.ResetOutputs();
  ASSERT_TRUE(Attention(p.problem, PlanOptions(), SerialExecutor()).ok());
  EXPECT_EQ(out, p.out.Bytes());
}

}  // namespace
}  // namespace fovea
