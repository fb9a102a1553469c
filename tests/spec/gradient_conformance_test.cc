// Gradients against every case of tests/data/conformance that has some, on every usable target.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fovea/gradient.h"
#include "fovea/target.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/manifest.h"

namespace fovea::test {
namespace {

class GradientConformance : public ::testing::TestWithParam<CaseId> {};

// Dense tensors of floats, by name.
class Floats {
 public:
  MutableTensorView Make(const char* name, const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (const int64_t n : shape) size *= n;
    std::vector<float>& memory = memory_[name];
    memory.assign(static_cast<size_t>(size) + 1, -77.0f);
    MutableTensorView view;
    view.data = memory.data();
    view.dtype = DType::kF32;
    view.rank = static_cast<int32_t>(shape.size());
    int64_t step = sizeof(float);
    for (int a = view.rank - 1; a >= 0; --a) {
      view.shape[a] = shape[static_cast<size_t>(a)];
      view.stride[a] = step;
      step *= view.shape[a];
    }
    return view;
  }
  std::vector<double> Get(const std::string& name) const {
    const std::vector<float>& memory = memory_.at(name);
    return {memory.begin(), memory.end() - 1};
  }

 private:
  std::map<std::string, std::vector<float>> memory_;
};

std::vector<int64_t> ShapeOf(const TensorView& view) {
  return {view.shape, view.shape + view.rank};
}

TEST_P(GradientConformance, MatchesTheStoredAnswer) {
  const Case c = GetParam().Load();
  if (!c.unavailable.empty()) GTEST_SKIP() << c.unavailable;
  SCOPED_TRACE(c.about);
  const TensorView &q = c.problem.q, &k = c.problem.k, &v = c.problem.v;
  for (const Target target : UsableTargets()) {
    SCOPED_TRACE(Name(target));
    Floats memory;
    GradientProblem g;
    g.forward = c.problem;
    g.forward.out = memory.Make("out", {q.shape[0], q.shape[1], q.shape[2], v.shape[3]});
    g.forward.lse = memory.Make("lse", {q.shape[0], q.shape[1], q.shape[2]});
    g.dout = c.dout;
    g.dq = memory.Make("dq", ShapeOf(q));
    g.dk = memory.Make("dk", ShapeOf(k));
    g.dv = memory.Make("dv", ShapeOf(v));
    TensorView& bias = g.forward.score.bias;
    if (c.expect.count("dbias") != 0) {
      // Expected of every pair: a bias with all axes, along which one that broadcasts has stride 0.
      const int64_t full[4] = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
      TensorView expanded = bias;
      expanded.rank = 4;
      for (int a = 0; a < 4; ++a) {
        const int axis = a - (4 - bias.rank);
        const bool repeats = axis < 0 || bias.shape[axis] == 1;
        expanded.stride[a] = repeats ? 0 : bias.stride[axis];
        expanded.shape[a] = full[a];
      }
      bias = expanded;
      g.dbias = memory.Make("dbias", ShapeOf(bias));
    }
    if (c.expect.count("dsinks") != 0)
      g.dsinks = memory.Make("dsinks", ShapeOf(c.problem.score.sinks));
    PlanOptions options;
    options.target = target;
    Status status = Attention(g.forward, options, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    status = Gradients(g, options, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const auto& [name, expectation] : c.expect)
      EXPECT_TRUE(Near(name, memory.Get(name), expectation));
  }
}

INSTANTIATE_TEST_SUITE_P(Backward, GradientConformance,
                         ::testing::ValuesIn(CasesOf("backward", IsValid)), CaseTestName);

}  // namespace
}  // namespace fovea::test
