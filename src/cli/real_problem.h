// Attention problems captured in real models, with the results that were stored with them
// (tests/data/real).
#ifndef FOVEA_CLI_REAL_PROBLEM_H_
#define FOVEA_CLI_REAL_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/files/tensor_file.h"
#include "fovea/attention.h"

namespace fovea::cli {

struct RealProblem {
  std::string name;
  std::string source;                            // the model
  std::vector<std::vector<std::string>> tokens;  // [B][kv_length], or empty
  files::FileTensor q, k, v, out, lse;           // out and lse: the stored results
  std::vector<int32_t> kv_lengths;               // [B], or empty
  Score score;                                   // scale and causal

  Problem View() const;  // without outputs; views the members
};

// All problems that `folder`/manifest.json lists, in its order. Throws a Failure.
std::vector<std::unique_ptr<RealProblem>> LoadRealProblems(const std::string& folder);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_REAL_PROBLEM_H_
