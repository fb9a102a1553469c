// What is said about the machine: never nothing, and bytes as people write them.
#include "cli/bench/machine_info.h"

#include <gtest/gtest.h>

namespace fovea::cli {
namespace {

TEST(MachineInfoTest, KnowsTheMachine) {
  const MachineInfo info = GetMachineInfo();
  EXPECT_FALSE(info.cpu.empty());
  EXPECT_GE(info.cores, 1);
  for (const Cache& cache : info.caches) {
    EXPECT_GE(cache.level, 1);
    EXPECT_GT(cache.bytes, 0);
  }
  EXPECT_NE(CompilerName(), "unknown");
}

TEST(MachineInfoTest, WritesBytes) {
  EXPECT_EQ(ToBytes(0), "0 B");
  EXPECT_EQ(ToBytes(1023), "1023 B");
  EXPECT_EQ(ToBytes(48 * 1024), "48 KiB");
  EXPECT_EQ(ToBytes(1.5 * 1024 * 1024), "1.5 MiB");
  EXPECT_EQ(ToBytes(4294967296.0), "4 GiB");
}

}  // namespace
}  // namespace fovea::cli
