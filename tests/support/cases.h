// The cases of the suites in tests/data/conformance as parameters of GoogleTest.
#ifndef FOVEA_TESTS_SUPPORT_CASES_H_
#define FOVEA_TESTS_SUPPORT_CASES_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/manifest.h"

namespace fovea::test {

// One case, not yet loaded.
struct CaseId {
  std::shared_ptr<const Suite> suite;
  size_t index = 0;

  Case Load() const { return suite->Load(index); }
};

inline void PrintTo(const CaseId& id, std::ostream* stream) {
  *stream << id.suite->CaseName(id.index);
}

inline std::string CaseTestName(const ::testing::TestParamInfo<CaseId>& info) {
  return info.param.suite->CaseName(info.param.index);
}

// Cases that are computed, and those that must be refused.
inline bool IsValid(const Suite& suite, size_t index) {
  return !suite.ExpectsError(index) && suite.Needs(index).empty();
}
inline bool IsRefused(const Suite& suite, size_t index) {
  return suite.ExpectsError(index) && suite.Needs(index).empty();
}

// The cases of a suite that `select` accepts. Each suite is read once per process.
std::vector<CaseId> CasesOf(const std::string& suite,
                            const std::function<bool(const Suite& suite, size_t index)>& select);

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_CASES_H_
