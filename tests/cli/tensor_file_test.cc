// Tensors in files by name: loading, listing and writing, and everything that can be at a path and
// is no tensor file.
#include "cli/files/tensor_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/temporary_folder.h"

namespace fovea::files {
namespace {

std::string ErrorOf(const std::string& spec) {
  FileTensor tensor;
  std::string error;
  EXPECT_FALSE(Load(spec, &tensor, &error)) << spec;
  EXPECT_FALSE(error.empty());
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error;
}

std::vector<float> Floats(const FileTensor& tensor) {
  std::vector<float> values(tensor.buffer.bytes() / sizeof(float));
  std::memcpy(values.data(), tensor.buffer.data(), values.size() * sizeof(float));
  return values;
}

TEST(TensorFileTest, RoundTripsThroughBothFormats) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> lengths = {7, 8};
  Writer writer;
  std::string error;
  const TensorView view = View(values.data(), {int64_t{2}, int64_t{3}});
  ASSERT_TRUE(writer.Add(folder.File("a.npy"), "x", view, &error)) << error;
  ASSERT_TRUE(writer.Add(folder.File("b.safetensors:first"), "x", view, &error)) << error;
  ASSERT_TRUE(writer.Add(folder.File("b.safetensors"), "lengths",
                         View(lengths.data(), {int64_t{2}}), &error))
      << error;
  ASSERT_TRUE(writer.Write(&error)) << error;
  for (const char* spec : {"a.npy", "b.safetensors:first"}) {
    FileTensor tensor;
    ASSERT_TRUE(Load(folder.File(spec), &tensor, &error)) << error;
    EXPECT_EQ(tensor.info.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(Floats(tensor), values);
    EXPECT_EQ(tensor.View().stride[0], 12);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.buffer.data()) % 64, 0u);
  }
  std::vector<TensorInfo> tensors;
  ASSERT_TRUE(List(folder.File("b.safetensors"), &tensors, &error)) << error;
  EXPECT_EQ(tensors.size(), 2u);
}

TEST(TensorFileTest, WritesAnyStridesDense) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  Writer writer;
  std::string error;
  ASSERT_TRUE(writer.Add(folder.File("t.npy"), "x",
                         SwapAxes(View(values.data(), {int64_t{2}, int64_t{3}}), 0, 1), &error))
      << error;
  ASSERT_TRUE(writer.Write(&error)) << error;
  FileTensor tensor;
  ASSERT_TRUE(Load(folder.File("t.npy"), &tensor, &error)) << error;
  EXPECT_EQ(tensor.info.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(Floats(tensor), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST(TensorFileTest, ViewsFortranOrder) {
  const TemporaryFolder folder;
  std::string file("\x93NUMPY\x01\x00", 8);
  const std::string header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}\n";
  file += static_cast<char>(header.size());
  file += '\0';
  folder.Write("f.npy", file + header + std::string(24, '\0'));
  FileTensor tensor;
  std::string error;
  ASSERT_TRUE(Load(folder.File("f.npy"), &tensor, &error)) << error;
  EXPECT_EQ(tensor.View().stride[0], 4);
  EXPECT_EQ(tensor.View().stride[1], 8);
}

TEST(TensorFileTest, FindsTheOnlyTensorWithoutItsName) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1};
  const TensorView view = View(values.data(), {int64_t{1}});
  FileTensor tensor;
  std::string error;
  Writer one, two;
  ASSERT_TRUE(one.Add(folder.File("one.safetensors:only"), "x", view, &error) && one.Write(&error))
      << error;
  EXPECT_TRUE(Load(folder.File("one.safetensors"), &tensor, &error)) << error;
  ASSERT_TRUE(two.Add(folder.File("two.safetensors:a"), "x", view, &error) &&
              two.Add(folder.File("two.safetensors:b"), "x", view, &error) && two.Write(&error));
  EXPECT_NE(ErrorOf(folder.File("two.safetensors")).find("a, b"), std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("two.safetensors:c")).find("has no tensor 'c'; it has a, b"),
            std::string::npos);
}

TEST(TensorFileTest, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.File("folder.npy"));
  std::filesystem::create_symlink(folder.File("nowhere"), folder.File("link.npy"));
  std::filesystem::create_symlink("/dev/zero", folder.File("zero.safetensors"));
  ASSERT_EQ(mkfifo(folder.File("fifo.npy").c_str(), 0600), 0);
  EXPECT_NE(ErrorOf(folder.File("missing.npy")).find("No such file"), std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("folder.npy")).find("not a regular file"), std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("link.npy")).find("No such file"), std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("zero.safetensors:x")).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("fifo.npy")).find("not a regular file"), std::string::npos);
  EXPECT_NE(ErrorOf(folder.File("tensor.bin")).find("expected FILE.npy"), std::string::npos);
  ErrorOf("");
}

TEST(TensorFileTest, NamesUnsupportedTypes) {
  const TemporaryFolder folder;
  std::string file("\x93NUMPY\x01\x00", 8);
  const std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}\n";
  file += static_cast<char>(header.size());
  file += '\0';
  folder.Write("d.npy", file + header + std::string(8, '\0'));
  EXPECT_NE(ErrorOf(folder.File("d.npy")).find("<f8"), std::string::npos);
}

TEST(TensorFileTest, RefusesOutputsThatCollide) {
  const std::vector<float> values = {1};
  const TensorView view = View(values.data(), {int64_t{1}});
  Writer writer;
  std::string error;
  EXPECT_TRUE(writer.Add("a.npy", "x", view, &error));
  EXPECT_FALSE(writer.Add("a.npy", "y", view, &error));
  EXPECT_TRUE(writer.Add("b.safetensors:x", "x", view, &error));
  EXPECT_FALSE(writer.Add("b.safetensors", "x", view, &error));
  EXPECT_FALSE(writer.Add("c.bin", "x", view, &error));
}

// What the tests below write and expect: one number.
class OneNumber : public ::testing::Test {
 protected:
  std::string At(const std::string& name) const { return folder_.File(name); }
  TensorView view() const { return View(&value_, {int64_t{1}}); }
  float ValueIn(const std::string& name) const {
    FileTensor tensor;
    std::string error;
    EXPECT_TRUE(Load(At(name), &tensor, &error)) << error;
    return tensor.buffer.bytes() == sizeof(float) ? Floats(tensor)[0] : -1;
  }
  // Of writing it alone; empty where that works.
  std::string ErrorOfWriting(const std::string& name) const {
    Writer writer;
    std::string error;
    if (writer.Add(At(name), "x", view(), &error) && writer.Write(&error)) error.clear();
    return error;
  }
  mode_t ModeOf(const std::string& name) const {
    struct stat status = {};
    EXPECT_EQ(stat(At(name).c_str(), &status), 0);
    return status.st_mode & 07777;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(At("")))
      names.insert(file.path().filename().string());
    return names;
  }

  const TemporaryFolder folder_;
  const float value_ = 7;
};

TEST_F(OneNumber, TwoOutputsAtOnePathHoweverSpelled) {
  namespace fs = std::filesystem;
  folder_.Write("old.npy", "old");
  fs::create_directory(At("sub"));
  fs::create_symlink(At("new.npy"), At("to_new.npy"));  // which does not exist
  fs::create_symlink("old.npy", At("to_old.npy"));
  fs::create_symlink("..", At("sub/up"));
  fs::create_hard_link(At("old.npy"), At("twin.npy"));
  const std::string here = fs::relative(folder_.File("")).string();  // no longer absolute
  const struct {
    std::string one, other;
  } kPairs[] = {
      {At("new.npy"), At("./new.npy")},      {At("new.npy"), At("sub/../new.npy")},
      {At("new.npy"), here + "/new.npy"},    {At("new.npy"), At("to_new.npy")},
      {At("new.npy"), At("sub/up/new.npy")}, {At("old.npy"), At("to_old.npy")},
      {At("old.npy"), At("twin.npy")},       {At("a.safetensors:a"), At("./a.safetensors:b")}};
  for (const auto& pair : kPairs) {
    for (const bool swapped : {false, true}) {
      Writer writer;
      std::string error;
      EXPECT_TRUE(writer.Add(swapped ? pair.other : pair.one, "x", view(), &error)) << error;
      EXPECT_FALSE(writer.Add(swapped ? pair.one : pair.other, "y", view(), &error))
          << pair.one << " " << pair.other;
      EXPECT_NE(error.find("two outputs in one file"), std::string::npos) << error;
    }
  }
  Writer writer;
  std::string error;
  EXPECT_TRUE(writer.Add(At("new.npy"), "x", view(), &error) &&
              writer.Add(At("sub/new.npy"), "x", view(), &error))
      << error;
}

TEST_F(OneNumber, NeverOverAnInputHoweverSpelled) {
  namespace fs = std::filesystem;
  ASSERT_EQ(ErrorOfWriting("in.npy"), "");
  fs::create_symlink("in.npy", At("link.npy"));
  fs::create_hard_link(At("in.npy"), At("twin.npy"));
  FileTensor input;
  std::string error;
  ASSERT_TRUE(Load(At("link.npy"), &input, &error)) << error;
  for (const char* name : {"in.npy", "./in.npy", "link.npy", "twin.npy"}) {
    Writer writer({input.file});
    EXPECT_FALSE(writer.Add(At(name), "x", view(), &error)) << name;
    EXPECT_NE(error.find("is an input"), std::string::npos) << error;
  }
  Writer writer({input.file});
  EXPECT_TRUE(writer.Add(At("out.npy"), "x", view(), &error)) << error;
}

TEST_F(OneNumber, FailuresLeaveEverythingAsItWas) {
  folder_.Write("first.npy", "old");
  folder_.Write("second.npy", "older");
  const std::set<std::string> before = Names();
  const std::vector<float> many(1 << 16);
  Writer writer;
  std::string error;
  ASSERT_TRUE(writer.Add(At("first.npy"), "x", view(), &error) &&
              writer.Add(At("new.npy"), "x", view(), &error) &&
              writer.Add(At("second.npy"), "x", View(many.data(), {int64_t{1 << 16}}), &error))
      << error;
  struct rlimit limit, old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  limit = old;
  limit.rlim_cur = 1 << 12;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_FALSE(writer.Write(&error));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_NE(error.find("second.npy: cannot be written: File too large"), std::string::npos)
      << error;
  EXPECT_EQ(Names(), before);
  EXPECT_EQ(folder_.Read("first.npy"), "old");
  EXPECT_EQ(folder_.Read("second.npy"), "older");
  ASSERT_TRUE(writer.Write(&error)) << error;  // with room it works
  EXPECT_EQ(ValueIn("first.npy"), value_);
  EXPECT_EQ(ValueIn("new.npy"), value_);
}

TEST_F(OneNumber, PermissionsAreThoseOfPlainWriting) {
  const mode_t mask = umask(027);
  EXPECT_EQ(ErrorOfWriting("new.npy"), "");
  folder_.Write("old.npy", "old");
  ASSERT_EQ(chmod(At("old.npy").c_str(), 0604), 0);
  EXPECT_EQ(ErrorOfWriting("old.npy"), "");
  umask(mask);
  EXPECT_EQ(ModeOf("new.npy"), mode_t{0640});
  EXPECT_EQ(ModeOf("old.npy"), mode_t{0604});
  EXPECT_EQ(ValueIn("old.npy"), value_);
  if (geteuid() == 0) return;  // may write everything
  ASSERT_EQ(chmod(At("old.npy").c_str(), 0400), 0);
  EXPECT_NE(ErrorOfWriting("old.npy").find("Permission denied"), std::string::npos);
  ASSERT_EQ(chmod(At("").c_str(), 0500), 0);
  EXPECT_NE(ErrorOfWriting("new.npy").find("in its folder"), std::string::npos);
  ASSERT_EQ(chmod(At("").c_str(), 0700), 0);
}

TEST_F(OneNumber, LinksStayLinks) {
  folder_.Write("old.npy", "old");
  std::filesystem::create_symlink("old.npy", At("to_old.npy"));
  std::filesystem::create_symlink(At("new.npy"), At("to_new.npy"));
  for (const char* name : {"old.npy", "new.npy"}) {
    EXPECT_EQ(ErrorOfWriting(std::string("to_") + name), "");
    EXPECT_EQ(ValueIn(name), value_);
    EXPECT_TRUE(std::filesystem::is_symlink(At(std::string("to_") + name)));
  }
  std::filesystem::create_symlink("circle.npy", At("circle.npy"));
  EXPECT_NE(ErrorOfWriting("circle.npy").find("symbolic links"), std::string::npos);
}

TEST_F(OneNumber, DevicesAndPipesAreWrittenAsTheyAre) {
  std::filesystem::create_symlink("/dev/null", At("null.npy"));
  std::filesystem::create_symlink("/dev/null", At("also_null.npy"));
  Writer writer;
  std::string error;
  EXPECT_TRUE(writer.Add(At("null.npy"), "x", view(), &error) &&
              writer.Add(At("also_null.npy"), "x", view(), &error) && writer.Write(&error))
      << error;
  EXPECT_TRUE(std::filesystem::is_character_file(At("null.npy")));

  ASSERT_EQ(mkfifo(At("pipe.npy").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = folder_.Read("pipe.npy"); });
  EXPECT_EQ(ErrorOfWriting("pipe.npy"), "");
  reader.join();
  EXPECT_EQ(read.size(), 132u);
  EXPECT_TRUE(std::filesystem::is_fifo(At("pipe.npy")));
  EXPECT_EQ(ErrorOfWriting("plain.npy"), "");
  EXPECT_EQ(read, folder_.Read("plain.npy"));
}

TEST_F(OneNumber, ReportsWhatCannotBeWritten) {
  std::filesystem::create_symlink("/dev/full", At("full.npy"));
  std::filesystem::create_directory(At("folder.npy"));
  EXPECT_NE(ErrorOfWriting("missing/a.npy").find("No such file"), std::string::npos);
  EXPECT_NE(ErrorOfWriting("full.npy").find("No space left"), std::string::npos);
  EXPECT_NE(ErrorOfWriting("folder.npy").find("Is a directory"), std::string::npos);
}

TEST_F(OneNumber, ASignalWhileWritingLeavesNoTemporaryFile) {
  ASSERT_EQ(mkfifo(At("pipe.npy").c_str(), 0600), 0);
  folder_.Write("old.npy", "old");
  const std::set<std::string> before = Names();
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGXCPU, SIGPIPE, SIGALRM}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const struct rlimit no_core = {0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      Writer writer;
      std::string error;
      // It waits for a reader of the pipe, with the first file written.
      _exit(writer.Add(At("old.npy"), "x", view(), &error) &&
                    writer.Add(At("pipe.npy"), "x", view(), &error) && writer.Write(&error)
                ? 0
                : 1);
    }
    for (int n = 0; n < 2000 && Names() == before; ++n)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_NE(Names(), before);
    kill(child, signal);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << "signal " << signal;
    EXPECT_EQ(Names(), before) << "signal " << signal;
    EXPECT_EQ(folder_.Read("old.npy"), "old");
  }
}

// A pipe, or a file whose path is gone, is written as it is: two outputs would mix, or the second
// would replace the first.
TEST_F(OneNumber, TwoNamesOfWhatIsWrittenAsItIsAreNoticed) {
  namespace fs = std::filesystem;
  const auto is_refused = [&](const std::string& one, const std::string& other) {
    Writer writer;
    std::string error;
    EXPECT_TRUE(writer.Add(one, "x", view(), &error)) << error;
    const bool added = writer.Add(other, "y", view(), &error);
    EXPECT_TRUE(added || error.find("two outputs in one file") != std::string::npos) << error;
    return !added;
  };
  ASSERT_EQ(mkfifo(At("pipe.npy").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(At("other.npy").c_str(), 0600), 0);
  fs::create_symlink("pipe.npy", At("link.npy"));
  fs::create_hard_link(At("pipe.npy"), At("twin.npy"));
  EXPECT_TRUE(is_refused(At("pipe.npy"), At("link.npy")));
  EXPECT_TRUE(is_refused(At("twin.npy"), At("pipe.npy")));
  EXPECT_FALSE(is_refused(At("pipe.npy"), At("other.npy")));

  folder_.Write("gone", "old");
  const int first = open(At("gone").c_str(), O_RDWR), second = dup(first);
  fs::remove(At("gone"));
  if (fs::exists("/proc/self/fd/" + std::to_string(first))) {
    fs::create_symlink("/proc/self/fd/" + std::to_string(first), At("first.npy"));
    fs::create_symlink("/proc/self/fd/" + std::to_string(second), At("second.npy"));
    EXPECT_TRUE(is_refused(At("first.npy"), At("second.npy")));
    EXPECT_FALSE(is_refused(At("first.npy"), At("plain.npy")));
    EXPECT_EQ(ErrorOfWriting("first.npy"), "");
    struct stat status;
    ASSERT_EQ(fstat(first, &status), 0);
    EXPECT_EQ(status.st_size, 132);
  }
  close(first), close(second);
}

TEST_F(OneNumber, LinesAreAppendedWholeOrNotAtAll) {
  EXPECT_TRUE(CanAppend(At("lines")));
  EXPECT_EQ(Names().count("lines"), 0u);
  EXPECT_TRUE(AppendLine(At("lines"), "one") && AppendLine(At("lines"), "two"));
  EXPECT_FALSE(CanAppend(At("missing/lines")));
  EXPECT_FALSE(AppendLine(At("missing/lines"), "one"));
  struct rlimit limit, old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  limit = old;
  limit.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_FALSE(AppendLine(At("lines"), "three"));
  EXPECT_EQ(errno, EFBIG);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(folder_.Read("lines"), "one\ntwo\n");
}

}  // namespace
}  // namespace fovea::files
