// Every error of Merge: it names the field and touches no output.
#include "fovea/merge.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "laws/merge_state.h"
#include "support/random.h"

namespace fovea {
namespace {

using test::MakeState;
using test::RandomState;
using test::State;

// One wrong thing at a time.
struct Call {
  std::vector<PartialState> parts;
  int64_t count = 2;
  MutableTensorView out, lse;
};
struct Rule {
  const char* name;
  void (*break_it)(Call&);
  std::vector<const char*> message;
};

TEST(MergeTest, EveryErrorNamesTheFieldAndTouchesNoOutput) {
  static const std::vector<Rule> rules = {
      {"no parts", [](Call& c) { c.count = 0; }, {"count", "0"}},
      {"negative count", [](Call& c) { c.count = -1; }, {"count", "-1"}},
      {"parts absent", [](Call& c) { c.parts[1].out = TensorView(); }, {"parts[1].out"}},
      {"lse of a part absent", [](Call& c) { c.parts[1].lse = TensorView(); }, {"parts[1].lse"}},
      {"out absent", [](Call& c) { c.out = MutableTensorView(); }, {"out"}},
      {"rank of a part", [](Call& c) { c.parts[0].out.rank = 3; }, {"parts[0].out", "3", "4"}},
      {"rank of lse", [](Call& c) { c.parts[0].lse.rank = 4; }, {"parts[0].lse", "4", "3"}},
      {"rank of out", [](Call& c) { c.out.rank = 3; }, {"out", "3", "4"}},
      {"rank of out's lse", [](Call& c) { c.lse.rank = 1; }, {"lse", "1", "3"}},
      {"batch of a part",
       [](Call& c) { c.parts[1].out.shape[0] = 7; },
       {"parts[1].out.shape[0]", "7", "2"}},
      {"heads of a part",
       [](Call& c) { c.parts[1].out.shape[1] = 7; },
       {"parts[1].out.shape[1]", "7", "3"}},
      {"queries of a part",
       [](Call& c) { c.parts[1].out.shape[2] = 7; },
       {"parts[1].out.shape[2]", "7", "5"}},
      {"channels of a part",
       [](Call& c) { c.parts[1].out.shape[3] = 7; },
       {"parts[1].out.shape[3]", "7", "19"}},
      {"batch of a part's lse",
       [](Call& c) { c.parts[1].lse.shape[0] = 7; },
       {"parts[1].lse.shape[0]", "7", "2"}},
      {"heads of a part's lse",
       [](Call& c) { c.parts[1].lse.shape[1] = 7; },
       {"parts[1].lse.shape[1]", "7", "3"}},
      {"queries of a part's lse",
       [](Call& c) { c.parts[1].lse.shape[2] = 7; },
       {"parts[1].lse.shape[2]", "7", "5"}},
      {"channels of out", [](Call& c) { c.out.shape[3] = 7; }, {"7", "19"}},
      {"queries of out's lse", [](Call& c) { c.lse.shape[2] = 7; }, {"lse", "7", "5"}},
      {"negative shape", [](Call& c) { c.out.shape[3] = -19; }, {"out", "-19"}},
      {"type of a part",
       [](Call& c) { c.parts[1].out.dtype = DType::kF16; },
       {"parts[1].out", "f16", "f32"}},
      {"type of a part's lse",
       [](Call& c) { c.parts[0].lse.dtype = DType::kBF16; },
       {"parts[0].lse", "bf16", "f32"}},
      {"type of out", [](Call& c) { c.out.dtype = DType::kI32; }, {"out", "i32", "f32"}},
      {"type of out's lse", [](Call& c) { c.lse.dtype = DType::kI64; }, {"lse", "i64", "f32"}},
      {"unknown type",
       [](Call& c) { c.parts[1].out.dtype = static_cast<DType>(77); },
       {"parts[1].out"}},
      {"null out of a part",
       [](Call& c) { c.parts[1].out.data = nullptr; },
       {"parts[1].out", "null"}},
      {"null lse of a part",
       [](Call& c) { c.parts[1].lse.data = nullptr; },
       {"parts[1].lse", "null"}},
      {"null out", [](Call& c) { c.out.data = nullptr; }, {"out", "null"}},
      {"null lse", [](Call& c) { c.lse.data = nullptr; }, {"lse", "null"}},
      {"stride of a part",
       [](Call& c) { c.parts[1].out.stride[0] = std::numeric_limits<int64_t>::max(); },
       {"parts[1].out"}},
      {"stride of a part's lse",
       [](Call& c) { c.parts[1].lse.stride[2] = std::numeric_limits<int64_t>::min(); },
       {"parts[1].lse"}},
      {"stride of out",
       [](Call& c) { c.out.stride[3] = std::numeric_limits<int64_t>::max() / 2; },
       {"out"}},
      {"stride of out's lse",
       [](Call& c) { c.lse.stride[1] = std::numeric_limits<int64_t>::min(); },
       {"lse"}},
  };
  test::Random random(test::BaseSeed() + 11);
  const State a = RandomState(random), b = RandomState(random);
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.name);
    State result = MakeState();
    Call call{{a.view(), b.view()}, 2, result.out.mutable_view(), result.lse.mutable_view()};
    rule.break_it(call);
    const Status status = Merge(call.parts.data(), call.count, call.out, call.lse);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    for (const char* text : rule.message)
      EXPECT_NE(std::string(status.message()).find(text), std::string::npos)
          << text << " is not in: " << status.message();
    EXPECT_TRUE(result.out.Untouched() && result.lse.Untouched());
  }
}

TEST(MergeTest, NullPartsAreAnError) {
  State result = MakeState();
  EXPECT_EQ(Merge(nullptr, 2, result.out.mutable_view(), result.lse.mutable_view()).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(result.out.Untouched() && result.lse.Untouched());
}

}  // namespace
}  // namespace fovea
