// Attention problems captured inside real models, against the stored answers of float64 arithmetic,
// on every target and engine.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/compare.h"
#include "support/configurations.h"
#include "support/manifest.h"

namespace fovea::test {
namespace {

const std::string& Folder() {
  static const std::string folder = std::string(FOVEA_TEST_DATA) + "/real";
  return folder;
}

class Real : public ::testing::TestWithParam<std::string> {
 protected:
  // Computing the reference takes longer than all configurations together: once per problem.
  void SetUp() override {
    static std::map<std::string, reference::ForwardResult> computed;
    case_ = LoadRealProblem(Folder(), GetParam());
    auto found = computed.find(GetParam());
    if (found == computed.end())
      found = computed.emplace(GetParam(), reference::Forward(case_.problem)).first;
    want_ = &found->second;
  }

  Case case_;
  const reference::ForwardResult* want_ = nullptr;
};

TEST_P(Real, ReferenceGivesTheStoredAnswer) {
  // Both are float64 arithmetic; the stored values are rounded to float.
  const auto near_stored = [&](const std::string& name, const std::vector<double>& got) {
    const TensorView& stored = case_.expect.at(name).tensor.view;
    const std::vector<double> want = reference::ReadAll(stored), atol(got.size(), 1e-6);
    return Near(name, got, want, {stored.shape, stored.shape + stored.rank}, atol, 1.2e-7);
  };
  EXPECT_TRUE(near_stored("out", want_->out));
  EXPECT_TRUE(near_stored("lse", want_->lse));
}

TEST_P(Real, EveryTargetAndEngine) {
  reference::ForwardResult stored = *want_;
  stored.out = reference::ReadAll(case_.expect.at("out").tensor.view);
  stored.lse = reference::ReadAll(case_.expect.at("lse").tensor.view);
  Problem problem = case_.problem;
  ForEachConfiguration(problem, {}, [&](const PlanOptions& configuration) {
    const Outputs outputs(&problem, case_.token_major, /*with_weights=*/true);
    const Status status = PlanAndRun(problem, configuration);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(Matches(problem, stored));
  });
}

TEST_P(Real, OneShot) {
  Problem problem = case_.problem;
  const Outputs outputs(&problem, case_.token_major, /*with_weights=*/false);
  const Status status = Attention(problem);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(Matches(problem, *want_));
}

std::string ProblemName(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Captured, Real, ::testing::ValuesIn(RealProblems(Folder())), ProblemName);

TEST(RealProblems, AreAllThere) { EXPECT_EQ(RealProblems(Folder()).size(), 6u); }

}  // namespace
}  // namespace fovea::test
