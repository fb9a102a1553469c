#include "cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fovea::python {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (std::istringstream stream(text); std::getline(stream, part, separator);)
    parts.push_back(part);
  return parts;
}

bool Contains(const std::vector<std::string>& list, const char* item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// A hierarchy of groups as it is mounted: the group `root` of the whole machine lies at `point`.
struct Mount {
  std::string root, point;
};

// That of version 2, or version 1's of the controller cpu; empty where there is none. proc(5): "36
// 35 98:0 /root /point options [fields…] - type source options".
Mount FindMount(const std::string& root, bool version2) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = Split(line.substr(0, dash), ' ');
    const std::vector<std::string> after = Split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    if (version2 ? after[0] == "cgroup2"
                 : after[0] == "cgroup" && Contains(Split(after[2], ','), "cpu"))
      return {before[3], before[4]};
  }
  return {};
}

// The path of this process's group in that hierarchy: "0::/path" or "4:cpu,cpuacct:/path".
std::string FindGroup(const std::string& root, bool version2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? line.compare(0, 3, "0::") == 0 : Contains(Split(controllers, ','), "cpu"))
      return line.substr(second + 1);
  }
  return "";
}

// The quota of the group in that folder alone; 0 where it has none.
double QuotaOf(const std::string& folder, bool version2) {
  double quota = 0, period = 0;
  if (version2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" is no number: quota 0
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // −1: none
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// Whatever group a process is in, those around it bind it as well.
double LeastQuota(const std::string& root, bool version2) {
  const Mount mount = FindMount(root, version2);
  if (mount.point.empty()) return 0;
  std::string group = FindGroup(root, version2);
  // In a container the mount may begin at the container's own group.
  if (mount.root != "/")
    group =
        group.compare(0, mount.root.size(), mount.root) == 0 ? group.substr(mount.root.size()) : "";
  double least = 0;
  for (;;) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    const double quota = QuotaOf(root + mount.point + group, version2);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
    if (group.empty()) return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

int CpusOfAffinity() {
#if defined(__linux__)
  // Machines with more CPUs than a cpu_set_t has bits need a larger set.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

double CpuQuota(const std::string& root) {
  const double one = LeastQuota(root, false), two = LeastQuota(root, true);
  return one > 0 && two > 0 ? std::min(one, two) : std::max(one, two);
}

int UsableCpus() {
  const int cpus = CpusOfAffinity();
  const double quota = CpuQuota("");
  return quota > 0 ? std::min(cpus, std::max(1, static_cast<int>(std::ceil(std::min(quota, 1e6)))))
                   : cpus;
}

}  // namespace fovea::python
