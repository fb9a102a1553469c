// The program as a process: what it prints and how it ends.
#ifndef FOVEA_TESTS_CLI_PROGRAM_H_
#define FOVEA_TESTS_CLI_PROGRAM_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/temporary_folder.h"

namespace fovea {

struct Outcome {
  int code = -1;  // −1: ended by a signal
  std::string out, error;
};

// Runs `fovea ARGUMENTS` in a shell. `environment` stands before it.
inline Outcome Fovea(const std::string& arguments, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string command = environment + " " FOVEA_PROGRAM " " + arguments + " > " +
                              folder.File("out") + " 2> " + folder.File("error") + " < /dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, folder.Read("out"), folder.Read("error")};
}

// One line that begins with the program's name, exit code 2, nothing else printed.
inline void ExpectFailure(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.error;
  EXPECT_EQ(outcome.error.compare(0, 7, "fovea: "), 0) << outcome.error;
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  EXPECT_NE(outcome.error.find(part), std::string::npos) << outcome.error << "lacks: " << part;
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace fovea

#endif  // FOVEA_TESTS_CLI_PROGRAM_H_
