// Workloads of the benchmarks: their arithmetic, their names, their tensors.
#include "bench/workload.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/roofline.h"

namespace fovea::bench {
namespace {

Workload Parsed(const std::string& text) {
  Workload workload;
  std::string error;
  EXPECT_TRUE(ParseWorkload(text, &workload, &error)) << error;
  return workload;
}

TEST(WorkloadTest, CountsVisiblePairs) {
  EXPECT_EQ(Parsed("1,2,3x5,8").Pairs(), 2 * 15);
  EXPECT_EQ(Parsed("1,2,3x5,8,causal").Pairs(), 2 * (3 + 4 + 5));
  EXPECT_EQ(Parsed("1,1,5x3,8,causal").Pairs(), 1 + 2 + 3);  // the first two queries see nothing
  EXPECT_EQ(Parsed("1,1,2,8,4").Flops(), 2 * 4 * (8 + 4));
  EXPECT_EQ(Parsed("P1").Flops(), 4.0 * 12 * 512 * 512 * 64);
  EXPECT_EQ(Parsed("D1").KvBytes(), 8.0 * 4096 * 256 * 4);
}

TEST(WorkloadTest, ParsesCustomShapes) {
  const Workload w = Parsed("2,8/2,16x32,64,48,causal");
  EXPECT_EQ(w.B, 2);
  EXPECT_EQ(w.Hq, 8);
  EXPECT_EQ(w.Hkv, 2);
  EXPECT_EQ(w.Tq, 16);
  EXPECT_EQ(w.Tk, 32);
  EXPECT_EQ(w.dk, 64);
  EXPECT_EQ(w.dv, 48);
  EXPECT_TRUE(w.causal);
}

TEST(WorkloadTest, RefusesOtherText) {
  for (const char* text : {"", "P0", "1,2,3", "1,2,3,4,5,6", "0,1,1,1", "1,0,1,1", "1,2/0,1,1", "1,1,1x2x3,1", "1,1,-1,1", "1,1,1,1,casual",
                           "a,b,c,d", "1,3/2,1,1", "99999999,1,1,1"}) {
    Workload workload;
    std::string error;
    EXPECT_FALSE(ParseWorkload(text, &workload, &error)) << text;
    EXPECT_FALSE(error.empty());
  }
}

TEST(WorkloadTest, TensorsAreNormalAndRepeatable) {
  std::vector<float> values(40000), again(40000);
  FillNormal(values.data(), values.size(), 5);
  FillNormal(again.data(), again.size(), 5);
  EXPECT_EQ(values, again);
  double sum = 0, squares = 0;
  for (const float x : values) sum += x, squares += x * x;
  EXPECT_NEAR(sum / 40000, 0, 0.03);  // 6 standard errors
  EXPECT_NEAR(squares / 40000, 1, 0.05);
}

TEST(WorkloadTest, DecodeRotatesOverCopies) {
  const Workload prefill = Parsed("1,1,32,8"), decode = Parsed("1,8,1x65536,128");
  EXPECT_FALSE(prefill.IsDecode());
  EXPECT_TRUE(decode.IsDecode());
  EXPECT_EQ(WorkloadTensors(prefill, 1).copies(), 1);
  const WorkloadTensors tensors(decode, 1);
  ASSERT_TRUE(tensors.ok());
  EXPECT_GE(tensors.kv_bytes(), StreamBytes());
  if (tensors.copies() > 1) {
    EXPECT_NE(tensors.At(0).k.data, tensors.At(1).k.data);
  }
  EXPECT_EQ(tensors.At(0).k.data, tensors.At(tensors.copies()).k.data);
}

}  // namespace
}  // namespace fovea::bench
