// What must hold of every tensor and option that a problem can bring, each law written once.
#ifndef FOVEA_TESTS_SUPPORT_FEATURE_LAWS_H_
#define FOVEA_TESTS_SUPPORT_FEATURE_LAWS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/refusal.h"
#include "support/thin.h"

namespace fovea::test {

// expect(p, options) of random problems of `spec`, in tiles, blocks and splits that are far smaller
// than those of a plan.
template <class Expect>
void ForTinyTilesBlocksAndSplits(const ProblemSpec& spec, const Expect& expect) {
  uint64_t seed = BaseSeed();
  for (int32_t rows : {1, 3, 8}) {
    for (int32_t keys : Thinned({1, 4, 16, 33}, 2)) {
      PlanOptions options;
      options.tile_rows = rows, options.block_keys = keys, options.split_keys = rows == 3 ? 40 : 0;
      RandomProblem p(spec, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      expect(p, options);
    }
  }
}

inline void ForTinyTilesBlocksAndSplits(const ProblemSpec& spec) {
  ForTinyTilesBlocksAndSplits(spec, [](RandomProblem& p, const PlanOptions& options) {
    ExpectMatchesReference(p, options);
  });
}

// A tensor of `p` gives the same bits wherever it lies, whatever its strides.
inline void ExpectTheSameFromAnyPlace(const RandomProblem& p, OwnedTensor RandomProblem::* tensor) {
  for (Layout layout : kLayouts) {
    for (Placement placement : kPlacements) {
      RandomProblem plain = p, moved = p;
      moved.*tensor = (p.*tensor).CopiedTo({layout, placement});
      moved.Refresh();
      for (const Kernel& kernel : Thinned(Kernels()))
        EXPECT_TRUE(Same(RunSerial(kernel, moved), RunSerial(kernel, plain))) << ToString(kernel);
    }
  }
}

// `p` with one element of a tensor for all of the axes whose bits are set in `axes`, by strides of
// 0.
inline RandomProblem Repeated(const RandomProblem& p, OwnedTensor RandomProblem::* tensor,
                              unsigned axes) {
  RandomProblem repeated = p;
  repeated.*tensor = (p.*tensor).CopiedTo({Layout::kDense, Placement::kAligned, axes});
  repeated.Refresh();
  return repeated;
}

// One plan of each kernel serves what change(run) makes of `p`, run 0, 1, 2.
template <class Change>
void ExpectOnePlanServes(RandomProblem& p, const Change& change) {
  const std::vector<Kernel> kernels = Kernels();
  std::vector<Plan> plans(kernels.size());
  for (size_t n = 0; n < kernels.size(); ++n)
    ASSERT_TRUE(Plan::Create(p.problem, Options(kernels[n]), &plans[n]).ok());
  for (int run = 0; run < 3; ++run) {
    change(run);
    const reference::ForwardResult expected = reference::Forward(p.problem);
    for (size_t n = 0; n < kernels.size(); ++n) {
      const Memory memory(plans[n].WorkspaceBytes(1), Placement::kAligned, 1);
      p.ResetOutputs();
      const Status status = Run(plans[n], p.problem, {memory.data(), memory.bytes()});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(Matches(p.problem, expected)) << ToString(kernels[n]) << " run " << run;
    }
  }
}

// No queries, no keys, no sequences.
inline void ExpectNothingOfNothing(const ProblemSpec& spec) {
  for (int what = 0; what < 3; ++what) {
    ProblemSpec s = spec;
    if (what == 0) s.Tq = 0;
    if (what == 1) s.Tk = 0;
    if (what == 2) s.B = 0, s.one_key_ranges = s.key_ranges != DType::kNone;
    RandomProblem p(s, BaseSeed());
    ExpectMatchesReference(p);
  }
}

// Whether a tensor is there is part of the plan.
inline void ExpectPlanned(const RandomProblem& with, OwnedTensor RandomProblem::* tensor,
                          const char* name) {
  RandomProblem without = with;
  without.*tensor = OwnedTensor();
  without.Refresh();
  EXPECT_TRUE(RefusesToRun(with, without, name));
  EXPECT_TRUE(RefusesToRun(without, with, name));
}

// Every wrong form of a tensor f32 [Hq] is refused; Hq is not 2.
inline void ExpectWrongPerHeadRefused(const RandomProblem& right, TensorView Score::* view,
                                      const std::string& name) {
  RandomProblem p = right;
  const auto refuses = [&](const char* what, const char* given, const char* expected) {
    const testing::AssertionResult result = Refuses(p, {(name + what).c_str(), given, expected});
    p.Refresh();
    return result;
  };
  TensorView& tensor = p.problem.score.*view;
  tensor.shape[0] = 2;
  EXPECT_TRUE(refuses(".shape[0]", "2", std::to_string(p.spec.Hq).c_str()));
  tensor.rank = 2, tensor.shape[1] = 1;
  EXPECT_TRUE(refuses(".rank", "2", "1"));
  tensor.rank = -1;
  EXPECT_TRUE(refuses(".rank", "-1", ""));
  for (DType type : {DType::kF16, DType::kBF16, DType::kI32, DType::kBool, DType::kBit}) {
    tensor.dtype = type;
    EXPECT_TRUE(refuses(".dtype", Name(type), "f32"));
  }
  tensor.dtype = static_cast<DType>(99);
  EXPECT_TRUE(refuses(".dtype", "", ""));
  tensor.data = nullptr;
  EXPECT_TRUE(refuses(".data", "null", ""));
  tensor.stride[0] = INT64_MAX;
  EXPECT_TRUE(refuses(".stride", "", ""));
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_FEATURE_LAWS_H_
