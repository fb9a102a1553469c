// The header-only edition on the cases of the conformance suites that it covers.
#include <gtest/gtest.h>

#include "embedded/support.h"
#include "reference/reference.h"
#include "support/cases.h"
#include "support/check.h"
#include "support/compare.h"

namespace fovea::test {
namespace {

class EmbeddedConformance : public ::testing::TestWithParam<CaseId> {};

TEST_P(EmbeddedConformance, StoredAnswer) {
  if (!IsUsable()) GTEST_SKIP();
  const Case c = GetParam().Load();
  if (!c.unavailable.empty() || !IsCovered(c.problem)) return;
  SCOPED_TRACE(c.about);
  Problem problem = c.problem;
  const Outputs outputs(&problem, c.token_major, false);
  ASSERT_EQ(Compute(Convert(problem)->problem), Error::kOk);
  EXPECT_TRUE(Near("out", outputs.out(), c.expect.at("out")));
  EXPECT_TRUE(Near("lse", outputs.lse(), c.expect.at("lse")));
  EXPECT_TRUE(Matches(problem, reference::Forward(problem)));
}

INSTANTIATE_TEST_SUITE_P(Onnx, EmbeddedConformance, ::testing::ValuesIn(CasesOf("onnx", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, EmbeddedConformance, ::testing::ValuesIn(CasesOf("edge", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Extra, EmbeddedConformance, ::testing::ValuesIn(CasesOf("extra", IsValid)),
                         CaseTestName);

TEST(EmbeddedConformance, CoversManyCases) {
  int covered = 0;
  for (const char* suite : {"onnx", "edge", "extra"}) {
    for (const CaseId& id : CasesOf(suite, IsValid)) {
      const Case c = id.Load();
      covered += c.unavailable.empty() && IsCovered(c.problem) ? 1 : 0;
    }
  }
  EXPECT_GE(covered, 100);
}

}  // namespace
}  // namespace fovea::test
