#include "apps/cli/text_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fovea/base/error.h"
#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    check_utf8(text, "the prompt");
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(CheckUtf8, AcceptsEveryLengthOfSequence) {
  EXPECT_EQ(error_of("a \u00e9 \u20ac \U0001f600 \U0010ffff"), "none");
  EXPECT_EQ(error_of(std::string("nul \0 is a character", 20)), "none");
}

TEST(CheckUtf8, NamesTheFirstBadByte) {
  for (const char* bad : {"\xff", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\x80", "\xe2\x82", "\xf0\x9f\x98"}) {
    EXPECT_THAT(error_of(std::string("ab\u00e9") + bad), HasSubstr("at offset 4")) << bad;
  }
}

TEST(Printable, IsOneLineOfUtf8WithoutControlBytes) {
  EXPECT_EQ(printable("a\nb \u20ac\n \n"), "a b \u20ac");
  EXPECT_EQ(printable("\x1b[1m\t\x7f\xff\xe2\x82"), R"(\x1b[1m\x09\x7f\xff\xe2\x82)");
}

std::string read_error(const std::string& text) {
  const test::TempDir folder;
  std::ofstream(folder.file("a.txt"), std::ios::binary) << text;
  try {
    return "read " + read_utf8_text(folder.file("a.txt"));
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ReadUtf8Text, LeavesTheMarkOfUtf8Out) {
  EXPECT_EQ(read_error("\xef\xbb\xbfhello"), "read hello");
  EXPECT_THAT(read_error("\xef\xbb\xbf"), HasSubstr("holds no text"));
}

TEST(ReadUtf8Text, SaysHowToConvertUtf16) {
  using namespace std::string_literals;
  EXPECT_THAT(read_error("\xff\xfeh\0i\0"s), HasSubstr("iconv -f UTF-16 -t UTF-8"));
  EXPECT_THAT(read_error("\xfe\xff\0h\0i"s), HasSubstr("iconv -f UTF-16 -t UTF-8"));
  EXPECT_THAT(read_error("h\0i\0"s), HasSubstr("NUL at offset 1"));
}

class OutputFileTest : public testing::Test {
 protected:
  const test::TempDir temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(OutputFileTest, KeepsTheOldContentUntilWritten) {
  const std::string path = folder_ + "/report.json";
  std::ofstream(path) << "old";
  { const OutputFile unused(path); }
  EXPECT_EQ(read_text(path), "old");
  OutputFile file(path);
  file.write("new");
  EXPECT_EQ(read_text(path), "new");
}

TEST_F(OutputFileTest, LeavesNothingBehindWhenNotWritten) {
  const std::string path = folder_ + "/report.json";
  {
    const OutputFile file(path);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(OutputFileTest, RefusesAtOnceWhatCannotBeWritten) {
  EXPECT_THROW(OutputFile(folder_ + "/missing/report.json"), Error);
  EXPECT_THROW(OutputFile{folder_}, Error);
}

TEST(ReadText, NamesTheFile) {
  try {
    read_text("no/such/file");
    ADD_FAILURE() << "read a file that is not there";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot open no/such/file: No such file or directory");
  }
  EXPECT_THROW(read_text("."), Error);
}

}  // namespace
}  // namespace fovea::cli
