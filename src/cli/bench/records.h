// bench/records/: JSON lines of benchmarks, stamped with where and when they ran, a file for each
// CPU model.
#ifndef FOVEA_CLI_BENCH_RECORDS_H_
#define FOVEA_CLI_BENCH_RECORDS_H_

#include <nlohmann/json.hpp>
#include <string>

namespace fovea::cli {

class Records {
 public:
  // Finds the file of this machine; throws a Failure if lines cannot be appended to it.
  Records();
  const std::string& path() const { return path_; }
  void Append(const nlohmann::ordered_json& line) const;

 private:
  std::string path_;
  nlohmann::ordered_json stamp_;  // date, cpu, cores, compiler, version, revision
};

}  // namespace fovea::cli

#endif  // FOVEA_CLI_BENCH_RECORDS_H_
