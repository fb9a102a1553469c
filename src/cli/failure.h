// How a command of the program gives up: one line for people. main() prints it and exits with
// kFailed.
#ifndef FOVEA_CLI_FAILURE_H_
#define FOVEA_CLI_FAILURE_H_

#include <stdexcept>
#include <string>

#include "fovea/status.h"

namespace fovea::cli {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void Check(const Status& status) {
  if (!status.ok()) throw Failure(status.message());
}

// Exit codes.
constexpr int kFine = 0;
constexpr int kWrong = 1;   // the command ran, and a result is not within its bound
constexpr int kFailed = 2;  // bad arguments, files or system

}  // namespace fovea::cli

#endif  // FOVEA_CLI_FAILURE_H_
