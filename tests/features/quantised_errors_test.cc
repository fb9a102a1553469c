// What is refused of quantised K and V and their scales, by which name; and what plans bind.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::ExpectMatchesReference;
using test::ProblemSpec;
using test::RandomProblem;
using test::Shared;

ProblemSpec ValidSpec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 3, s.Tk = 40, s.dk = s.dv = 64;
  s.k_type = DType::kI8, s.v_type = DType::kU4;
  s.k_codes.zero_type = s.v_codes.zero_type = DType::kF32;
  return s;
}

struct Fault {
  const char* what;
  void (*spoil)(Problem&);
  StatusCode code;
  const char* field;  // that the message names
};

TEST(QuantisedTest, MistakesAreRefusedByName) {
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument, kNot = StatusCode::kUnsupported;
  const Fault faults[] = {
      {"no scales", [](Problem& p) { p.k_scale = TensorView(); }, kInvalid, "k_scale"},
      {"no scales of v", [](Problem& p) { p.v_scale = TensorView(); }, kInvalid, "v_scale"},
      {"rank", [](Problem& p) { p.k_scale.rank = 3; }, kInvalid, "k_scale.rank"},
      {"type", [](Problem& p) { p.v_scale.dtype = DType::kI32; }, kInvalid, "v_scale.dtype"},
      {"type of zeros", [](Problem& p) { p.k_zero.dtype = DType::kI64; }, kInvalid, "k_zero.dtype"},
      {"too many", [](Problem& p) { p.k_scale.shape[2] = 41; }, kInvalid, "k_scale.shape[2]"},
      {"none", [](Problem& p) { p.v_zero.shape[3] = 0; }, kInvalid, "v_zero.shape[3]"},
      {"more channels", [](Problem& p) { p.v_scale.shape[3] = 65; }, kInvalid, "v_scale.shape[3]"},
      {"more heads", [](Problem& p) { p.k_zero.shape[1] = 3; }, kInvalid, "k_zero.shape[1]"},
      {"null", [](Problem& p) { p.k_scale.data = nullptr; }, kInvalid, "k_scale.data"},
      {"null zeros", [](Problem& p) { p.v_zero.data = nullptr; }, kInvalid, "v_zero.data"},
      {"zeros twice", [](Problem& p) { p.k_scale.dtype = DType::kF32Z4; }, kInvalid, "k_zero.rank"},
      {"scales of floats", [](Problem& p) { p.k.dtype = DType::kF32; }, kInvalid, "k_scale.rank"},
      {"scales of blocks", [](Problem& p) { p.k.dtype = DType::kQ8_0, p.k.stride[3] = 34; },
       kInvalid, "k_scale.rank"},
      {"stride", [](Problem& p) { p.k.stride[3] = 2; }, kNot, "k.stride[3]"},
      {"stride of nibbles", [](Problem& p) { p.v.stride[3] = 0; }, kNot, "v.stride[3]"},
      {"half a unit", [](Problem& p) { p.v.shape[3] = 63, p.out.shape[3] = 63; }, kNot,
       "v.shape[3]"},
      {"quantised q", [](Problem& p) { p.q.dtype = DType::kI8; }, kInvalid, "q.dtype"},
      {"quantised out", [](Problem& p) { p.out.dtype = DType::kU8; }, kInvalid, "out.dtype"},
      {"a scale as k", [](Problem& p) { p.k.dtype = DType::kF32Z4; }, kInvalid, "k.dtype"},
      {"groups apart of different lengths",
       [](Problem& p) { p.k_group_stride = 30, p.k_scale.shape[3] = 3; }, kNot, "k_group_stride"},
      {"groups apart, far", [](Problem& p) { p.v_group_stride = int64_t{1} << 41; }, kInvalid,
       "v_group_stride"},
      {"groups of floats apart",
       [](Problem& p) {
         p.v.dtype = DType::kF16, p.v.stride[3] = 2, p.v_group_stride = 8;
         p.v_scale = p.v_zero = TensorView();
       },
       kInvalid, "v_group_stride"},
      {"overflow", [](Problem& p) { p.k_scale.stride[2] = std::numeric_limits<int64_t>::max(); },
       kInvalid, "k_scale.stride[2]"},
  };
  for (const Fault& fault : faults) {
    RandomProblem p(ValidSpec(), 1);
    ASSERT_TRUE(Attention(p.problem).ok());
    p.ResetOutputs();
    fault.spoil(p.problem);
    const Status status = Attention(p.problem);
    EXPECT_EQ(status.code(), fault.code) << fault.what << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(fault.field), std::string::npos)
        << fault.what << ": " << status.message();
    EXPECT_TRUE(p.OutputsUntouched()) << fault.what;
  }
}

TEST(QuantisedTest, APlanIsForTypesAndForWhichScalesThereAre) {
  RandomProblem p(ValidSpec(), 1);
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, PlanOptions(), &plan).ok());
  EXPECT_NE(plan.ToString().find("i8"), std::string::npos) << plan.ToString();
  std::vector<char> memory(plan.WorkspaceBytes(1));
  const Workspace workspace = {memory.data(), memory.size()};
  Problem other = p.problem;
  other.k.dtype = DType::kU8;
  EXPECT_NE(std::string(fovea::Run(plan, other, workspace).message()).find("k.dtype"),
            std::string::npos);
  other = p.problem;
  other.k_zero = TensorView();
  EXPECT_NE(std::string(fovea::Run(plan, other, workspace).message()).find("k_zero.rank"),
            std::string::npos);
  EXPECT_TRUE(fovea::Run(plan, p.problem, workspace).ok());
}

TEST(QuantisedTest, Fp8NeedsNoScale) {
  for (DType type : {DType::kF8E4M3FN, DType::kF8E5M2}) {
    ProblemSpec s;
    s.Hq = 3, s.Tq = 2, s.Tk = 40, s.dk = s.dv = 48;
    s.k_type = s.v_type = type;
    s.k_codes.scale_type = DType::kNone;
    s.v_codes.scale_type = DType::kF32, s.v_codes.scale = Shared::kAll;
    ExpectMatchesReference(s, 1);
  }
}

}  // namespace
}  // namespace fovea
