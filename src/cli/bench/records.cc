#include "cli/bench/records.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "cli/bench/machine_info.h"
#include "cli/failure.h"
#include "cli/files/output_file.h"

namespace fovea::cli {
namespace {

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// Of the source tree that the program was built from, or empty.
std::string Revision() {
  const std::string source = FOVEA_SOURCE_DIR;
  if (source.find('\'') != std::string::npos) return "";
  std::FILE* const pipe =
      popen(("git -C '" + source + "' describe --always --dirty 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  char text[128] = {};
  std::string revision = std::fgets(text, sizeof(text), pipe) != nullptr ? text : "";
  pclose(pipe);
  while (!revision.empty() && revision.back() == '\n') revision.pop_back();
  return revision;
}

// "Intel(R) Xeon(R) Processor" → "intel-r-xeon-r-processor".
std::string FileNameOf(const std::string& cpu) {
  std::string name;
  for (const char c : cpu) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return (name.empty() ? "unknown" : name) + ".jsonl";
}

}  // namespace

Records::Records() {
  const MachineInfo machine = GetMachineInfo();
  const std::filesystem::path folder =
      std::filesystem::path(FOVEA_SOURCE_DIR) / "bench" / "records";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = (folder / FileNameOf(machine.cpu)).string();
  if (!files::CanAppend(path_))
    throw Failure(path_ + ": cannot be written: " + std::strerror(errno));
  stamp_ = {{"date", Today()},          {"cpu", machine.cpu},
            {"cores", machine.cores},   {"compiler", CompilerName()},
            {"version", FOVEA_VERSION}, {"revision", Revision()}};
}

void Records::Append(const nlohmann::ordered_json& line) const {
  nlohmann::ordered_json stamped = stamp_;
  stamped.update(line);
  if (!files::AppendLine(path_, stamped.dump()))
    throw Failure(path_ + ": cannot be written: " + std::strerror(errno));
}

}  // namespace fovea::cli
