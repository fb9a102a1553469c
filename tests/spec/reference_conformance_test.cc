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

INSTANTIATE_TEST_SUITE_P(Onnx, ReferenceConformance, ::testing::ValuesIn(CasesOf("onnx", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, ReferenceConformance, ::testing::ValuesIn(CasesOf("edge", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Merge, ReferenceConformance,
                         ::testing::ValuesIn(CasesOf("merge", IsValid)), CaseTestName);
INSTANTIATE_TEST_SUITE_P(Backward, ReferenceConformance,
                         ::testing::ValuesIn(CasesOf("backward", IsValid)), CaseTestName);
INSTANTIATE_TEST_SUITE_P(Extra, ReferenceConformance,
                         ::testing::ValuesIn(CasesOf("extra", IsValid)), CaseTestName);
INSTANTIATE_TEST_SUITE_P(KvCache, ReferenceConformance,
                         ::testing::ValuesIn(CasesOf("kvcache", IsValid)), CaseTestName);

// The counts are part of the promise: a case that a reader drops silently is a case that nobody
// runs.
TEST(ReferenceConformanceCases, AreAllThere) {
  EXPECT_EQ(CasesOf("onnx", IsValid).size(), 64u);
  EXPECT_EQ(CasesOf("edge", IsValid).size(), 242u);
  EXPECT_EQ(CasesOf("merge", IsValid).size(), 23u);
  EXPECT_EQ(CasesOf("backward", IsValid).size(), 35u);
  EXPECT_EQ(CasesOf("extra", IsValid).size(), 45u);
  EXPECT_EQ(CasesOf("kvcache", IsValid).size(), 110u);
}

TEST(ReferenceConformanceCases, AreLeftOutForWhatTheLibraryDoesNotHave) {
  const auto all = [](const Suite&, size_t) { return true; };
  std::map<std::string, int> left_out;
  for (const char* const suite : {"onnx", "edge", "merge", "backward", "extra", "kvcache"}) {
    for (const CaseId& id : CasesOf(suite, all)) {
      const std::string needs = id.suite->Needs(id.index);
      if (!needs.empty()) ++left_out[needs];
    }
  }
  EXPECT_EQ(left_out, (std::map<std::string, int>{
                          {"dropout", 11}, {"dropout, key_indices", 2}, {"key_indices", 9}}));
}

}  // namespace
}  // namespace fovea::test
