// Status: what a caller can rely on when it keeps, copies or prints one.
#include "fovea/status.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <type_traits>

namespace fovea {
namespace {

TEST(StatusTest, DefaultIsOkWithAnEmptyMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_STREQ(status.message(), "");
}

TEST(StatusTest, KeepsCodeAndMessage) {
  for (StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kUnsupported, StatusCode::kOutOfMemory}) {
    const Status status(code, "v.shape[2] = 96, expected 128 (k.shape[2])");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_STREQ(status.message(), "v.shape[2] = 96, expected 128 (k.shape[2])");
  }
}

TEST(StatusTest, CopiesTheMessage) {
  char text[] = "first";
  const Status status(StatusCode::kInvalidArgument, text);
  std::memcpy(text, "other", 5);
  EXPECT_STREQ(status.message(), "first");
}

TEST(StatusTest, LongMessagesAreCutAndStayTerminated) {
  for (int length : {Status::kMaxMessage - 2, Status::kMaxMessage - 1, Status::kMaxMessage,
                     Status::kMaxMessage + 1, 10000}) {
    const std::string text(static_cast<size_t>(length), 'x');
    const Status status(StatusCode::kInvalidArgument, text.c_str());
    const std::string kept = status.message();
    EXPECT_LE(kept.size(), static_cast<size_t>(Status::kMaxMessage) - 1);
    EXPECT_EQ(kept, text.substr(0, kept.size()));
    if (length < Status::kMaxMessage) {
      EXPECT_EQ(kept, text);
    }
  }
}

TEST(StatusTest, IsTriviallyCopyableAndIndependentOfItsSource) {
  static_assert(std::is_trivially_copyable_v<Status>);
  Status copy;
  {
    const Status status(StatusCode::kUnsupported, "q.dtype = f16");
    copy = status;
  }
  EXPECT_EQ(copy.code(), StatusCode::kUnsupported);
  EXPECT_STREQ(copy.message(), "q.dtype = f16");
}

}  // namespace
}  // namespace fovea
