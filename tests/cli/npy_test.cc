// .npy headers: what NumPy writes is read, anything else is one error line, and no bytes are
// unsafe.
#include "cli/files/npy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

namespace fovea::files {
namespace {

// A file of that version around a header; the length field says `length` where it is not the
// header's own.
std::string Npy(const std::string& header, const std::string& elements, int version = 1,
                int64_t length = -1) {
  const size_t n = length < 0 ? header.size() : static_cast<size_t>(length);
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(n >> (8 * i) & 0xff);
  return file + header + elements;
}

// Parses a copy that ends where its allocation ends, so that AddressSanitizer sees a read behind
// it.
bool Parse(const std::string& file, TensorInfo* info, std::string* error) {
  const std::unique_ptr<char[]> exact(new char[file.size() + (file.empty() ? 1 : 0)]);
  std::memcpy(exact.get(), file.data(), file.size());
  error->clear();
  return ParseNpy(exact.get(), file.size(), file.size(), info, error);
}

std::string ErrorOf(const std::string& file) {
  TensorInfo info;
  std::string error;
  EXPECT_FALSE(Parse(file, &info, &error));
  EXPECT_FALSE(error.empty());
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error;
}

const std::string kElements24(24, 'x');  // 6 floats

TEST(NpyTest, ReadsWhatNumPyWrites) {
  TensorInfo info;
  std::string error;
  ASSERT_TRUE(
      Parse(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", kElements24),
            &info, &error))
      << error;
  EXPECT_EQ(info.dtype, DType::kF32);
  EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(info.fortran_order);
  EXPECT_EQ(info.end - info.begin, 24u);
}

TEST(NpyTest, ReadsAllVersionsOrdersAndQuotes) {
  for (const int version : {1, 2, 3}) {
    TensorInfo info;
    std::string error;
    ASSERT_TRUE(Parse(
        Npy("{\"shape\":(2,3,),\"descr\":\"<f4\",\"fortran_order\":True}", kElements24, version),
        &info, &error))
        << error;
    EXPECT_TRUE(info.fortran_order);
    EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
  }
}

TEST(NpyTest, ReadsShapesOfAnyRank) {
  TensorInfo info;
  std::string error;
  ASSERT_TRUE(
      Parse(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "1234"), &info, &error))
      << error;
  EXPECT_TRUE(info.shape.empty());
  ASSERT_TRUE(Parse(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6L,)}", kElements24),
                    &info, &error))
      << error;
  EXPECT_EQ(info.shape, (std::vector<int64_t>{6}));
  ASSERT_TRUE(
      Parse(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0, 5)}", ""), &info, &error))
      << error;
  EXPECT_EQ(info.shape, (std::vector<int64_t>{3, 0, 5}));
}

TEST(NpyTest, KnowsTypes) {
  const struct {
    const char* name;
    DType dtype;
    size_t bytes;
  } kTypes[] = {{"<f4", DType::kF32, 4},   {"=f4", DType::kF32, 4},  {"<f2", DType::kF16, 2},
                {"|b1", DType::kBool, 1},  {"|u1", DType::kBool, 1}, {"|i1", DType::kI8, 1},
                {"<i4", DType::kI32, 4},   {"<i8", DType::kI64, 8},  {"<f8", DType::kNone, 8},
                {"<U5", DType::kNone, 20}, {"<c8", DType::kNone, 8}};
  for (const auto& type : kTypes) {
    TensorInfo info;
    std::string error;
    const std::string header =
        std::string("{'descr': '") + type.name + "', 'fortran_order': False, 'shape': (3,)}";
    ASSERT_TRUE(Parse(Npy(header, std::string(3 * type.bytes, 'x')), &info, &error))
        << type.name << ": " << error;
    EXPECT_EQ(info.dtype, type.dtype) << type.name;
    EXPECT_EQ(info.type_name, type.name);
  }
}

TEST(NpyTest, NamesWhatIsWrong) {
  const auto header = [](const std::string& text) { return ErrorOf(Npy(text, kElements24)); };
  EXPECT_NE(header("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}").find("big-endian"),
            std::string::npos);
  EXPECT_NE(
      header("{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3)}").find("not a NumPy type"),
      std::string::npos);
  EXPECT_NE(
      header("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}").find("structured"),
      std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}").find("fortran_order"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': False}").find("lacks"), std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}")
                .find("twice"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'colour': 'red', 'fortran_order': False, 'shape': (6,)}")
                .find("'colour'"),
            std::string::npos);
  // ErrorOf wants messages of one line.
  EXPECT_NE(header("{'descr': '<f4', 'co\n\x01r': 'red', 'fortran_order': False, 'shape': (6,)}")
                .find("'co??r'"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<\n4', 'fortran_order': False, 'shape': (6,)}").find("'<?4'"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}").find("shape"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': False, 'shape': (6)}").find("shape"),
            std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x").find("dictionary"),
            std::string::npos);
  EXPECT_NE(header("").find("dictionary"), std::string::npos);
  EXPECT_NE(
      header("{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}").find("takes 28 bytes"),
      std::string::npos);
  EXPECT_NE(header("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}").find("has 24"),
            std::string::npos);
}

TEST(NpyTest, RefusesShapesThatOverflow) {
  for (const char* shape : {"(4294967296, 4294967296)", "(9223372036854775807, 3)",
                            "(9223372036854775808,)", "(99999999999999999999999,)",
                            "(0, 4294967296, 4294967296)", "(2305843009213693952, 2, 2, 2)"}) {
    ErrorOf(
        Npy(std::string("{'descr': '<f4', 'fortran_order': False, 'shape': ") + shape + "}", ""));
  }
  std::string many = "(";
  for (int n = 0; n < 33; ++n) many += "1,";
  ErrorOf(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + many + ")}", "1234"));
}

TEST(NpyTest, RefusesHeadersBeyondTheFile) {
  EXPECT_NE(ErrorOf(Npy("{}", "", 1, 0xffff)).find("ends inside its header"), std::string::npos);
  EXPECT_NE(ErrorOf(Npy("{}", "", 2, 0xffffffff)).find("at most"), std::string::npos);
  EXPECT_NE(ErrorOf(Npy("{}", "", 4)).find("version"), std::string::npos);
  EXPECT_NE(ErrorOf("PK\x03\x04 no array at all").find("not a .npy file"), std::string::npos);
  ErrorOf("");
}

TEST(NpyTest, RefusesEveryTruncation) {
  const std::string file =
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", kElements24);
  for (size_t n = 0; n < file.size(); ++n) ErrorOf(file.substr(0, n));
}

TEST(NpyTest, AnyBytesAreSafe) {
  const std::string file =
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", kElements24);
  std::mt19937 random(1);
  for (int n = 0; n < 20000; ++n) {
    std::string damaged = file;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes)
      damaged[random() % file.size()] = static_cast<char>(random());
    TensorInfo info;
    std::string error;
    if (Parse(damaged, &info, &error)) {
      EXPECT_LE(info.begin, info.end);
      EXPECT_LE(info.end, damaged.size());
    }
  }
}

TEST(NpyTest, WritesWhatItReads) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBool, DType::kI8, DType::kI32, DType::kI64}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{5}, {2, 3, 4}, {0}, {1, 1, 1, 1}}) {
      uint64_t bytes;
      ASSERT_TRUE(ShapeBytes(shape, SizeOf(dtype), &bytes));
      std::string header, error;
      ASSERT_TRUE(NpyHeader(dtype, shape, &header, &error)) << error;
      EXPECT_EQ(header.size() % 64, 0u);
      TensorInfo info;
      ASSERT_TRUE(Parse(header + std::string(bytes, '\0'), &info, &error)) << error;
      EXPECT_EQ(info.dtype, dtype);
      EXPECT_EQ(info.shape, shape);
    }
  }
}

TEST(NpyTest, HasNoBrainFloats) {
  std::string header, error;
  EXPECT_FALSE(NpyHeader(DType::kBF16, {1}, &header, &error));
  EXPECT_NE(error.find("bf16"), std::string::npos);
}

}  // namespace
}  // namespace fovea::files
