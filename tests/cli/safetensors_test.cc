// .safetensors headers: valid ones are read whole, every promise of the format is checked, and no
// bytes are unsafe.
#include "cli/files/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

namespace fovea::files {
namespace {

std::string LengthField(uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i) & 0xff);
  return bytes;
}

std::string File(const std::string& header, size_t data_bytes) {
  return LengthField(header.size()) + header + std::string(data_bytes, 'x');
}

// Parses a copy that ends where its allocation ends, so that AddressSanitizer sees a read behind
// it.
bool Parse(const std::string& file, std::vector<TensorInfo>* tensors, std::string* error) {
  const std::unique_ptr<char[]> exact(new char[file.size() + (file.empty() ? 1 : 0)]);
  std::memcpy(exact.get(), file.data(), file.size());
  error->clear();
  return ParseSafetensors(exact.get(), file.size(), file.size(), tensors, error);
}

std::string ErrorOf(const std::string& file) {
  std::vector<TensorInfo> tensors;
  std::string error;
  EXPECT_FALSE(Parse(file, &tensors, &error)) << file.substr(8);
  EXPECT_FALSE(error.empty());
  return error;
}

constexpr char kTwo[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}}  )";

TEST(SafetensorsTest, ReadsAllTensors) {
  std::vector<TensorInfo> tensors;
  std::string error;
  ASSERT_TRUE(Parse(File(kTwo, 32), &tensors, &error)) << error;
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::kF32);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[0].begin, 8 + std::strlen(kTwo));
  EXPECT_EQ(tensors[1].dtype, DType::kI64);
  EXPECT_TRUE(tensors[1].shape.empty());
  EXPECT_EQ(tensors[1].end, 8 + std::strlen(kTwo) + 32);
}

TEST(SafetensorsTest, ReadsEmptyFilesAndEmptyTensors) {
  std::vector<TensorInfo> tensors;
  std::string error;
  ASSERT_TRUE(Parse(File("{}", 0), &tensors, &error)) << error;
  EXPECT_TRUE(tensors.empty());
  ASSERT_TRUE(Parse(
      File(
          R"({"e":{"dtype":"F16","shape":[4,0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
          2),
      &tensors, &error))
      << error;
  EXPECT_EQ(tensors[1].dtype, DType::kBool);
}

TEST(SafetensorsTest, KnowsTypes) {
  const struct {
    const char* name;
    DType dtype;
    int bytes;
  } kTypes[] = {
      {"F32", DType::kF32, 4},   {"F16", DType::kF16, 2},          {"BF16", DType::kBF16, 2},
      {"BOOL", DType::kBool, 1}, {"I32", DType::kI32, 4},          {"I64", DType::kI64, 8},
      {"F64", DType::kNone, 8},  {"F8_E4M3", DType::kF8E4M3FN, 1}, {"F4", DType::kNone, 77}};
  for (const auto& type : kTypes) {
    std::vector<TensorInfo> tensors;
    std::string error;
    const std::string bytes = std::to_string(type.bytes);
    const std::string header = std::string(R"({"t":{"dtype":")") + type.name +
                               R"(","shape":[1],"data_offsets":[0,)" + bytes + "]}}";
    ASSERT_TRUE(Parse(File(header, static_cast<size_t>(type.bytes)), &tensors, &error))
        << type.name << ": " << error;
    EXPECT_EQ(tensors[0].dtype, type.dtype) << type.name;
    EXPECT_EQ(tensors[0].type_name, type.name);
  }
}

TEST(SafetensorsTest, ChecksOffsets) {
  const auto one = [](const std::string& offsets, size_t data_bytes) {
    return ErrorOf(
        File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}", data_bytes));
  };
  EXPECT_NE(one("[0,9]", 8).find("not inside"), std::string::npos);
  EXPECT_NE(one("[8,0]", 8).find("not inside"), std::string::npos);
  EXPECT_NE(one("[18446744073709551608,18446744073709551615]", 8).find("not inside"),
            std::string::npos);
  EXPECT_NE(one("[0,4]", 8).find("shape [2]"), std::string::npos);
  EXPECT_NE(one("[4,12]", 12).find("hole"), std::string::npos);
  EXPECT_NE(one("[0,8]", 12).find("end at byte 8"), std::string::npos);
  for (const char* offsets : {"[]", "[0]", "[0,8,8]", "[-8,0]", "[0.0,8.0]", "[\"0\",8]", "{}", "8",
                              "null", "[[0,8]]", "[0,99999999999999999999]"}) {
    one(offsets, 8);
  }
}

TEST(SafetensorsTest, RefusesOverlapsAndDuplicates) {
  const auto two = [](const std::string& second) {
    return ErrorOf(
        File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)" + second + "}", 12));
  };
  EXPECT_NE(two(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})").find("overlaps"),
            std::string::npos);
  EXPECT_NE(two(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})").find("twice"),
            std::string::npos);
  EXPECT_NE(
      two(R"("b":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[8,12]})").find("twice"),
      std::string::npos);
  EXPECT_NE(two(R"("b":{"dtype":"F32","shape":[1]})").find("lacks"), std::string::npos);
  EXPECT_NE(two(R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12],"colour":"red"})")
                .find("'colour'"),
            std::string::npos);
}

TEST(SafetensorsTest, RefusesShapesThatOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,2]", "[18446744073709551615]", "[-1]",
        "[1.5]", "[\"2\"]", "[[2]]", "2", "[0,4294967296,4294967296]"}) {
    ErrorOf(File(std::string(R"({"a":{"dtype":"F32","data_offsets":[0,0],"shape":)") + shape + "}}",
                 0));
  }
}

TEST(SafetensorsTest, RefusesHeadersThatAreNotOne) {
  for (const char* header : {"", "[]", "7", "\"a\"", "null", "{", "{}}", "{\"a\":7}", "{\"a\":[]}",
                             "{\"__metadata__\":{\"a\":{}}}", "{\"a\":{}}", "\xff\xfe",
                             "{\"\xff\":{}}", "{\"a\":{\"dtype\":7}}", "nonsense"}) {
    ErrorOf(File(header, 0));
  }
  EXPECT_NE(ErrorOf(File(std::string(100000, '['), 0)).find("array"), std::string::npos);
  std::string deep;
  for (int n = 0; n < 50000; ++n) deep += "{\"a\":";
  ErrorOf(File(deep, 0));
}

TEST(SafetensorsTest, RefusesLengthsBeyondTheFile) {
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    EXPECT_NE(ErrorOf(LengthField(length)).find("a header of"), std::string::npos);
    EXPECT_NE(ErrorOf(LengthField(length) + (length == 1 ? "" : "{}")).find("a header of"),
              std::string::npos);
  }
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string file = File(kTwo, 32);
  for (size_t n = 0; n < file.size(); ++n) ErrorOf(file.substr(0, n));
}

TEST(SafetensorsTest, AnyBytesAreSafe) {
  const std::string file = File(kTwo, 32);
  std::mt19937 random(1);
  for (int n = 0; n < 20000; ++n) {
    std::string damaged = file;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes)
      damaged[random() % file.size()] = static_cast<char>(random());
    std::vector<TensorInfo> tensors;
    std::string error;
    if (!Parse(damaged, &tensors, &error)) continue;
    for (const TensorInfo& tensor : tensors) {
      EXPECT_LE(tensor.begin, tensor.end);
      EXPECT_LE(tensor.end, damaged.size());
    }
  }
}

TEST(SafetensorsTest, WritesWhatItReads) {
  std::vector<TensorInfo> tensors(3), read;
  tensors[0].name = "out", tensors[0].dtype = DType::kF32, tensors[0].shape = {2, 3};
  tensors[1].name = "a \"quoted\" name \xc3\xa9", tensors[1].dtype = DType::kBF16,
  tensors[1].shape = {5};
  tensors[2].name = "empty", tensors[2].dtype = DType::kBool, tensors[2].shape = {0, 7};
  std::string header, error;
  ASSERT_TRUE(SafetensorsHeader(&tensors, &header, &error)) << error;
  EXPECT_EQ(header.size() % 8, 0u);
  ASSERT_TRUE(Parse(header + std::string(24 + 10, '\0'), &read, &error)) << error;
  ASSERT_EQ(read.size(), 3u);
  for (const TensorInfo& tensor : tensors) {
    const auto same = std::find_if(read.begin(), read.end(),
                                   [&](const TensorInfo& t) { return t.name == tensor.name; });
    ASSERT_NE(same, read.end()) << tensor.name;
    EXPECT_EQ(same->dtype, tensor.dtype);
    EXPECT_EQ(same->shape, tensor.shape);
    EXPECT_EQ(same->begin, tensor.begin);
    EXPECT_EQ(same->end, tensor.end);
  }
}

TEST(SafetensorsTest, RefusesNamesThatCannotBeWritten) {
  std::string header, error;
  for (const char* name : {"\xff", "__metadata__", "twice"}) {
    std::vector<TensorInfo> tensors(2);
    tensors[0].name = name, tensors[1].name = "twice";
    tensors[0].dtype = tensors[1].dtype = DType::kF32;
    EXPECT_FALSE(SafetensorsHeader(&tensors, &header, &error)) << name;
  }
}

}  // namespace
}  // namespace fovea::files
