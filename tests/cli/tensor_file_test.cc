// Tensors in files by name: loading, listing and writing, and everything that can be at a path and
// is no tensor file.
#include "cli/files/tensor_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
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

TEST(TensorFileTest, ReportsWritingThatFails) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1};
  std::filesystem::create_symlink("/dev/full", folder.File("full.npy"));
  const struct {
    const char* name;
    const char* reason;
  } kFailures[] = {{"missing/a.npy", "No such file"}, {"full.npy", "No space left"}};
  for (const auto& failure : kFailures) {
    Writer writer;
    std::string error;
    ASSERT_TRUE(
        writer.Add(folder.File(failure.name), "x", View(values.data(), {int64_t{1}}), &error));
    EXPECT_FALSE(writer.Write(&error));
    EXPECT_NE(error.find(failure.reason), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace fovea::files
