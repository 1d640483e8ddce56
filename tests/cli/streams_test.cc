// Standard streams that are full or closed, and names that JSON cannot hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

constexpr const char* kInspect = " inspect models/needle_7m --tensors --json";  // over 4 KiB
constexpr const char* kRun = " run -m models/needle_7m -p hello -n 2";

class StreamsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  }
  // Exit code of fovea in a shell; a signal is 128 and its number.
  int run(const std::string& line) const {
    const std::string shell = "{ '" FOVEA_BINARY "'" + line + "; } 2>>" + folder_.file("err");
    const int status = std::system(shell.c_str());
    return WEXITSTATUS(status);
  }
  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_.file(name)).rdbuf();
    return text.str();
  }
  const test::TempDir folder_;
};

TEST_F(StreamsTest, FullStandardOutputIsAnError) {
  for (const char* line :
       {kInspect, " inspect models/needle_7m", kRun, " --help", " run --help", " --version", ""}) {
    EXPECT_EQ(run(std::string(line) + " >/dev/full"), 2) << line;
  }
  std::string expected;
  for (int i = 0; i < 7; ++i) {
    expected += "fovea: error: cannot write standard output: No space left on device\n";
  }
  EXPECT_EQ(content("err"), expected);
}

TEST_F(StreamsTest, ClosedStandardOutputIsAnError) {
  EXPECT_EQ(run(std::string(kInspect) + " >&-"), 2);
  EXPECT_EQ(content("err"), "fovea: error: cannot write standard output: Bad file descriptor\n");
}

TEST_F(StreamsTest, StandardErrorMayBeFullOrClosed) {
  const std::string out = " >" + folder_.file("out");
  for (const char* err : {" 2>/dev/full", " 2>&-"}) {
    EXPECT_EQ(run(kRun + out + err), 0) << err;
    EXPECT_NE(content("out"), "") << err;
    EXPECT_EQ(run(std::string(" run -m no/such/model -p x") + err), 2) << err;
  }
}

TEST_F(StreamsTest, NamesThatAreNotUtf8MakeJson) {
  const std::string model = folder_.file("caf\xe9");
  std::filesystem::create_directory_symlink(std::filesystem::absolute("models/needle_7m"), model);
  const std::string files = " -m " + model + " -o " + folder_.file("out\xe9.json");
  EXPECT_EQ(run(" run -p hello -n 2 --json" + files + " >" + folder_.file("out")), 0)
      << content("err");
  const nlohmann::json printed = nlohmann::json::parse(content("out"));
  EXPECT_THAT(printed.at("conditions").dump(), testing::HasSubstr("caf\uFFFD"));
  EXPECT_EQ(nlohmann::json::parse(content("out\xe9.json")), printed);
}

}  // namespace
}  // namespace fovea::cli
