// `fovea bench` as its users meet it: a line for each measurement, with all its fields.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "cli/program.h"

namespace fovea {
namespace {

TEST(CliTest, BenchPrintsJsonLinesWithAllFields) {
  if (FOVEA_PROGRAM_IS_EMULATED)
    GTEST_SKIP() << "an emulator takes minutes to read memory beyond the caches";
  const Outcome outcome = Fovea(
      "bench --workloads '1,2,64,32,causal;1,4/2,1x256,32' --isa best --seconds 0.01 --json "
      "--baseline");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2u) << outcome.out;
  for (const std::string& text : lines) {
    const nlohmann::json line = nlohmann::json::parse(text);
    for (const char* field : {"workload", "type", "isa", "engine", "threads", "median_s", "min_s",
                              "gflops", "peak_gflops", "share_of_peak", "kv_gbps", "read_gbps",
                              "max_err", "standard_s", "matrix_bytes", "workspace_bytes"}) {
      EXPECT_TRUE(line.contains(field)) << field;
    }
    EXPECT_TRUE(line["ok"].get<bool>());
    EXPECT_GT(line["median_s"].get<double>(), 0);
  }
  EXPECT_EQ(nlohmann::json::parse(lines[0])["flops"].get<double>(), 4.0 * 2 * (64 * 65 / 2) * 32);
  EXPECT_NE(outcome.error.find("[1/"), std::string::npos) << "no progress";
}

TEST(CliTest, BenchTakesTypes) {
  if (FOVEA_PROGRAM_IS_EMULATED)
    GTEST_SKIP() << "an emulator takes minutes to read memory beyond the caches";
  const Outcome outcome = Fovea(
      "bench --workloads '1,2,64,32,causal;1,4/2,1x256,32' --types f32,bf16,f16 --seconds 0.001 "
      "--json");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  const std::vector<std::string> types = {"f32", "bf16", "f16"}, endings = {"", "+bf16", "+f16"};
  for (size_t n = 0; n < lines.size(); ++n) {
    const nlohmann::json line = nlohmann::json::parse(lines[n]);
    EXPECT_EQ(line["type"], types[n % 3]);
    EXPECT_EQ(line["workload"], (n < 3 ? "1,2,64,32,causal" : "1,4/2,1x256,32") + endings[n % 3]);
    EXPECT_EQ(line["kv_bytes"].get<double>(),
              2 * 2 * (n < 3 ? 64 : 256) * 32 * (n % 3 == 0 ? 4 : 2));
    EXPECT_TRUE(line["ok"].get<bool>());
  }
}

TEST(CliTest, BenchComparesWorkloadsWithTheirBases) {
  if (FOVEA_PROGRAM_IS_EMULATED)
    GTEST_SKIP() << "an emulator takes minutes to read memory beyond the caches";
  const Outcome outcome = Fovea(
      "bench --compare '1,2,64,32,causal+softcap;1,2,64,32,causal+nan;1,2,64,16' --seconds 0.001 "
      "--json");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const std::vector<std::string> lines = Lines(outcome.out);
  const std::string shape = "1,2,64,32,causal";
  const std::vector<std::pair<std::string, std::string>> expected = {
      {shape, shape},
      {shape + "+softcap", shape},
      {shape + "+padmask", shape + "+padmask"},
      {shape + "+nan", shape + "+padmask"},
      {"1,2,64,16", "1,2,64,16"}};
  ASSERT_EQ(lines.size(), expected.size()) << outcome.out;
  for (size_t n = 0; n < lines.size(); ++n) {
    const nlohmann::json line = nlohmann::json::parse(lines[n]);
    EXPECT_EQ(line["workload"], expected[n].first);
    EXPECT_EQ(line["base"], expected[n].second);
    EXPECT_TRUE(line["ok"].get<bool>());
    EXPECT_TRUE(line.contains("exp_geps") && line.contains("share_of_peak"));
    const double cost = line["relative_cost"].get<double>();
    EXPECT_GT(cost, 0);
    EXPECT_EQ(line["relative_share"].get<double>(), 1 / cost);
    EXPECT_LE(line["relative_cost_quartiles"][0].get<double>(), cost);
    EXPECT_GE(line["relative_cost_quartiles"][1].get<double>(), cost);
    EXPECT_NEAR(line["overhead"].get<double>(), cost - 1, 1e-12) << "the same pairs as the base";
    EXPECT_TRUE(cost == 1 || expected[n].first != expected[n].second)
        << "a base in units of itself: " << cost;
  }
}

TEST(CliTest, BenchComparesAllWithOneBase) {
  if (FOVEA_PROGRAM_IS_EMULATED)
    GTEST_SKIP() << "an emulator takes minutes to read memory beyond the caches";
  const std::string compare =
      "bench --compare '1,2,64,32+trimask;1,2,32,32' --base 1,2,64,32 --seconds 0.001";
  const Outcome json = Fovea(compare + " --json");
  ASSERT_EQ(json.code, 0) << json.error;
  const std::vector<std::string> lines = Lines(json.out);
  ASSERT_EQ(lines.size(), 3u) << json.out;
  for (const std::string& text : lines) EXPECT_EQ(nlohmann::json::parse(text)["base"], "1,2,64,32");
  const nlohmann::json masked = nlohmann::json::parse(lines[1]),
                       shorter = nlohmann::json::parse(lines[2]);
  // The mask leaves 65 of 128 pairs, which cost the more each.
  EXPECT_NEAR(masked["relative_cost"].get<double>() * 65 / 128,
              1 + masked["overhead"].get<double>(), 1e-9);
  EXPECT_TRUE(shorter["overhead"].is_null()) << "not of the base's shape";

  const Outcome table = Fovea(compare);
  EXPECT_EQ(table.code, 0) << table.error;
  for (const char* part : {"of base's", "overhead", "1,2,64,32+trimask", "+0.0 ±0.0%"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " is missing in " << table.out;
  }
}

}  // namespace
}  // namespace fovea
