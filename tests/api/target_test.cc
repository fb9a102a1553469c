// Targets: their names, their lists, and that a plan has the one asked for. What the environment
// decides is in target_environment_test.cc.
#include "fovea/target.h"

#include <gtest/gtest.h>
#include <hwy/detect_targets.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "kernels/kernel.h"
#include "kernels/registry.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

constexpr Target kAll[] = {
    Target::kAuto,   Target::kEmu128, Target::kSse2,       Target::kSse4,     Target::kAvx2,
    Target::kAvx512, Target::kNeon,   Target::kAvx512Bf16, Target::kNeonBf16, Target::kAvx512Amx,
    Target::kPpc8,   Target::kPpc9,   Target::kWasm};

bool Contains(TargetList list, Target target) {
  for (Target t : list) {
    if (t == target) return true;
  }
  return false;
}

TEST(TargetTest, NamesAndParsingAreInverse) {
  const char* const names[] = {"auto",   "emu128", "sse2",        "sse4",      "avx2",
                               "avx512", "neon",   "avx512_bf16", "neon_bf16", "avx512_amx",
                               "ppc8",   "ppc9",   "wasm"};
  for (size_t n = 0; n < std::size(names); ++n) {
    EXPECT_STREQ(Name(kAll[n]), names[n]);
    Target parsed = Target::kNeon;
    const Status status = ParseTarget(names[n], &parsed);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(parsed, kAll[n]);
  }
  for (int value : {-1, 13, 1000}) EXPECT_STREQ(Name(static_cast<Target>(value)), "unknown");
}

TEST(TargetTest, ParsingErrorsListTheValidNamesAndWriteNothing) {
  for (const char* name :
       {"", " ", "avx", "AVX2x", "avx2 ", "avx-512", "unknown", "best", "sse2,avx2"}) {
    Target parsed = Target::kSse4;
    const Status status = ParseTarget(name, &parsed);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(parsed, Target::kSse4) << name;
    const std::string message = status.message();
    for (Target target : kAll) EXPECT_NE(message.find(Name(target)), std::string::npos) << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

TEST(TargetTest, NullAndEndlessNamesAreErrors) {
  Target parsed = Target::kSse4;
  EXPECT_EQ(ParseTarget(nullptr, &parsed).code(), StatusCode::kInvalidArgument);
  const std::string endless(100000, 'a');
  EXPECT_EQ(ParseTarget(endless.c_str(), &parsed).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed, Target::kSse4);
}

TEST(TargetTest, ListsAreBestFirstWithoutRepetitionAndUsableOnesAreCompiled) {
  for (const TargetList& list : {CompiledTargets(), UsableTargets()}) {
    ASSERT_GE(list.count, 1u);
    for (size_t n = 0; n < list.count; ++n) {
      EXPECT_NE(list.data[n], Target::kAuto);
      EXPECT_STRNE(Name(list.data[n]), "unknown");
      if (n > 0 && CpuPrefers(list.data[n]) &&
          (list.data == CompiledTargets().data || CpuPrefers(list.data[n - 1]))) {
        EXPECT_GT(static_cast<int>(list.data[n - 1]), static_cast<int>(list.data[n]));
      }
      for (size_t x = 0; x < n; ++x) EXPECT_NE(list.data[x], list.data[n]);
    }
  }
  // A target that this CPU runs slower than the next one stands behind that one.
  EXPECT_TRUE(CpuPrefers(UsableTargets().data[0]));
  for (Target target : UsableTargets())
    EXPECT_TRUE(Contains(CompiledTargets(), target)) << Name(target);
}

TEST(TargetTest, ListsAreInStaticStorage) {
  EXPECT_EQ(CompiledTargets().data, CompiledTargets().data);
  EXPECT_EQ(UsableTargets().data, UsableTargets().data);
  const Target* other = nullptr;
  std::thread([&] { other = UsableTargets().data; }).join();
  EXPECT_EQ(other, UsableTargets().data);
}

TEST(TargetTest, TheTestsCopyHasEveryTargetOfTheArchitecture) {
  // Highway does not trust GCC before 14 with it.
#if !HWY_BROKEN_EMU128 && !defined(FOVEA_TEST_CHOSEN_TARGETS)
  EXPECT_TRUE(Contains(UsableTargets(), Target::kEmu128)) << "portable code runs everywhere";
#endif
#if defined(FOVEA_TEST_EMU128_ALONE)
  EXPECT_EQ(CompiledTargets().count, 1u);
#elif defined(__x86_64__)
  EXPECT_TRUE(Contains(UsableTargets(), Target::kSse2)) << "part of the architecture";
  EXPECT_FALSE(Contains(CompiledTargets(), Target::kNeon));
#if !defined(FOVEA_TEST_CHOSEN_TARGETS)
  for (Target target : {Target::kSse2, Target::kSse4, Target::kAvx2, Target::kAvx512,
                        Target::kAvx512Bf16, Target::kAvx512Amx})
    EXPECT_TRUE(Contains(CompiledTargets(), target)) << Name(target);
#endif
#elif defined(__aarch64__)
  EXPECT_TRUE(Contains(UsableTargets(), Target::kNeon)) << "part of the architecture";
#endif
}

#if defined(__x86_64__) && !defined(FOVEA_TEST_EMU128_ALONE)
TEST(TargetTest, UsableIsWhatThisCpuReports) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const auto expect = [](Target target, bool runs) {
    EXPECT_EQ(Contains(UsableTargets(), target), runs && Contains(CompiledTargets(), target))
        << Name(target);
  };
  expect(Target::kSse4, __builtin_cpu_supports("sse4.2") != 0);
  expect(Target::kAvx2, avx2);
  expect(Target::kAvx512, avx512);
  const bool bf16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq") &&
      __builtin_cpu_supports("gfni") && __builtin_cpu_supports("vpclmulqdq");
  expect(Target::kAvx512Bf16, bf16);
#if defined(__linux__)
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const bool amx =
      cpu.find(" amx_tile") != std::string::npos && cpu.find(" amx_bf16") != std::string::npos;
  expect(Target::kAvx512Amx, amx);  // Linux lists what it lets processes use
#endif
}
#endif

TEST(TargetTest, APlanHasTheTargetAskedFor) {
  test::RandomProblem p(test::ProblemSpec(), 1);
  for (Target target : UsableTargets()) {
    PlanOptions options;
    options.target = target;
    Plan plan;
    ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
    EXPECT_EQ(plan.target(), target);
  }
}

TEST(TargetTest, AForcedTargetIsTheOneThatRan) {
  // The code that ran left its own HWY_TARGET in the worker's scratch, which follows the partial
  // states.
  std::vector<test::Kernel> kernels = test::Kernels();
  for (Target target : UsableTargets()) kernels.push_back({target, Engine::kTile, Product::kF32});
  for (const test::Kernel& kernel : test::BF16Kernels()) kernels.push_back(kernel);
  for (const test::Kernel& kernel : kernels) {
    for (int64_t Tk : {40, 3000}) {
      test::ProblemSpec s;
      s.Hq = 4, s.Hkv = 2, s.Tk = Tk, s.dk = s.dv = 16;
      s.q_type = s.k_type = s.v_type =
          kernel.product == Product::kBF16 ? DType::kBF16 : DType::kF32;
      test::RandomProblem p(s, 1);
      Plan plan;
      ASSERT_TRUE(Plan::Create(p.problem, test::Options(kernel), &plan).ok());
      const size_t one = plan.WorkspaceBytes(1), each = plan.WorkspaceBytes(2) - one;
      const size_t scratch = one - each - 63;  // 63: alignment, not needed here
      const test::Memory memory(one, test::Placement::kAligned, 1);
      std::memset(memory.data(), 0xFF, one);
      ASSERT_TRUE(fovea::Run(plan, p.problem, {memory.data(), memory.bytes()}).ok());
      ScratchHeader header;
      std::memcpy(&header, memory.data() + scratch, sizeof header);
      EXPECT_EQ(header.executed_target, HighwayTarget(kernel.target, kernel.product))
          << ToString(kernel) << " Tk " << Tk;
    }
  }
}

TEST(TargetTest, TargetsInOneProcessDoNotDisturbEachOther) {
  // Dispatch is per plan: plans of all targets, run in turn and at the same time, each give what
  // they gave alone.
  test::ProblemSpec s;
  s.Hq = 2, s.Tq = 33, s.Tk = 65, s.dk = 31, s.dv = 16;
  std::vector<std::vector<unsigned char>> alone;
  for (Target target : UsableTargets()) {
    test::RandomProblem p(s, 1);
    PlanOptions options;
    options.target = target;
    ASSERT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
    alone.push_back(p.out.Bytes());
  }
  std::vector<std::thread> threads;
  for (size_t n = 0; n < UsableTargets().count; ++n) {
    threads.emplace_back([&, n] {
      for (int run = 0; run < 5; ++run) {
        test::RandomProblem p(s, 1);
        PlanOptions options;
        options.target = UsableTargets().data[n];
        EXPECT_TRUE(Attention(p.problem, options, SerialExecutor()).ok());
        EXPECT_EQ(p.out.Bytes(), alone[n]) << Name(options.target);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fovea
