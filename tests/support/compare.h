// Comparison of a result with what is expected, and outputs to compute into.
#ifndef FOVEA_TESTS_SUPPORT_COMPARE_H_
#define FOVEA_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/manifest.h"

namespace fovea::test {

// Element n passes when it is NaN where `want` is NaN, equals an infinite `want`, and otherwise
// |got − want| ≤ atol[n] + rtol·|want|. `got` is rounded to float first: an overflow of float
// counts as infinite. Both are dense in C order of `shape`. The failure shows the worst element.
::testing::AssertionResult Near(const std::string& name, const std::vector<double>& got,
                                const std::vector<double>& want, const std::vector<int64_t>& shape,
                                const std::vector<double>& atol, double rtol);

// Against an expectation of a manifest, with its tolerance.
::testing::AssertionResult Near(const std::string& name, const std::vector<double>& got,
                                const Expectation& expectation);
::testing::AssertionResult Near(const std::string& name, const TensorView& got,
                                const Expectation& expectation);

// Memory for the outputs of a problem, dense in the layout of the case, f32 but for out, every
// element a number that no case produces, so that an element left out shows.
class Outputs {
 public:
  static constexpr float kUntouched = -987654.25f;  // −infinity in f16

  // Sets problem->out and lse, and weights if asked for. *this must outlive the use of the problem.
  Outputs(Problem* problem, bool token_major, bool with_weights, DType out_type = DType::kF32);
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  TensorView out() const { return out_view_; }
  TensorView lse() const { return lse_view_; }
  TensorView weights() const { return weights_view_; }
  bool Untouched() const;
  // Bit for bit, NaN included.
  bool SameBits(const Outputs& other) const;

 private:
  std::vector<char> out_;
  std::vector<float> lse_, weights_;
  TensorView out_view_, lse_view_, weights_view_;
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_COMPARE_H_
