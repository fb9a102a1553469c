// fovea info: the machine, the library, and what attention costs in memory with and without a
// stored score matrix.
#include <cstdio>

#include "cli/bench/machine_info.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "fovea/fovea.h"

namespace fovea::cli {
namespace {

std::string Names(const TargetList& targets) {
  std::string names;
  for (const Target target : targets)
    names += std::string(names.empty() ? "" : ", ") + Name(target);
  return names;
}

void PrintMachine() {
  const MachineInfo machine = GetMachineInfo();
  std::printf("fovea     %s, %s%s\n", FOVEA_VERSION, CompilerName().c_str(),
              FOVEA_CLI_TBB ? ", oneTBB" : ", without oneTBB");
  std::printf("CPU       %s\n", machine.cpu.c_str());
  std::printf("cores     %d\n", machine.cores);
  std::printf("caches    ");
  for (size_t n = 0; n < machine.caches.size(); ++n) {
    const Cache& cache = machine.caches[n];
    std::printf("%sL%d %s %s", n > 0 ? ", " : "", cache.level, cache.kind.c_str(),
                ToBytes(static_cast<double>(cache.bytes)).c_str());
  }
  std::printf("%s\n", machine.caches.empty() ? "unknown" : "");
}

void PrintTargets() {
  std::printf("compiled  %s\n", Names(CompiledTargets()).c_str());
  std::printf("usable    %s\n", Names(UsableTargets()).c_str());
  Target active;
  Check(ActiveTarget(&active));
  std::printf("active    %s\n", Name(active));
}

void PrintMemory(const std::vector<int64_t>& sizes) {
  const int64_t B = sizes[0], H = sizes[1], T = sizes[2], d = sizes[3];
  Problem problem;
  problem.q = problem.k = problem.v =
      View(static_cast<const void*>(nullptr), DType::kF32, {B, H, T, d});
  problem.out = View(static_cast<void*>(nullptr), DType::kF32, {B, H, T, d});
  Plan plan;
  Check(Plan::Create(problem, PlanOptions(), &plan));

  const double pairs = static_cast<double>(B * H) * static_cast<double>(T) * static_cast<double>(T);
  const double elements = static_cast<double>(B * H * T) * static_cast<double>(d);
  std::printf("\nattention of B = %lld, H = %lld, T = %lld, d = %lld\n", static_cast<long long>(B),
              static_cast<long long>(H), static_cast<long long>(T), static_cast<long long>(d));
  const auto line = [](const char* what, double bytes) {
    std::printf("  %-36s %12s %22.0f B\n", what, ToBytes(bytes).c_str(), bytes);
  };
  line("Q, K, V and the output in 32 bit", 4 * elements * 4);
  line("stored score matrix in 32 bit", 4 * pairs);
  line("stored score matrix in 16 bit", 2 * pairs);
  line("Fovea's workspace, one thread", static_cast<double>(plan.WorkspaceBytes(1)));
  const int cores = GetMachineInfo().cores;
  if (cores > 1) {
    line(("Fovea's workspace, " + std::to_string(cores) + " threads").c_str(),
         static_cast<double>(plan.WorkspaceBytes(cores)));
  }
}

int RunInfo(const Args& args) {
  std::vector<int64_t> sizes;
  if (args.Has("--memory")) {
    sizes = args.Integers("--memory", "", 1, int64_t{1} << 40);
    if (sizes.size() != 4)
      throw Failure("--memory = '" + args.Text("--memory") + "', expected B,H,T,d");
    // Beyond 2^56 elements, sizes in bytes would not be exact, nor mean anything.
    double elements = 1;
    for (const int64_t size : sizes) elements *= static_cast<double>(size);
    if (elements > 72057594037927936.0)
      throw Failure("--memory = '" + args.Text("--memory") + "' is more than 2^56 elements");
  }
  PrintMachine();
  PrintTargets();
  if (!sizes.empty()) PrintMemory(sizes);
  return kFine;
}

}  // namespace

Command InfoCommand() {
  return {"info",
          "Shows the CPU, its caches, and the instruction sets compiled, usable and active.",
          {{"--memory", "B,H,T,d", "memory of the stored score matrix beside Fovea's workspace"}},
          RunInfo};
}

}  // namespace fovea::cli
