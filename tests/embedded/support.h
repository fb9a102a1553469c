// What the tests of the header-only edition share: its instance under test, problems of the library
// as its own, and how results are held against the double reference and the library.
#ifndef FOVEA_TESTS_EMBEDDED_SUPPORT_H_
#define FOVEA_TESTS_EMBEDDED_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "embedded/instance.h"
#include "fovea/attention.h"
#include "fovea/embedded/problem.h"
#include "reference/reference.h"
#include "support/random.h"
#include "support/random_problem.h"

namespace fovea::test {

using embedded::Error;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline const EmbeddedInstance& Instance() { return kEmbeddedUnderTest; }

// A call of the instance.
inline Error Attention(const EmbeddedInstance& instance, const embedded::Problem& p, void* scratch,
                       size_t scratch_bytes) {
  return static_cast<Error>(instance.attention(&p, scratch, scratch_bytes));
}

// Whether this CPU can run the instance.
bool IsUsable();

class Embedded : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsUsable()) GTEST_SKIP() << "this CPU cannot run " << Instance().isa;
  }
};

// A problem of the library as one of the header-only edition.
struct Converted {
  embedded::Problem problem;
  std::vector<int32_t> q_lengths, kv_lengths;
  std::vector<embedded::Ring> rings;
  std::vector<int64_t> offsets;
  std::vector<float> head_scales, bias_scales;
};
std::unique_ptr<Converted> Convert(const Problem& p);

// Whether the header-only edition covers it.
bool IsCovered(const Problem& p);

template <class To, class From>
To TensorOf(const From& view) {
  To tensor;
  tensor.data = view.data;
  tensor.type = view.dtype == DType::kF16 ? embedded::Type::kF16 : embedded::Type::kF32;
  for (int a = 0; a < view.rank; ++a) tensor.stride[a] = view.stride[a];
  return tensor;
}

// With scratch of exactly the bytes asked for, full of NaN, behind or before which no memory is
// accessible.
enum class Scratch { kFast, kLeast };
Error Compute(const embedded::Problem& p, Scratch kind = Scratch::kFast,
              Placement placement = Placement::kBeforeGuard);

// Whether the library's results and those of p lie within both their tolerances of one another,
// with the same NaN and infinities.
testing::AssertionResult AgreesWithLibrary(const Problem& p, const std::vector<double>& library,
                                           const reference::ForwardResult& expected);

// Against the reference with the contract's bounds, and the library.
void ExpectMatches(RandomProblem& p);

// Any of what the edition covers.
ProblemSpec RandomSpec(Random& random);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_EMBEDDED_SUPPORT_H_
