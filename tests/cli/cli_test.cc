// The program as its users meet it: every command runs, and every mistake is one line on stderr and
// exit code 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/files/tensor_file.h"
#include "cli/program.h"
#include "cli/temporary_folder.h"
#include "support/random.h"

namespace fovea {
namespace {

const std::string kReal = std::string(FOVEA_TEST_DATA) + "/real/";
const std::string kPrefill = kReal + "smollm2_prefill_layer0.safetensors";

std::string Qkv(const std::string& file) {
  return " --q " + file + ":q --k " + file + ":k --v " + file + ":v ";
}

std::vector<float> Load(const std::string& spec, std::vector<int64_t>* shape = nullptr) {
  files::FileTensor tensor;
  std::string error;
  if (!files::Load(spec, &tensor, &error)) {
    ADD_FAILURE() << error;
    return {};
  }
  if (shape != nullptr) *shape = tensor.info.shape;
  const float* const values = reinterpret_cast<const float*>(tensor.buffer.data());
  return {values, values + tensor.buffer.bytes() / sizeof(float)};
}

void Save(const std::string& spec, const TensorView& view) {
  files::Writer writer;
  std::string error;
  ASSERT_TRUE(writer.Add(spec, "x", view, &error) && writer.Write(&error)) << error;
}

// A small problem in files: q, k, v in both layouts, and everything that a score can have.
class SmallProblem : public ::testing::Test {
 protected:
  static constexpr int64_t B = 2, Hq = 4, Hkv = 2, Tq = 5, Tk = 9, dk = 8, dv = 6;

  void SetUp() override {
    const auto values = [](int64_t count, float step) {
      std::vector<float> v(static_cast<size_t>(count));
      for (size_t n = 0; n < v.size(); ++n)
        v[n] = std::fmod(static_cast<float>(n) * step, 2.0f) - 1.0f;
      return v;
    };
    q_ = values(B * Hq * Tq * dk, 0.37f), k_ = values(B * Hkv * Tk * dk, 0.73f),
    v_ = values(B * Hkv * Tk * dv, 0.91f);
    bias_ = values(Hq * Tq * Tk, 0.53f), slopes_ = values(Hq, 0.31f), sinks_ = values(Hq, 0.77f);
    const TensorView q = View(q_.data(), {B, Hq, Tq, dk}), k = View(k_.data(), {B, Hkv, Tk, dk}),
                     v = View(v_.data(), {B, Hkv, Tk, dv});
    Save(folder_.File("q.npy"), q);
    Save(folder_.File("k.npy"), k);
    Save(folder_.File("v.npy"), v);
    Save(folder_.File("q_bthd.npy"), SwapAxes(q, 1, 2));
    Save(folder_.File("k_bthd.npy"), SwapAxes(k, 1, 2));
    Save(folder_.File("v_bthd.npy"), SwapAxes(v, 1, 2));
    Save(folder_.File("bias.npy"), View(bias_.data(), {Hq, Tq, Tk}));
    Save(folder_.File("slopes.npy"), View(slopes_.data(), {Hq}));
    Save(folder_.File("sinks.npy"), View(sinks_.data(), {Hq}));
    int64_t ranges[2 * Tq];
    for (int64_t i = 0; i < Tq; ++i) ranges[2 * i] = i - 1, ranges[2 * i + 1] = 3 * i;
    Save(folder_.File("ranges.npy"), View(ranges, {int64_t{1}, Tq, int64_t{2}}));
    const bool mask[Tk] = {true, false, true, true, true, false, true, true, true};
    Save(folder_.File("mask.npy"), View(mask, {int64_t{1}, Tk}));
    const int32_t q_lengths[B] = {5, 2}, kv_lengths[B] = {9, 4};
    Save(folder_.File("q_lengths.npy"), View(q_lengths, {B}));
    Save(folder_.File("kv_lengths.npy"), View(kv_lengths, {B}));
  }

  std::string At(const std::string& name) const { return folder_.File(name); }
  std::string Attend(const std::string& more) const {
    return "attend --q " + At("q.npy") + " --k " + At("k.npy") + " --v " + At("v.npy") + " " + more;
  }

  TemporaryFolder folder_;
  std::vector<float> q_, k_, v_, bias_, slopes_, sinks_;
};

TEST(CliTest, HelpAndVersion) {
  for (const char* command : {"", "info ", "attend ", "bench ", "check ", "demo "}) {
    const Outcome outcome = Fovea(std::string(command) + "--help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.out.compare(0, 12, "usage: fovea"), 0) << outcome.out;
    EXPECT_EQ(outcome.error, "");
  }
  EXPECT_EQ(Fovea("--version").out.compare(0, 6, "fovea "), 0);
}

TEST(CliTest, InfoShowsTheMachineAndMemory) {
  const Outcome outcome = Fovea("info --memory 1,32,8192,128");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  for (const char* part :
       {"CPU", "caches", "compiled", "usable", "active", "4294967296 B", "4 GiB", "workspace"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos)
        << part << " is missing in " << outcome.out;
  }
}

TEST(CliTest, MistakesOnTheCommandLine) {
  ExpectFailure(Fovea(""), "no command");
  ExpectFailure(Fovea("fly"), "unknown command 'fly'");
  ExpectFailure(Fovea("info --height 3"), "unknown option '--height'");
  ExpectFailure(Fovea("info --memory 1,2,3"), "expected B,H,T,d");
  ExpectFailure(Fovea("info --memory 1,0,3,4"), "at least 1");
  ExpectFailure(Fovea("info --memory 99999999,99999999,99999999,9999999"), "more than 2^56");
  ExpectFailure(Fovea("bench --workloads P9"), "workload 'P9'");
  ExpectFailure(Fovea("bench --workloads 1,2,3"), "expected P1");
  ExpectFailure(Fovea("bench --workloads 1,3/2,4,8"), "multiple");
  ExpectFailure(Fovea("bench --workloads 16777216,16777216,16777216,16777216"), "2^40");
  ExpectFailure(Fovea("bench --workloads P2+steam"), "'+steam' is unknown");
  ExpectFailure(Fovea("bench --workloads P2+mask+padmask"), "'+padmask'");
  ExpectFailure(Fovea("bench --compare P2,P9"), "workload 'P9'");
  ExpectFailure(Fovea("bench --compare P2 --base P9"), "--base: workload 'P9'");
  ExpectFailure(Fovea("bench --compare P2 --workloads P2"), "exclude each other");
  ExpectFailure(Fovea("bench --compare P2 --baseline"), "exclude each other");
  ExpectFailure(Fovea("bench --base P2"), "--base needs --compare");
  ExpectFailure(Fovea("bench --types f64"), "expected f32, bf16 or f16");
  ExpectFailure(Fovea("bench --types f16 --workloads P1+bf16"), "P1+bf16");
  ExpectFailure(Fovea("bench --types f16 --compare P1"), "write P1+bf16");
  ExpectFailure(Fovea("bench --isa mmx"), "avx2");
  ExpectFailure(Fovea("bench --threads 0"), "--threads");
  ExpectFailure(Fovea("bench --seconds 0"), "--seconds");
  ExpectFailure(Fovea("bench --engine steam"), "expected auto, tile or row");
  ExpectFailure(Fovea("bench --product steam"), "expected auto, f32 or bf16");
  ExpectFailure(Fovea("check --problems 0"), "--problems");
  ExpectFailure(Fovea("demo --data /nowhere"), "/nowhere/manifest.json");
  ExpectFailure(Fovea("info", "FOVEA_TARGET=mmx"), "FOVEA_TARGET");
}

TEST(CliTest, AnOutputThatCannotBeWrittenIsAFailure) {
  const int status = std::system(FOVEA_PROGRAM " info > /dev/full 2> /dev/null");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

TEST(CliTest, AttendMatchesStoredResults) {
  const TemporaryFolder folder;
  const std::string all = folder.File("all.safetensors");
  const Outcome outcome = Fovea("attend" + Qkv(kPrefill) + "--causal bottom-right --out " + all +
                                " --lse " + all + ":logsum --check");
  ASSERT_EQ(outcome.code, 0) << outcome.error << outcome.out;
  EXPECT_NE(outcome.out.find("within bounds"), std::string::npos) << outcome.out;
  for (const auto& [written, stored] :
       {std::pair<const char*, const char*>{":out", ":out"}, {":logsum", ":lse"}}) {
    std::vector<int64_t> shape, expected_shape;
    const std::vector<float> values = Load(all + written, &shape),
                             expected = Load(kPrefill + stored, &expected_shape);
    ASSERT_EQ(shape, expected_shape);
    for (size_t n = 0; n < values.size(); ++n)
      ASSERT_NEAR(values[n], expected[n], 2e-5) << written << " " << n;
  }
}

TEST(CliTest, EveryInstructionSetCanBeForced) {
  const Outcome info = Fovea("info");
  const std::vector<std::string> lines = Lines(info.out);
  const auto usable = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.compare(0, 6, "usable") == 0;
  });
  ASSERT_NE(usable, lines.end());
  std::string names = usable->substr(6);
  names.erase(std::remove(names.begin(), names.end(), ' '), names.end());
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string isa = names.substr(begin, end - begin);
    const Outcome outcome =
        Fovea("attend" + Qkv(kReal + "smollm2_decode_layer0.safetensors") + "--check --isa " + isa);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    EXPECT_NE(outcome.out.find(isa), std::string::npos) << outcome.out;
    begin = end + 1;
  }
}

TEST_F(SmallProblem, EveryOptionMatchesTheReference) {
  for (const std::string& options : std::vector<std::string>{
           "",
           "--scale 0.7",
           "--causal top-left",
           "--causal bottom-right",
           "--causal top-left --query-offset 3",
           "--causal top-left --query-offset " + At("q_lengths.npy"),
           "--window 2,1",
           "--window -1,0",
           "--mask " + At("mask.npy"),
           "--bias " + At("bias.npy"),
           "--q-lengths " + At("q_lengths.npy") + " --kv-lengths " + At("kv_lengths.npy"),
           "--softcap 2",
           "--alibi " + At("slopes.npy"),
           "--sinks " + At("sinks.npy"),
           "--head-scales " + At("sinks.npy"),
           "--bias " + At("bias.npy") + " --bias-scales " + At("slopes.npy"),
           "--key-ranges " + At("ranges.npy"),
           "--engine row",
           "--engine tile",
       }) {
    const Outcome outcome = Fovea(Attend("--check --weights " + At("w.npy") + " " + options));
    EXPECT_EQ(outcome.code, 0) << options << ": " << outcome.error << outcome.out;
    std::vector<int64_t> shape;
    Load(At("w.npy"), &shape);
    EXPECT_EQ(shape, (std::vector<int64_t>{B, Hq, Tq, Tk}));
  }
}

TEST_F(SmallProblem, ThreadsAndLayoutsDoNotChangeTheResult) {
  ASSERT_EQ(Fovea(Attend("--out " + At("one.npy"))).code, 0);
  const std::vector<float> one = Load(At("one.npy"));
#if FOVEA_PROGRAM_HAS_TBB
  ASSERT_EQ(Fovea(Attend("--threads 2 --out " + At("two.npy"))).code, 0);
  EXPECT_EQ(Load(At("two.npy")), one);
#endif
  const Outcome bthd =
      Fovea("attend --layout BTHD --q " + At("q_bthd.npy") + " --k " + At("k_bthd.npy") + " --v " +
            At("v_bthd.npy") + " --out " + At("bthd.npy"));
  ASSERT_EQ(bthd.code, 0) << bthd.error;
  std::vector<int64_t> shape;
  const std::vector<float> out = Load(At("bthd.npy"), &shape);
  ASSERT_EQ(shape, (std::vector<int64_t>{B, Tq, Hq, dv}));
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < Tq; ++i) {
      for (int64_t h = 0; h < Hq; ++h) {
        for (int64_t c = 0; c < dv; ++c) {
          ASSERT_EQ(out[static_cast<size_t>(((b * Tq + i) * Hq + h) * dv + c)],
                    one[static_cast<size_t>(((b * Hq + h) * Tq + i) * dv + c)]);
        }
      }
    }
  }
}

TEST_F(SmallProblem, MistakesInAProblem) {
  const std::string q = " --q " + At("q.npy"), k = " --k " + At("k.npy"), v = " --v " + At("v.npy");
  ExpectFailure(Fovea("attend" + q + k + v), "nothing to do");
  ExpectFailure(Fovea("attend" + q + k + " --check"), "--v is missing");
  ExpectFailure(Fovea("attend" + q + k + v + " --out result.bin"), "expected FILE.npy");
  ExpectFailure(Fovea("attend --q " + At("bias.npy") + k + v + " --check"), "[B, Hq, Tq, dk]");
  ExpectFailure(Fovea("attend --q " + At("v.npy") + k + v + " --check"),
                "k.shape[3] = 8, expected 6 (q.shape[3])");
  ExpectFailure(Fovea("attend --q " + At("none.npy") + k + v + " --check"), "none.npy");
  ExpectFailure(Fovea(Attend("--check --layout THBD")), "expected BHTD or BTHD");
  ExpectFailure(Fovea(Attend("--check --causal left")), "expected top-left or bottom-right");
  ExpectFailure(Fovea(Attend("--check --window 3")), "expected LEFT,RIGHT");
  ExpectFailure(Fovea(Attend("--check --window -2,0")), "at least -1");
  ExpectFailure(Fovea(Attend("--check --scale x")), "finite number");
  ExpectFailure(Fovea(Attend("--check --scale 1e300")), "scale");
  ExpectFailure(Fovea(Attend("--check --scale 1e40")), "--scale = 1e40, expected 0 or a float");
  ExpectFailure(Fovea(Attend("--check --softcap -1")), "softcap");
  ExpectFailure(Fovea(Attend("--check --softcap 1e-50")), "--softcap = 1e-50, expected 0 or a");
  ExpectFailure(Fovea(Attend("--check --mask " + At("bias.npy"))), "mask");
  ExpectFailure(Fovea(Attend("--check --bias " + At("k.npy"))), "bias");
  ExpectFailure(Fovea(Attend("--check --sinks " + At("kv_lengths.npy"))), "sinks");
  ExpectFailure(Fovea(Attend("--check --head-scales " + At("kv_lengths.npy"))), "head_scales");
  ExpectFailure(Fovea(Attend("--check --bias-scales " + At("k.npy"))), "[Hq]");
  ExpectFailure(Fovea(Attend("--check --key-ranges " + At("mask.npy"))), "[B, Tq, 2]");
  ExpectFailure(Fovea(Attend("--check --kv-lengths " + At("slopes.npy"))), "kv_lengths");
  ExpectFailure(Fovea(Attend("--check --isa mmx")), "mmx");
  ExpectFailure(Fovea(Attend("--out " + At("o.npy") + " --lse " + At("o.npy"))), "two outputs");
  ExpectFailure(Fovea(Attend("--out " + At("missing/o.npy"))), "No such file");
}

TEST_F(SmallProblem, OutputsNeverReplaceInputs) {
  const TensorView q = View(q_.data(), {B, Hq, Tq, dk}), k = View(k_.data(), {B, Hkv, Tk, dk}),
                   v = View(v_.data(), {B, Hkv, Tk, dv});
  files::Writer writer;
  std::string error;
  const std::string all = At("all.safetensors");
  ASSERT_TRUE(writer.Add(all, "q", q, &error) && writer.Add(all, "k", k, &error) &&
              writer.Add(all, "v", v, &error) && writer.Write(&error))
      << error;
  const std::string before = folder_.Read("all.safetensors");
  ExpectFailure(Fovea("attend" + Qkv(all) + "--out " + all + ":out"), "is an input");
  EXPECT_EQ(folder_.Read("all.safetensors"), before);
  ExpectFailure(Fovea(Attend("--mask " + At("mask.npy") + " --out " + At("./mask.npy"))),
                "is an input");
}

TEST_F(SmallProblem, OutputsNeverShareAFile) {
  ExpectFailure(Fovea(Attend("--out " + At("x.npy") + " --lse " + At("./x.npy"))), "two outputs");
  EXPECT_FALSE(std::filesystem::exists(At("x.npy")));
}

TEST_F(SmallProblem, AFullDiskLeavesTheOldFile) {
  if (FOVEA_PROGRAM_IS_EMULATED) GTEST_SKIP() << "the limit would be the emulator's";
  folder_.Write("w.npy", "old");
  // 3 blocks of 512 bytes hold the output, and not the weights
  const Outcome outcome =
      Fovea(Attend("--out " + At("o.npy") + " --weights " + At("w.npy")), "ulimit -f 3;");
  ExpectFailure(outcome, "cannot be written: File too large");
  EXPECT_EQ(folder_.Read("w.npy"), "old");
  EXPECT_FALSE(std::filesystem::exists(At("o.npy"))) << "written before the other failed";
  for (const auto& file : std::filesystem::directory_iterator(At("")))
    EXPECT_EQ(file.path().filename().string().find(".fovea"), std::string::npos) << file.path();
}

TEST_F(SmallProblem, TruncatedFilesFailAtEveryLength) {
  const std::string whole = folder_.Read("q_lengths.npy");
  ASSERT_GT(whole.size(), 100u);
  for (size_t n = 0; n < whole.size(); n += FOVEA_PROGRAM_IS_EMULATED ? 16 : 1) {
    folder_.Write("short.npy", whole.substr(0, n));
    ExpectFailure(Fovea(Attend("--check --q-lengths " + At("short.npy"))), "short.npy");
  }
}

TEST_F(SmallProblem, NamesInFilesDoNotSteerTheTerminal) {
  const std::string header =
      R"({"\u001b[2J\n":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  folder_.Write("evil.safetensors",
                std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header);
  const Outcome outcome = Fovea(Attend("--check --mask " + At("evil.safetensors")));
  ExpectFailure(outcome, "evil.safetensors");
  EXPECT_EQ(outcome.error.find('\033'), std::string::npos);
}

TEST(CliTest, CheckFindsNothingWrong) {
  const Outcome outcome =
      Fovea("check --seed 3 --problems " + std::to_string(test::GridStep() > 1 ? 6 : 20));
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  EXPECT_NE(outcome.out.find("fine"), std::string::npos);
  EXPECT_EQ(outcome.out.find("WRONG"), std::string::npos);
}

TEST(CliTest, DemoShowsErrorsAndAPicture) {
  const Outcome outcome = Fovea("demo --no-speed --data " + kReal);
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  for (const char* part :
       {"minilm_layer0", "smollm2_decode_layer14", "within bounds", "attends to", "[CLS]", "░"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos)
        << part << " is missing in " << outcome.out;
  }
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos) << "colours without a terminal";
}

}  // namespace
}  // namespace fovea
