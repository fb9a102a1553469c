// The reference against every published, edge, merge and gradient case: the specification as code
// agrees with cases that were made without it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/manifest.h"

namespace fovea::test {
namespace {

class ReferenceConformance : public ::testing::TestWithParam<CaseId> {};

TEST_P(ReferenceConformance, MatchesTheStoredAnswer) {
  const Case c = GetParam().Load();
  if (!c.unavailable.empty()) GTEST_SKIP() << c.unavailable;
  SCOPED_TRACE(c.about);

  std::map<std::string, std::vector<double>> got;
  if (!c.parts.empty()) {
    const reference::MergeResult merged =
        reference::Merge(c.parts.data(), static_cast<int64_t>(c.parts.size()));
    got = {{"out", merged.out}, {"lse", merged.lse}};
  } else {
    const reference::ForwardResult forward = reference::Forward(c.problem);
    got = {{"out", forward.out}, {"lse", forward.lse}, {"weights", forward.weights}};
  }
  if (c.dout.present()) {
    const reference::GradientResult g = reference::Gradients(c.problem, c.dout);
    got.insert(
        {{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dbias", g.dbias}, {"dsinks", g.dsinks}});
  }
  for (const auto& [name, expectation] : c.expect)
    EXPECT_TRUE(Near(name, got.at(name), expectation));
}

const auto kValid = [](const Suite& suite, size_t index) { return !suite.ExpectsError(index); };

INSTANTIATE_TEST_SUITE_P(Onnx, ReferenceConformance, ::testing::ValuesIn(CasesOf("onnx", kValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, ReferenceConformance, ::testing::ValuesIn(CasesOf("edge", kValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Merge, ReferenceConformance, ::testing::ValuesIn(CasesOf("merge", kValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Backward, ReferenceConformance,
                         ::testing::ValuesIn(CasesOf("backward", kValid)), CaseTestName);

// The counts are part of the promise: a case that a reader drops silently is a case that nobody
// runs.
TEST(ReferenceConformanceCases, AreAllThere) {
  EXPECT_EQ(CasesOf("onnx", kValid).size(), 64u);
  EXPECT_EQ(CasesOf("edge", kValid).size(), 242u);
  EXPECT_EQ(CasesOf("merge", kValid).size(), 23u);
  EXPECT_EQ(CasesOf("backward", kValid).size(), 35u);
}

}  // namespace
}  // namespace fovea::test
