// `fovea run --trace`: what `fovea trace` says of it is what `fovea run` says of itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/process.h"
#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

using testing::HasSubstr;

std::string text_of(int num_words) {
  std::string text;
  for (int i = 0; i < num_words; ++i) text += " the value of stream" + std::to_string(i);
  return text;
}

std::vector<std::string> run_arguments(const std::string& trace) {
  return {"run",
          "-m",
          "models/needle_7m",
          "-f",
          "-",
          "--length",
          "3K",
          "-n",
          "4",
          "--ignore-eos",
          "--json",
          "--attention",
          "rescue",
          "--chunk-size",
          "2048",
          "--trace",
          trace};
}

nlohmann::json phase_of(const nlohmann::json& report, const std::string& name) {
  for (const nlohmann::json& phase : report.at("phases")) {
    if (phase.at("phase") == name) return phase;
  }
  ADD_FAILURE() << "no phase " << name;
  return {};
}

double family_us(const nlohmann::json& phase, const std::string& name) {
  for (const nlohmann::json& family : phase.at("families")) {
    if (family.at("name") == name) return family.at("time_us");
  }
  return 0;
}

TEST(RunTrace, SharesAreThoseOfTheRunsOwnReport) {
  for (const std::string name : {"run.json", "run.json.gz"}) {
    const test::TempDir folder;
    const std::string path = folder.file(name);
    const ProcessResult run = run_fovea(run_arguments(path), text_of(2000));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const nlohmann::json own = nlohmann::json::parse(run.out).at("prefill");
    const ProcessResult seen = run_fovea({"trace", path, "--json"});
    ASSERT_EQ(seen.exit_code, 0) << seen.err;
    const nlohmann::json report = nlohmann::json::parse(seen.out);

    const nlohmann::json prefill = phase_of(report, "prefill");
    const nlohmann::json decode = phase_of(report, "decode");
    EXPECT_EQ(report.at("phases").size(), 2u);
    EXPECT_EQ(prefill.at("num_steps"), 2);  // chunks
    EXPECT_EQ(decode.at("num_steps"), 3);   // the first of four tokens is the prefill's
    const double rounding_us = 0.001 * prefill.at("num_kernels").get<double>();
    for (const char* part : {"attention", "matmul", "selection"}) {
      EXPECT_NEAR(family_us(prefill, part), 1e3 * own.at(std::string(part) + "_ms").get<double>(),
                  rounding_us)
          << part;
    }
    EXPECT_GT(family_us(decode, "attention"), 0);
    EXPECT_EQ(prefill.at("unknown_share"), 0);
    EXPECT_EQ(decode.at("unknown_share"), 0);
    const double share = own.at("attention_ms").get<double>() / own.at("total_ms").get<double>();
    EXPECT_NEAR(prefill.at("attention_share_low").get<double>(), share, 0.01);
  }
}

TEST(RunTrace, IsWhatPerfettoReads) {
  const test::TempDir folder;
  const ProcessResult run = run_fovea(run_arguments(folder.file("run.json")), text_of(2000));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::ifstream file(folder.file("run.json"));
  const nlohmann::json events = nlohmann::json::parse(file).at("traceEvents");
  std::vector<nlohmann::json> steps;
  for (const nlohmann::json& event : events) {
    if (event.value("cat", "") == "user_annotation") steps.push_back(event);
  }
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(steps[0].at("name"), "step[prefill bs=1 toks=2048]");
  EXPECT_EQ(steps[4].at("name"), "step[decode bs=1 toks=1]");
  const auto end_of = [](const nlohmann::json& event) {
    return event.at("ts").get<double>() + event.at("dur").get<double>();
  };
  int64_t num_layers = 0;
  for (const nlohmann::json& event : events) {
    if (event.value("cat", "") != "kernel") continue;
    // Slices of one track nest: each piece lies within one step.
    int64_t num_around = 0;
    for (const nlohmann::json& step : steps) {
      num_around += event.at("ts").get<double>() >= step.at("ts").get<double>() - 0.002 &&
                    end_of(event) <= end_of(step) + 0.002;
    }
    EXPECT_EQ(num_around, 1) << event;
    num_layers += event.at("name") == "down_matmul";
  }
  EXPECT_EQ(num_layers, 5 * 6);
}

TEST(Trace, SeveralFilesStandSideBySide) {
  const ProcessResult result = run_fovea(
      {"trace", "tests/golden/traces/torch_h200.json.gz", "tests/golden/traces/cuda_h200.json.gz"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t table = result.out.find("communication");
  ASSERT_NE(table, std::string::npos);
  EXPECT_THAT(result.out.substr(table), testing::ContainsRegex("torch_h200.json.gz +- +1.55 ms"));
  EXPECT_THAT(result.out.substr(table), testing::ContainsRegex("cuda_h200.json.gz +- +60.7 ms"));
}

TEST(RunTrace, PathsThatCannotBeWrittenAreFoundBeforeTheModelIsRead) {
  const ProcessResult result =
      run_fovea({"run", "-m", "does/not/exist", "-p", "x", "--trace", "/does/not/exist/x.json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot write /does/not/exist/x.json: No such file"));
  EXPECT_THAT(run_fovea({"run", "-m", "x", "-p", "x", "--trace", "-"}).err,
              HasSubstr("--trace needs a file"));
  EXPECT_THAT(run_fovea({"run", "-m", "x", "-p", "x", "--trace", "y", "-o", "y"}).err,
              HasSubstr("--trace and --output name the same file, y"));
}

TEST(RunTrace, AFullDiskIsOneLineAndCostsNoAnswer) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProcessResult result = run_fovea({"run", "-m", "models/needle_7m", "-p", "the value", "-n",
                                          "2", "--json", "--trace", "/dev/full"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(nlohmann::json::parse(result.out).at("output_tokens"), 2);
  EXPECT_EQ(result.err, "fovea: error: cannot write '/dev/full': No space left on device\n");
}

TEST(RunTrace, CtrlCLeavesAReadableTrace) {
  const test::TempDir folder;
  const std::string path = folder.file("run.json.gz");
  Process process({"run", "-m", "models/needle_7m", "-f", "-", "--length", "100K", "--chunk-size",
                   "1024", "--trace", path},
                  text_of(40000));
  // The file is there for a moment when the options are checked, and to stay once the model is
  // loaded.
  int num_seen = 0;
  for (int i = 0; i < 6000 && num_seen < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    num_seen = std::filesystem::exists(path) ? num_seen + 1 : 0;
  }
  process.interrupt();
  EXPECT_EQ(process.wait().exit_code, 130);
  const ProcessResult seen = run_fovea({"trace", path, "--json"});
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_FALSE(nlohmann::json::parse(seen.out).at("file").at("truncated"));
}

}  // namespace
}  // namespace fovea::cli
