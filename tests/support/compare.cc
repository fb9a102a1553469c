#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/element.h"
#include "reference/reference.h"
#include "support/owned_tensor.h"

namespace fovea::test {
namespace {

// How far `got` is from `want` as a multiple of what is allowed; above 1 is a failure.
double Excess(double got, double want, double atol, double rtol) {
  const double rounded = static_cast<float>(got);
  if ((std::isnan(rounded) && std::isnan(want)) || rounded == want) return 0;
  if (!std::isfinite(rounded) || !std::isfinite(want))
    return std::numeric_limits<double>::infinity();
  return std::abs(got - want) / (atol + rtol * std::abs(want));
}

std::string Index(size_t n, const std::vector<int64_t>& shape) {
  std::string text;
  size_t rest = n;
  for (size_t a = shape.size(); a-- > 0;) {
    text = std::to_string(rest % static_cast<size_t>(shape[a])) + (text.empty() ? "" : ", ") + text;
    rest /= static_cast<size_t>(shape[a]);
  }
  return "[" + text + "]";
}

std::vector<int64_t> ShapeOf(const TensorView& view) {
  return {view.shape, view.shape + view.rank};
}

}  // namespace

::testing::AssertionResult Near(const std::string& name, const std::vector<double>& got,
                                const std::vector<double>& want, const std::vector<int64_t>& shape,
                                const std::vector<double>& atol, double rtol) {
  if (got.size() != want.size() || atol.size() != want.size()) {
    return ::testing::AssertionFailure()
           << name << ": " << got.size() << " elements, expected " << want.size();
  }
  size_t worst = 0, failures = 0;
  double largest = 0;
  for (size_t n = 0; n < want.size(); ++n) {
    const double excess = Excess(got[n], want[n], atol[n], rtol);
    if (excess > 1) ++failures;
    if (excess > largest) {
      largest = excess;
      worst = n;
    }
  }
  if (failures == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << name << Index(worst, shape) << " = " << got[worst] << ", expected " << want[worst]
         << " ± " << atol[worst] + rtol * std::abs(want[worst]) << " (" << largest
         << " × the tolerance; " << failures << " of " << want.size() << " elements fail)";
}

::testing::AssertionResult Near(const std::string& name, const std::vector<double>& got,
                                const Expectation& expectation) {
  const std::vector<double> want = reference::ReadAll(expectation.tensor.view);
  const std::vector<double> atol(want.size(), expectation.tolerance.atol);
  return Near(name, got, want, ShapeOf(expectation.tensor.view), atol, expectation.tolerance.rtol);
}

::testing::AssertionResult Near(const std::string& name, const TensorView& got,
                                const Expectation& expectation) {
  if (ShapeOf(got) != ShapeOf(expectation.tensor.view))
    return ::testing::AssertionFailure() << name << ": shapes differ";
  return Near(name, reference::ReadAll(got), expectation);
}

Outputs::Outputs(Problem* problem, bool token_major, bool with_weights, DType out_type) {
  const int64_t B = problem->q.shape[0], Hq = problem->q.shape[1], Tq = problem->q.shape[2],
                Tk = reference::SizesOf(*problem).Tk;
  const int64_t dv = problem->v.shape[3];
  const int64_t element = SizeOf(out_type);
  out_.resize(static_cast<size_t>(B * Hq * Tq * dv * element));
  for (size_t n = 0; n < out_.size(); n += static_cast<size_t>(element))
    EncodeElement(out_type, static_cast<double>(kUntouched), &out_[n]);
  void* const out = out_.data();
  lse_.assign(static_cast<size_t>(B * Hq * Tq), kUntouched);
  problem->out = token_major ? SwapAxes(View(out, out_type, {B, Tq, Hq, dv}), 1, 2)
                             : View(out, out_type, {B, Hq, Tq, dv});
  problem->lse = View(lse_.data(), {B, Hq, Tq});
  problem->weights = MutableTensorView();
  if (with_weights) {
    weights_.assign(static_cast<size_t>(B * Hq * Tq * Tk), kUntouched);
    problem->weights = View(weights_.data(), {B, Hq, Tq, Tk});
  }
  out_view_ = problem->out;
  lse_view_ = problem->lse;
  weights_view_ = problem->weights;
}

bool Outputs::Untouched() const {
  const auto untouched = [](const TensorView& view) {
    const std::vector<double> values = reference::ReadAll(view);
    const double fill = reference::Rounded(view.dtype, static_cast<double>(kUntouched));
    return std::all_of(values.begin(), values.end(), [&](double x) { return x == fill; });
  };
  return untouched(out_view_) && untouched(lse_view_) && untouched(weights_view_);
}

bool Outputs::SameBits(const Outputs& other) const {
  const auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
  };
  return same(out_, other.out_) && same(lse_, other.lse_) && same(weights_, other.weights_);
}

}  // namespace fovea::test
