// Merge against every case of the suite of partial states.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "reference/element.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/configurations.h"
#include "support/manifest.h"

namespace fovea::test {
namespace {

class MergeConformance : public ::testing::TestWithParam<CaseId> {};

TEST_P(MergeConformance, StoredAnswer) {
  const Case c = GetParam().Load();
  SCOPED_TRACE(c.about);
  const TensorView& shape = c.parts.at(0).out;
  std::vector<float> out(static_cast<size_t>(shape.size()), Outputs::kUntouched);
  std::vector<float> lse(static_cast<size_t>(c.parts[0].lse.size()), Outputs::kUntouched);
  const MutableTensorView out_view =
      View(out.data(), {shape.shape[0], shape.shape[1], shape.shape[2], shape.shape[3]});
  const MutableTensorView lse_view =
      View(lse.data(), {shape.shape[0], shape.shape[1], shape.shape[2]});
  const int64_t count = static_cast<int64_t>(c.parts.size());

  const Status status = Merge(c.parts.data(), count, out_view, lse_view);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(Near("out", out_view, c.expect.at("out")));
  EXPECT_TRUE(Near("lse", lse_view, c.expect.at("lse")));

  std::fill(out.begin(), out.end(), Outputs::kUntouched);
  ASSERT_TRUE(Merge(c.parts.data(), count, out_view, MutableTensorView()).ok());
  EXPECT_TRUE(Near("out without lse", out_view, c.expect.at("out")));

  // into the memory of each part in turn
  for (size_t target = 0; target < c.parts.size(); ++target) {
    SCOPED_TRACE("in place of part " + std::to_string(target));
    const std::vector<double> part_out = reference::ReadAll(c.parts[target].out),
                              part_lse = reference::ReadAll(c.parts[target].lse);
    out.assign(part_out.begin(), part_out.end());
    lse.assign(part_lse.begin(), part_lse.end());
    std::vector<PartialState> parts = c.parts;
    parts[target] = {out_view, lse_view};
    ASSERT_TRUE(Merge(parts.data(), count, out_view, lse_view).ok());
    EXPECT_TRUE(Near("out", out_view, c.expect.at("out")));
    EXPECT_TRUE(Near("lse", lse_view, c.expect.at("lse")));
  }
}

INSTANTIATE_TEST_SUITE_P(Merge, MergeConformance, ::testing::ValuesIn(CasesOf("merge", IsValid)),
                         CaseTestName);

}  // namespace
}  // namespace fovea::test
