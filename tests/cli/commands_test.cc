// What the commands print when all is well, and what Ctrl-C does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace fovea::cli {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kModel = "models/needle_7m";

std::string long_text(int num_words) {
  std::string text;
  for (int i = 0; i < num_words; ++i)
    text += (i % 3 == 0 ? " the value of" : " stream number") + std::to_string(i);
  return text;
}

nlohmann::json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

void expect_conditions(const nlohmann::json& json) {
  for (const char* name : {"machine", "processor", "num_threads", "version", "commit"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  for (const char* name : {"model", "hardware", "weights_dtype", "attention_dtype", "kv_dtype",
                           "prompt_length", "answer_length", "concurrency", "engine", "flags",
                           "prefix_caching", "tokens_counted", "latency_target", "fraction_met"}) {
    EXPECT_TRUE(json.at("conditions").contains(name)) << name;
  }
}

TEST(Help, EveryCommandTeachesByExample) {
  EXPECT_THAT(run_fovea({"--help"}).out, HasSubstr("inspect"));
  for (const std::string command :
       {"run", "bench", "needle", "eval", "calibrate", "inspect", "kernels"}) {
    const ProcessResult result = run_fovea({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("Examples:\n"));
    EXPECT_THAT(result.out, HasSubstr("\n  fovea " + command + " ")) << command;
  }
  EXPECT_EQ(run_fovea({}).out, run_fovea({"--help"}).out);
}

TEST(Version, HasACommit) {
  const ProcessResult result = run_fovea({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("fovea 0."));
  EXPECT_THAT(result.out, HasSubstr("(commit "));
}

TEST(Inspect, SaysWhatTheModelIs) {
  const ProcessResult text = run_fovea({"inspect", kModel});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("qwen3"));
  EXPECT_THAT(text.out, Not(HasSubstr("layers.0.q ")));
  EXPECT_THAT(run_fovea({"inspect", kModel, "--tensors"}).out, HasSubstr("layers.0.q "));

  const nlohmann::json json = json_of(run_fovea({"inspect", kModel, "--json"}));
  EXPECT_EQ(json.at("num_parameters"), 6951680);
  EXPECT_EQ(json.at("kv_bytes_per_token"), 2 * 6 * 2 * 128 * 2);
  EXPECT_EQ(json.at("context_length"), 131072);
  EXPECT_FALSE(json.contains("tensors"));
}

TEST(Run, PutsTheTextOnOneStreamAndTheFiguresOnTheOther) {
  const ProcessResult result = run_fovea(
      {"run", "-m", kModel, "-p",
       " The red code of apple is 12345. Recall: the red code of apple is", "--bos", "-n", "7"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, " 12345.\n");
  EXPECT_THAT(result.err, HasSubstr("ttft"));
  EXPECT_THAT(result.err, HasSubstr("dense density 100 %"));
  EXPECT_THAT(result.err, HasSubstr("latency target missing"));
}

TEST(Run, JsonHasTimesAccountingAndConditions) {
  const nlohmann::json json = json_of(
      run_fovea({"run", "-m", kModel, "-f", "-", "--length", "1K", "--attention", "witness",
                 "--density", "0.3", "--min-sparse-len", "0", "-n", "4", "--ignore-eos", "--json"},
                long_text(3000)));
  expect_conditions(json);
  EXPECT_EQ(json.at("prompt_tokens"), 1024);
  EXPECT_EQ(json.at("prompt_cut"), true);
  EXPECT_GT(json.at("text_tokens"), json.at("prompt_tokens"));
  EXPECT_EQ(json.at("output_tokens"), 4);
  EXPECT_EQ(json.at("selector").at("method"), "witness");
  EXPECT_EQ(json.at("selector").at("dense_tail_blocks"), 2);
  // Eight blocks make 36 causal pairs. Each of the first six query blocks keeps first, own and
  // previous block alone, 15 in all; the last two read all of 7 and 8.
  EXPECT_NEAR(json.at("density").get<double>(), 30.0 / 36, 1e-9);
  EXPECT_EQ(json.at("prefill").at("head_density").size(), 6u);
  EXPECT_GT(json.at("ttft_ms"), 0);
  EXPECT_EQ(json.at("conditions").at("flags").at("--density"), "0.3");
}

TEST(Run, SparseThatKeepsEverythingAnswersAsDense) {
  const std::vector<std::string> common = {
      "run", "-m", kModel,         "-f",      "-",   "--length", "1K",
      "-n",  "8",  "--ignore-eos", "--dtype", "f32", "--json",   "--attention"};
  auto dense = common;
  dense.push_back("dense");
  auto all = common;
  all.push_back("all");
  EXPECT_EQ(json_of(run_fovea(dense, long_text(1000))).at("tokens"),
            json_of(run_fovea(all, long_text(1000))).at("tokens"));
}

TEST(Bench, MeasuresEachLengthWithEachAttention) {
  const test::TempDir folder;
  const std::string output = folder.file("bench.json");
  const ProcessResult result =
      run_fovea({"bench", "-m", kModel, "-f", "-", "--lengths", "256,512", "--decode-tokens", "4",
                 "--attention", "all,dense", "--repetitions", "2", "--dtype", "f32", "-o", output},
                long_text(3000));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("speed-up"));
  EXPECT_THAT(result.out, HasSubstr("conditions:"));

  std::ifstream file(output);
  const nlohmann::json json = nlohmann::json::parse(file);
  expect_conditions(json);
  EXPECT_EQ(json.at("finished"), true);
  ASSERT_EQ(json.at("rows").size(), 4u);
  for (const auto& row : json.at("rows")) {
    EXPECT_EQ(row.at("ttft_ms").at("samples").size(), 2u);
    EXPECT_EQ(row.at("density").at("median"), 1.0);
    EXPECT_EQ(row.at("agreement").at("top1_share"), 1.0);
    EXPECT_LT(row.at("agreement").at("mean_kl"), 1e-6);
    EXPECT_GT(row.at("peak_memory_bytes"), 0);
  }
}

TEST(Bench, SaysWhyThereIsNoChain) {
  const ProcessResult result =
      run_fovea({"bench", "-m", kModel, "-f", "-", "--lengths", "256", "--decode-tokens", "2",
                 "--attention", "dense,rescue", "--repetitions", "1", "--chain"},
                long_text(3000));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("No chain: no prompt was read sparsely"));
}

TEST(Needle, ReportsEachDocument) {
  const nlohmann::json json =
      json_of(run_fovea({"needle", "-m", kModel, "-f", "-", "--length", "512", "--attention",
                         "dense,all", "--documents", "2", "--json"},
                        long_text(3000)));
  expect_conditions(json);
  ASSERT_EQ(json.at("documents").size(), 2u);
  for (const auto& document : json.at("documents")) {
    EXPECT_GT(document.at("prompt_tokens"), 500);  // 512 with the answer
    EXPECT_LT(document.at("prompt_tokens"), 512);
  }
  ASSERT_EQ(json.at("rows").size(), 2u);
  EXPECT_EQ(json.at("rows").at(0).at("num_documents"), 2);
}

TEST(Needle, SaysThatAPromptWasReadDensely) {
  const ProcessResult result = run_fovea({"needle", "-m", kModel, "-f", "-", "--length", "512",
                                          "--attention", "witness", "--documents", "1"},
                                         long_text(3000));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("read densely: "));
}

TEST(Needle, WhenTimeIsUpTheMiddleDepthsHaveBeenRead) {
  const std::vector<std::string> command{
      "needle",      "-m", kModel,          "-f",   "-", "--length", "512", "--attention", "dense",
      "--documents", "3",  "--max-seconds", "0.001"};
  std::vector<std::string> with_json = command;
  with_json.emplace_back("--json");
  const nlohmann::json json = json_of(run_fovea(with_json, long_text(3000)));
  ASSERT_EQ(json.at("documents").size(), 1u);
  const double depth = json.at("documents").at(0).at("depth");
  EXPECT_NEAR(depth, 0.5, 0.2);  // not 0 or 1; facts stand at the end of a line
  EXPECT_THAT(run_fovea(command, long_text(3000)).out, HasSubstr("2 of 3 documents left out"));
}

TEST(Kernels, StandBesideTheMachinesOwnRates) {
  const nlohmann::json json = json_of(run_fovea(
      {"kernels", "--lengths", "1K", "--attention", "witness", "--density", "0.5", "--head-dim",
       "64", "--q-heads", "2", "--kv-heads", "1", "--min-seconds", "0", "--json"}));
  expect_conditions(json);
  EXPECT_GT(json.at("gemm_gflops"), 0);
  EXPECT_GT(json.at("copy_gb_per_s"), 0);
  std::vector<std::string> names;
  for (const auto& row : json.at("rows")) {
    names.push_back(row.at("kernel"));
    EXPECT_GT(row.at("median_ms"), 0);
  }
  EXPECT_THAT(names, testing::ElementsAre("attention", "attention, sparse", "selection: witness",
                                          "decode"));
}

TEST(Interrupt, EndsARunWith130AndSaysHowFarItCame) {
  Process process({"run", "-m", kModel, "-f", "-", "--length", "100K"}, long_text(60000));
  process.interrupt();
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  // While the model was loaded or the prompt was read, whichever it was at.
  EXPECT_THAT(result.err, StartsWith("fovea: interrupted: had "));
  EXPECT_EQ(result.out, "");
}

TEST(Interrupt, EndsAnAnswerWith130AndSaysHowFarItCame) {
  Process process({"run", "-m", kModel, "-p", " import", "-n", "100000", "--ignore-eos"});
  process.interrupt_after_output();
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("fovea: interrupted: had read 1 tokens and written "));
  EXPECT_NE(result.out, "");
}

TEST(Interrupt, EndsABenchWithoutAHalfWrittenFile) {
  const test::TempDir folder;
  const std::string output = folder.file("bench.json");
  Process process({"bench", "-m", kModel, "-f", "-", "--lengths", "64K", "-o", output},
                  long_text(60000));
  process.interrupt();
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, AnyOf(StartsWith("fovea: interrupted: had loaded "),
                                StartsWith("fovea: interrupted: 0 of 1 lengths")));
  EXPECT_FALSE(std::ifstream(output).good());
}

}  // namespace
}  // namespace fovea::cli
