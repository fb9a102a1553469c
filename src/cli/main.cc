// The fovea program: picks the command, and turns whatever goes wrong into one line on stderr and
// an exit code.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/failure.h"

namespace fovea::cli {
namespace {

std::vector<Command> Commands() {
  return {InfoCommand(), AttendCommand(), BenchCommand(), CheckCommand(), DemoCommand()};
}

std::string Usage() {
  std::string text = "usage: fovea COMMAND [options]\n\n";
  for (const Command& command : Commands()) {
    const std::string summary = command.summary;
    text += "  " + std::string(command.name) +
            std::string(9 - std::string(command.name).size(), ' ') +
            summary.substr(0, summary.find('.') + 1) + "\n";
  }
  return text + "\nfovea COMMAND --help lists its options; fovea --version shows the version.\n";
}

bool Contains(const std::vector<std::string>& words, const std::string& word) {
  for (const std::string& w : words) {
    if (w == word) return true;
  }
  return false;
}

int RunCommand(const std::vector<std::string>& words) {
  if (words.empty()) throw Failure("no command; see fovea --help");
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::fputs(Usage().c_str(), stdout);
    return kFine;
  }
  if (words[0] == "--version") {
    std::printf("fovea %s\n", FOVEA_VERSION);
    return kFine;
  }
  for (const Command& command : Commands()) {
    if (words[0] != command.name) continue;
    const std::vector<std::string> rest(words.begin() + 1, words.end());
    if (Contains(rest, "--help") || Contains(rest, "-h")) {
      std::fputs(Help(command).c_str(), stdout);
      return kFine;
    }
    return command.run(Args(command, rest));
  }
  throw Failure("unknown command '" + words[0] + "'; see fovea --help");
}

// Names in files and arguments may hold anything; the line stays one line, and a terminal is not
// steered.
int Fail(std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  std::fprintf(stderr, "fovea: %s\n", message.c_str());
  return kFailed;
}

int Main(const std::vector<std::string>& words) {
  try {
    const int code = RunCommand(words);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return Fail("the output cannot be written");
    return code;
  } catch (const Failure& failure) {
    return Fail(failure.what());
  } catch (const std::bad_alloc&) {
    return Fail("not enough memory");
  } catch (const std::exception& exception) {
    return Fail(exception.what());
  }
}

}  // namespace
}  // namespace fovea::cli

int main(int argc, char** argv) {
  return fovea::cli::Main(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
