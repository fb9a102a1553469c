// The cases of a suite in tests/data/conformance, whose README describes the format. What these
// suites do not have is not read.
#ifndef FOVEA_TESTS_SAME_BITS_SUITE_H_
#define FOVEA_TESTS_SAME_BITS_SUITE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "problem.h"

namespace fovea::same_bits {

// Anything wrong with the data throws.
class Suite {
 public:
  explicit Suite(const std::string& name);
  ~Suite();

  int64_t size() const;
  std::string NameOf(int64_t index) const;
  Case Load(int64_t index) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_SUITE_H_
