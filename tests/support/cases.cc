#include "support/cases.h"

#include <map>

namespace fovea::test {

std::vector<CaseId> CasesOf(const std::string& suite,
                            const std::function<bool(const Suite& suite, size_t index)>& select) {
  static std::map<std::string, std::shared_ptr<const Suite>> opened;
  std::shared_ptr<const Suite>& contents = opened[suite];
  if (contents == nullptr)
    contents =
        std::make_shared<const Suite>(std::string(FOVEA_TEST_DATA) + "/conformance/" + suite);

  std::vector<CaseId> cases;
  for (size_t index = 0; index < contents->size(); ++index) {
    if (select(*contents, index)) cases.push_back({contents, index});
  }
  return cases;
}

}  // namespace fovea::test
