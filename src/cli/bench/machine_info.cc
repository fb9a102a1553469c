#include "cli/bench/machine_info.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fovea::cli {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of "key : value" in /proc/cpuinfo.
std::string FromProc(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string CpuName() {
  if (const std::string name = FromProc("model name"); !name.empty()) {
    // Virtual machines hide the product's number, but not which generation it is.
    const std::string family = FromProc("cpu family"), model = FromProc("model\t");
    return name +
           (family.empty() || model.empty() ? "" : " (family " + family + ", model " + model + ")");
  }
  if (const std::string part = FromProc("CPU part"); !part.empty()) {
    return "CPU implementer " + FromProc("CPU implementer") + " part " + part;
  }
  return "unknown";
}

int UsableCores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<Cache> CachesFromSysfs() {
  std::vector<Cache> caches;
  for (int index = 0; index < 16; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    Cache cache;
    long long kib = 0;
    if (std::sscanf(FirstLine(folder + "level").c_str(), "%d", &cache.level) != 1) break;
    if (std::sscanf(FirstLine(folder + "size").c_str(), "%lldK", &kib) != 1) continue;
    cache.kind = FirstLine(folder + "type");
    std::transform(cache.kind.begin(), cache.kind.end(), cache.kind.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    cache.bytes = int64_t{kib} * 1024;
    caches.push_back(cache);
  }
  return caches;
}

// Leaf 4 of Intel, leaf 0x8000001d of AMD: the same layout. For containers that hide sysfs.
std::vector<Cache> CachesFromCpuid() {
  std::vector<Cache> caches;
#if defined(__x86_64__)
  for (const unsigned leaf : {4u, 0x8000001du}) {
    for (unsigned index = 0; index < 16 && caches.size() < 16; ++index) {
      unsigned a, b, c, d;
      if (!__get_cpuid_count(leaf, index, &a, &b, &c, &d) || (a & 31) == 0) break;
      const unsigned type = a & 31;
      const int64_t ways = int64_t{b >> 22} + 1, partitions = int64_t{b >> 12 & 1023} + 1,
                    line = int64_t{b & 4095} + 1;
      caches.push_back({static_cast<int>(a >> 5 & 7),
                        type == 1   ? "data"
                        : type == 2 ? "instruction"
                                    : "unified",
                        ways * partitions * line * (int64_t{c} + 1)});
    }
    if (!caches.empty()) break;
  }
#endif
  return caches;
}

}  // namespace

MachineInfo GetMachineInfo() {
  MachineInfo info;
  info.cpu = CpuName();
  info.cores = UsableCores();
  info.caches = CachesFromSysfs();
  if (info.caches.empty()) info.caches = CachesFromCpuid();
  return info;
}

std::string CompilerName() {
#if defined(__clang__)
  return "Clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__) + "." +
         std::to_string(__clang_patchlevel__);
#elif defined(__GNUC__)
  return "GCC " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__) + "." +
         std::to_string(__GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::string ToBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < sizeof(kUnits) / sizeof(kUnits[0])) bytes /= 1024, ++unit;
  char text[48];
  std::snprintf(text, sizeof(text), bytes == std::floor(bytes) ? "%.0f %s" : "%.1f %s", bytes,
                kUnits[unit]);
  return text;
}

}  // namespace fovea::cli
