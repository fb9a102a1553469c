// How many CPUs this process may use.
#ifndef FOVEA_PYTHON_CPUS_H_
#define FOVEA_PYTHON_CPUS_H_

#include <string>

namespace fovea::python {

// The CPUs that the scheduler may give to this process (its affinity), and no more than its control
// groups let it use: a quota of 1.5 CPUs counts as 2. 1 or more.
int UsableCpus();

// The CPUs' time that control groups leave to this process for each second: the least quota of its
// group and of those around it, of version 1 (cpu.cfs_quota_us) or 2 (cpu.max). 0 where there is
// none. `root` goes before the paths of proc and of the groups: empty, or a test's folder.
double CpuQuota(const std::string& root);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_CPUS_H_
