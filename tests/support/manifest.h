// Conformance suites and captured problems from tests/data as ready problems. The formats are
// described in tests/data/conformance/README.md and tests/data/real/README.md. Knows nothing of how
// a case is computed. Test data is trusted: anything wrong with it throws.
#ifndef FOVEA_TESTS_SUPPORT_MANIFEST_H_
#define FOVEA_TESTS_SUPPORT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/merge.h"

namespace fovea::test {

// A view and the memory that it looks at. The buffer has exactly the bytes that the manifest gives
// it, so that sanitizers see a read outside.
struct Tensor {
  std::shared_ptr<void> memory;
  TensorView view;
};

struct Tolerance {
  double atol = 0, rtol = 0;
};

struct Expectation {
  Tensor tensor;  // `out` in the axes [B, Hq, Tq, dv], whatever the layout of the case
  Tolerance tolerance;
};

struct Case {
  std::string suite, name, about;

  // Views into `inputs`; the outputs are absent. Axes are [B, H, T, d] whatever the layout: a
  // token-major case has permuted strides.
  Problem problem;
  bool token_major = false;  // outputs belong into [B, T, H, d] memory too
  TensorView dout;           // of the backward suite, [B, Hq, Tq, dv]

  // Of the merge suite: the parts, views into `inputs`.
  std::vector<PartialState> parts;

  std::map<std::string, Expectation> expect;  // "out", "lse", "weights", "dq", …
  // why the call must be refused; empty for a valid case
  std::string error;
  // why this machine cannot hold the case; empty nearly always
  std::string unavailable;

  std::map<std::string, Tensor> inputs;
};

// A folder with manifest.json and tensors.safetensors, opened once; cases are built when asked for.
class Suite {
 public:
  explicit Suite(const std::string& folder);
  ~Suite();
  Suite(Suite&&) noexcept;

  size_t size() const;
  std::string CaseName(size_t index) const;
  bool ExpectsError(size_t index) const;
  // What the case is about and the library does not have, as "dropout, key_indices"; empty for a
  // case that can be loaded. Sums of weights, which the library does not have either, are not among
  // them: they stand beside out and lse, which are expected without them.
  std::string Needs(size_t index) const;
  Case Load(size_t index) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Problems captured inside real models: out and lse are expected without a tolerance (the
// contract's is to be used).
std::vector<std::string> RealProblems(const std::string& folder);
Case LoadRealProblem(const std::string& folder, const std::string& name);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_MANIFEST_H_
