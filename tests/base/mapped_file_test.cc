#include "fovea/base/mapped_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "fovea/base/error.h"
#include "tests/support/temp_dir.h"

namespace fovea {
namespace {

TEST(MappedFile, ReadsWhatWasWrittenAndSurvivesMoves) {
  const test::TempDir temp;
  const std::string path = temp.file("some.bin");
  std::ofstream(path, std::ios::binary) << "fovea";
  MappedFile first(path);
  MappedFile second(std::move(first));
  ASSERT_EQ(second.size(), 5);
  EXPECT_EQ(static_cast<char>(second.bytes()[4]), 'a');
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const test::TempDir temp;
  const std::string path = temp.file("empty.bin");
  std::ofstream(path, std::ios::binary).flush();
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST(MappedFile, NamesThePathThatCannotBeRead) {
  try {
    MappedFile("no/such/file");
    FAIL() << "opened a file that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    EXPECT_STREQ(error.what(), "cannot open 'no/such/file': No such file or directory");
  }
  EXPECT_THROW(MappedFile("."), Error);
}

}  // namespace
}  // namespace fovea
