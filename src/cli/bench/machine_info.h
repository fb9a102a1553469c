// What the operating system says about the processor.
#ifndef FOVEA_CLI_BENCH_MACHINE_INFO_H_
#define FOVEA_CLI_BENCH_MACHINE_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fovea::cli {

struct Cache {
  int level = 0;
  std::string kind;  // "data", "instruction", "unified"
  int64_t bytes = 0;
};

struct MachineInfo {
  std::string cpu;            // model name; "unknown" where it is not told
  int cores = 0;              // that this process may use
  std::vector<Cache> caches;  // of the first core; empty where they are not told
};
MachineInfo GetMachineInfo();

// Of the program: "GCC 12.2.0", "Clang 19.1.7".
std::string CompilerName();

// "48 KiB", "2 MiB", "4 GiB"; one decimal where it is not whole.
std::string ToBytes(double bytes);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_BENCH_MACHINE_INFO_H_
