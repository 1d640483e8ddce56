#include "apps/cli/eval_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>

#include "fovea/base/error.h"
#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PromptRecord record(double score) {
  PromptRecord one;
  one.scores = {score, 1};
  one.density = 0.1 + score / 3;
  one.prefill_ms = 12.5;
  return one;
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

class Journal : public testing::Test {
 protected:
  std::string error_of(const nlohmann::json& settings) const {
    try {
      EvalJournal journal(path_, settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  test::TempDir folder_;
  const std::string path_ = folder_.file("eval.jsonl");
  const nlohmann::json settings_ = {{"model", "abc"}, {"seed", 1}};
};

TEST_F(Journal, GivesBackWhatWasMeasured) {
  {
    EvalJournal journal(path_, settings_);
    PromptRecord text = record(0.5);
    text.nll_difference = {0.25, -0.1};
    text.best_tokens = {7, 8};
    text.logprobs = {-0.1f, -2};
    journal.append("key", 0, {{"subject", "single"}}, record(1.0 / 3));
    journal.append("key", 1, {}, text);
    journal.append("other", 0, {}, record(0));
    EXPECT_EQ(journal.num_taken_over(), 0);
  }
  const EvalJournal journal(path_, settings_);
  EXPECT_EQ(journal.num_taken_over(), 3);
  EXPECT_THAT(journal.notes(), ElementsAre());
  ASSERT_NE(journal.find("key", 0), nullptr);
  EXPECT_EQ(journal.find("key", 0)->scores, record(1.0 / 3).scores);  // bit by bit
  EXPECT_EQ(journal.find("key", 0)->density, record(1.0 / 3).density);
  EXPECT_THAT(journal.find("key", 1)->nll_difference, ElementsAre(0.25, -0.1));
  EXPECT_THAT(journal.find("key", 1)->best_tokens, ElementsAre(7, 8));
  EXPECT_THAT(journal.find("key", 1)->logprobs, ElementsAre(-0.1f, -2));
  EXPECT_EQ(journal.find("key", 2), nullptr);
  EXPECT_EQ(journal.find("another", 0), nullptr);
}

TEST_F(Journal, DropsALineThatWasCutOff) {
  {
    EvalJournal journal(path_, settings_);
    journal.append("key", 0, {}, record(1));
    journal.append("key", 1, {}, record(0));
  }
  const std::string whole = read_file(path_);
  for (const size_t cut : {size_t{1}, size_t{20}}) {
    write_file(path_, whole.substr(0, whole.size() - cut));
    EvalJournal journal(path_, settings_);
    EXPECT_THAT(journal.notes(), ElementsAre(HasSubstr("cut off")));
    EXPECT_EQ(journal.num_taken_over(), 1);
    journal.append("key", 1, {}, record(0));
    EXPECT_EQ(read_file(path_), whole);
  }
  write_file(path_, whole.substr(0, 5));  // not even the first line is whole
  EXPECT_EQ(EvalJournal(path_, settings_).num_taken_over(), 0);
}

TEST_F(Journal, RefusesAnotherEvaluations) {
  { EvalJournal journal(path_, settings_); }
  EXPECT_THAT(error_of({{"model", "abc"}, {"seed", 2}}),
              HasSubstr("seed was 1 there and is 2 here"));
  EXPECT_THAT(error_of({{"model", "xyz"}, {"seed", 1}}), HasSubstr("model was \"abc\""));
  EXPECT_EQ(error_of(settings_), "none");
}

TEST_F(Journal, RefusesWhatIsNoJournal) {
  write_file(path_, "a report of last year\n");
  EXPECT_THAT(error_of(settings_), HasSubstr("line 1 is not one of fovea eval's"));
  { EvalJournal fresh(folder_.file("fresh"), settings_); }
  const std::string header = read_file(folder_.file("fresh"));
  write_file(path_, header + "{\"key\":\"k\"}\n");
  EXPECT_THAT(error_of(settings_), HasSubstr("line 2 is not one"));
  write_file(path_, header + "torn\n{}\n");
  EXPECT_THAT(error_of(settings_), HasSubstr("line 2 is not one"));
  EXPECT_THROW(EvalJournal(folder_.path(), settings_), Error);
  EXPECT_THROW(EvalJournal("-", settings_), Error);
}

TEST_F(Journal, OneRunAtATime) {
  const EvalJournal journal(path_, settings_);
  EXPECT_THAT(error_of(settings_), HasSubstr("in use by another run"));
}

TEST_F(Journal, AFullDiskLosesNothingThatWasWritten) {
  {
    EvalJournal journal(path_, settings_);
    journal.append("key", 0, {}, record(1));
    const std::string before = read_file(path_);
    // A file may grow by ten more bytes, which is half a line.
    rlimit limit = {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit unlimited = limit;
    signal(SIGXFSZ, SIG_IGN);
    limit.rlim_cur = before.size() + 10;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THROW(journal.append("key", 1, {}, record(0)), Error);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    EXPECT_EQ(read_file(path_), before);
    EXPECT_EQ(journal.find("key", 1), nullptr);
    journal.append("key", 1, {}, record(0));  // there is room again
  }
  EXPECT_EQ(EvalJournal(path_, settings_).num_taken_over(), 2);
}

TEST(ContentHash, FollowsContentAndNames) {
  const test::TempDir folder;
  write_file(folder.file("a.gguf"), std::string(300'000, 'x'));
  const std::string hash = content_hash(folder.file("a.gguf"));
  EXPECT_EQ(content_hash(folder.file("a.gguf")), hash);
  std::string changed(300'000, 'x');
  changed[200'000] = 'y';
  write_file(folder.file("a.gguf"), changed);
  EXPECT_NE(content_hash(folder.file("a.gguf")), hash);
  const std::string of_folder = content_hash(folder.path());
  write_file(folder.file("config.json"), "{}");
  EXPECT_NE(content_hash(folder.path()), of_folder);
  EXPECT_NE(content_hash("synthetic a"), content_hash("synthetic b"));
}

}  // namespace
}  // namespace fovea::cli
