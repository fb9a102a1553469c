// Command lines: what is accepted, and that every mistake is named.
#include "cli/args.h"

#include <gtest/gtest.h>

#include <limits>

#include "cli/failure.h"

namespace fovea::cli {
namespace {

const Command kCommand = {"paint",
                          "Paints.",
                          {{"--count", "N", "how many"},
                           {"--scale", "X", "how large"},
                           {"--sizes", "LIST", "which"},
                           {"--dry", nullptr, "no paint"}},
                          nullptr};

std::string ErrorOf(const std::vector<std::string>& words) {
  try {
    const Args args(kCommand, words);
    args.Integer("--count", 0, 0, 10);
    args.Number("--scale", 0);
    args.Float("--scale", 0);
    args.Integers("--sizes", "1", 0, 100);
  } catch (const Failure& failure) {
    return failure.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(ArgsTest, ReadsValuesOfEveryKind) {
  const Args args(kCommand, {"--count", "7", "--scale=-1.5", "--sizes", "1,2,3", "--dry"});
  EXPECT_EQ(args.Integer("--count", 0, 0, 10), 7);
  EXPECT_EQ(args.Number("--scale", 0), -1.5);
  EXPECT_EQ(args.Integers("--sizes", "", 0, 10), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(args.Has("--dry"));
}

TEST(ArgsTest, FallsBackWhereNothingIsGiven) {
  const Args args(kCommand, {});
  EXPECT_EQ(args.Integer("--count", 5, 0, 10), 5);
  EXPECT_EQ(args.Number("--scale", 2.5), 2.5);
  EXPECT_EQ(args.List("--sizes", "a,b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(args.Has("--dry"));
}

TEST(ArgsTest, NamesMistakes) {
  EXPECT_NE(ErrorOf({"--cuont", "7"}).find("unknown option '--cuont'"), std::string::npos);
  EXPECT_NE(ErrorOf({"seven"}).find("unexpected argument 'seven'"), std::string::npos);
  EXPECT_NE(ErrorOf({"--count"}).find("needs a value"), std::string::npos);
  EXPECT_NE(ErrorOf({"--dry=yes"}).find("takes no value"), std::string::npos);
  EXPECT_NE(ErrorOf({"--dry", "--dry"}).find("given twice"), std::string::npos);
  EXPECT_NE(ErrorOf({"--count", "11"}).find("at most 10"), std::string::npos);
  EXPECT_NE(ErrorOf({"--count", "-1"}).find("at least 0"), std::string::npos);
}

TEST(ArgsTest, RefusesWhatIsNoNumber) {
  for (const char* text : {"", " 7", "7 ", "seven", "7.5", "99999999999999999999", "0x7"})
    ErrorOf({"--count", text});
  for (const char* text : {"", "x", "1.5x", "inf", "nan", "1e999"}) ErrorOf({"--scale", text});
  for (const char* text : {"", "1,", ",1", "1,,2", "1;2"}) ErrorOf({"--sizes", text});
}

TEST(ArgsTest, NumbersAreCheckedBeforeTheyNarrow) {
  const auto narrowed = [](const char* text) {
    return Args(kCommand, {"--scale", text}).Float("--scale", 0);
  };
  EXPECT_EQ(narrowed("-1e-45"), -std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(narrowed("0"), 0.0f);
  EXPECT_EQ(narrowed("3.40282347e38"), std::numeric_limits<float>::max());
  EXPECT_EQ(Args(kCommand, {}).Float("--scale", 2.5f), 2.5f);
  for (const char* text : {"1e-50", "-1e-50", "7e-46", "3.4028236e38", "1e40", "-1e300"})
    EXPECT_NE(ErrorOf({"--scale", text}).find(text), std::string::npos);
  ErrorOf({"--scale", "1e-400"});  // no double
}

TEST(ArgsTest, HelpListsEveryOption) {
  const std::string help = Help(kCommand);
  for (const Option& option : kCommand.options)
    EXPECT_NE(help.find(option.name), std::string::npos) << option.name;
}

}  // namespace
}  // namespace fovea::cli
