// `fovea eval` as a user runs it: the matrix, and runs that end early and go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"
#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Arguments = std::vector<std::string>;

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Arguments eval_with(const Arguments& more) {
  Arguments arguments = {"eval",     "-m", "models/needle_7m", "-f", "LICENSE",
                         "--length", "1K", "--min-sparse-len", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

nlohmann::json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// What a report says, apart from how long it took.
std::string without_times(nlohmann::json json) {
  for (nlohmann::json& row : json.at("rows")) {
    row.erase("prefill_ms");
    row.erase("attention_and_selection_ms");
  }
  return json.dump(1);
}

TEST(Eval, ScoresEveryCellOfTheMatrix) {
  const nlohmann::json json = json_of(run_fovea(eval_with(
      {"--tasks", "single,eight", "--attention", "witness:2,streaming", "-n", "8", "--densities",
       "own,70", "--periphery", "off,on", "--against", "streaming", "--json"})));
  EXPECT_TRUE(json.at("conditions").contains("model"));
  EXPECT_EQ(json.at("finished"), true);
  const nlohmann::json& rows = json.at("rows");
  ASSERT_EQ(rows.size(), 3u * 7);  // an average and two tasks; dense, 4 of witness, 2 of streaming
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("num_questions"), row.at("is_average") ? 16 : 8);
    if (!row.at("is_average")) {  // over one prompt of "eight", which has no interval
      EXPECT_LE(row.at("score_low"), row.at("score"));
      EXPECT_GE(row.at("score_high"), row.at("score"));
    }
    if (row.at("density_asked").is_null()) continue;
    EXPECT_NEAR(row.at("density").at("median"), 0.7, 0.05);  // eight blocks make coarse steps
  }
  EXPECT_EQ(rows.at(7).at("task"), "single");
  EXPECT_EQ(rows.at(7).at("attention"), "dense");
  EXPECT_EQ(rows.at(7).at("score"), 1);
  EXPECT_EQ(rows.at(7).at("density").at("samples").size(), 8u);
  EXPECT_EQ(rows.at(14).at("density").at("samples").size(), 1u);  // eight questions a prompt
  EXPECT_EQ(json.at("selectors").at("witness:2, 70 %, blocks of 128").at("num_witnesses"), 2);
}

TEST(Eval, JudgesByTextsAlone) {
  const nlohmann::json json = json_of(run_fovea({"eval",
                                                 "-m",
                                                 "models/needle_7m",
                                                 "--texts",
                                                 "LICENSE",
                                                 "--tail",
                                                 "200",
                                                 "--length",
                                                 "1500",
                                                 "--min-sparse-len",
                                                 "0",
                                                 "-n",
                                                 "2",
                                                 "--attention",
                                                 "streaming",
                                                 "--sink-tokens",
                                                 "128",
                                                 "--local-tokens",
                                                 "128",
                                                 "--json"}));
  const nlohmann::json& rows = json.at("rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows.at(0).at("text"), "LICENSE");
  EXPECT_EQ(rows.at(0).at("score"), 1);  // dense agrees with itself
  EXPECT_TRUE(rows.at(0).at("nll_above_dense").is_null());
  EXPECT_LT(rows.at(1).at("score"), 1);
  EXPECT_EQ(rows.at(1).at("num_prompts"), 2);
  EXPECT_NE(rows.at(1).at("nll_above_dense").at("difference"), 0);
}

class EvalJournalled : public testing::Test {
 protected:
  Arguments arguments(const std::string& journal) const {
    return eval_with({"--tasks", "single,eight", "--attention", "witness", "-n", "4", "--densities",
                      "60", "--journal", journal, "--json"});
  }
  test::TempDir folder_;
};

TEST_F(EvalJournalled, AKilledRunGoesOnToTheSameReport) {
  const std::string whole = folder_.file("whole.jsonl");
  const nlohmann::json uninterrupted = json_of(run_fovea(arguments(whole)));
  // Killed while it wrote its sixth line.
  const std::string text = read_file(whole);
  // Budgets are known before anything is read: no prompt is read twice to find one.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 2 * (4 + 1));
  size_t end = 0;
  for (int line = 0; line < 5; ++line) end = text.find('\n', end) + 1;
  const std::string killed = folder_.file("killed.jsonl");
  std::ofstream(killed) << text.substr(0, end + 30);
  const ProcessResult resumed = run_fovea(arguments(killed));
  EXPECT_EQ(without_times(json_of(resumed)), without_times(uninterrupted));
  EXPECT_THAT(resumed.err, HasSubstr("the last line was cut off"));
  EXPECT_EQ(read_file(killed).substr(0, end), text.substr(0, end));  // nothing measured twice
}

TEST_F(EvalJournalled, CtrlCLosesAtMostAPrompt) {
  const std::string journal = folder_.file("journal.jsonl");
  Process process(arguments(journal));
  process.interrupt_when([&] {
    const std::string text = read_file(journal);
    return std::count(text.begin(), text.end(), '\n') >= 3;
  });
  const ProcessResult interrupted = process.wait();
  EXPECT_EQ(interrupted.exit_code, 130);
  EXPECT_THAT(interrupted.err, AllOf(HasSubstr("interrupted: the same command goes on from"),
                                     HasSubstr("journal.jsonl")));
  EXPECT_EQ(nlohmann::json::parse(interrupted.out).at("finished"), false);
  const std::string kept = read_file(journal);
  EXPECT_EQ(kept.back(), '\n');

  const nlohmann::json resumed = json_of(run_fovea(arguments(journal)));
  EXPECT_EQ(read_file(journal).substr(0, kept.size()), kept);
  const nlohmann::json fresh = json_of(run_fovea(arguments(folder_.file("fresh.jsonl"))));
  EXPECT_EQ(without_times(resumed), without_times(fresh));
}

TEST_F(EvalJournalled, MoreCellsExtendIt) {
  const std::string journal = folder_.file("journal.jsonl");
  json_of(run_fovea(arguments(journal)));
  const std::string before = read_file(journal);
  Arguments more = arguments(journal);
  more.insert(more.end(), {"--periphery", "off,on"});
  EXPECT_EQ(json_of(run_fovea(more)).at("rows").size(), 9u);
  EXPECT_EQ(read_file(journal).substr(0, before.size()), before);

  Arguments other = arguments(journal);
  other.insert(other.end(), {"--seed", "2"});
  const ProcessResult refused = run_fovea(other);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("seed was 1 there and is 2 here"));
}

TEST(Eval, WritesAPage) {
  const test::TempDir folder;
  const ProcessResult result = run_fovea(
      eval_with({"--tasks", "single", "--attention", "witness", "-n", "2", "--densities", "60",
                 "-o", folder.file("eval.json"), "--report", folder.file("a.html")}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("single, 1024 tokens"), HasSubstr("conditions: ")));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder.file("eval.json"))).at("command"), "eval");
  EXPECT_THAT(read_file(folder.file("a.html")),
              AllOf(HasSubstr("<svg"), HasSubstr("witness"), HasSubstr("needle_7m")));
}

TEST(Eval, Diagnoses) {
  const test::TempDir folder;
  const nlohmann::json json = json_of(run_fovea({"eval",
                                                 "-m",
                                                 "models/needle_7m",
                                                 "--texts",
                                                 "LICENSE",
                                                 "--length",
                                                 "2K",
                                                 "--block-size",
                                                 "64",
                                                 "--attention",
                                                 "centroid,witness",
                                                 "--densities",
                                                 "own,20",
                                                 "--periphery",
                                                 "off,on",
                                                 "-n",
                                                 "1",
                                                 "--diagnose",
                                                 "--report",
                                                 folder.file("a.html"),
                                                 "--json"}));
  const nlohmann::json& diagnosis = json.at("diagnosis");
  EXPECT_THAT(diagnosis.at("prompts"), ElementsAre("LICENSE, 2048 tokens, prompt 0"));
  ASSERT_EQ(diagnosis.at("selectors").size(), 4u);  // the periphery changes nothing here
  EXPECT_NEAR(diagnosis.at("selectors").at(1).at("density"), 0.2, 0.03);  // 32 blocks, coarse steps
  EXPECT_EQ(diagnosis.at("selectors").at(0).at("head_density").size(), 6u);  // layers
  EXPECT_EQ(diagnosis.at("scores").size(), 4u);
  EXPECT_NEAR(diagnosis.at("density"), 0.2, 1e-6);
  EXPECT_THAT(read_file(folder.file("a.html")),
              AllOf(HasSubstr("centroid: "), HasSubstr("layer 5, head 3"), HasSubstr("<svg")));
}

TEST(Eval, RefusesWhatItCannotDo) {
  const auto refused = [](const Arguments& arguments, const std::string& named) {
    const ProcessResult result = run_fovea(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("fovea: error: "), HasSubstr(named)));
    EXPECT_EQ(result.out, "");
  };
  refused({"eval", "-m", "models/needle_7m"}, "--file is required");
  refused(eval_with({"--densities", "5", "--density", "0.05"}), "give --density");
  refused(eval_with({"--densities", "0.05"}), "percents in 0.1 ... 100");
  refused(eval_with({"--attention", "rescue", "--against", "witness"}), "--against witness");
  refused(eval_with({"--tasks", "single,single"}), "twice");
  refused(eval_with({"--texts", "LICENSE", "--tail", "0"}), "--tail");
  refused({"eval", "-m", "models/needle_7m", "--texts", "LICENSE", "--length", "64K"},
          "LICENSE: the text has");
  refused(eval_with({"--diagnose", "--journal", "a.jsonl"}), "--journal keeps scores");
  refused(eval_with({"--attention", "rescue", "--block-size", "64,128", "--diagnose"}),
          "one block size");
  refused(eval_with({"--task-files", "no/such.jsonl"}), "no/such.jsonl");
  refused(eval_with({"--journal", "no/such/folder/a.jsonl"}), "no/such/folder/a.jsonl");
}

}  // namespace
}  // namespace fovea::cli
