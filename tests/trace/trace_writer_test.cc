#include "fovea/trace/trace_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/trace/trace_report.h"
#include "tests/trace/trace_builder.h"

namespace fovea::trace {
namespace {

nlohmann::json parse_file(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(TraceWriter, WhatItWritesTheReaderReads) {
  const TemporaryFile file("");
  TraceWriter writer(file.path());
  writer.name_process(1, "fovea");
  writer.name_thread(1, 2, "engine \"main\"\n");
  writer.write({.name = "step[prefill bs=1 toks=64]",
                .category = "user_annotation",
                .ts_us = 0,
                .dur_us = 100,
                .pid = 1,
                .tid = 2});
  writer.write({.name = "fovea_attention",
                .category = "kernel",
                .ts_us = 10,
                .dur_us = 30,
                .pid = 1,
                .tid = 2,
                .args = {{"layer", "0"}}});
  writer.write(
      {.name = "matmul \xff", .category = "kernel", .ts_us = 50, .dur_us = 10, .pid = 1, .tid = 2});
  writer.finish();
  const TraceReport report = analyse_trace(file.path(), FamilyTable());
  ASSERT_NE(report.phase(Phase::kPrefill), nullptr);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->attention.low, 0.75, 1e-6);
  EXPECT_EQ(report.file.num_malformed, 0);
  const nlohmann::json json = parse_file(file.path());
  EXPECT_EQ(json["traceEvents"].size(), 5u);
  EXPECT_EQ(json["traceEvents"][3]["args"]["layer"], "0");
}

TEST(TraceWriter, NamesInGzAreCompressed) {
  const TemporaryFile file("", ".json.gz");
  TraceWriter writer(file.path());
  for (int i = 0; i < 1000; ++i) {
    writer.write({.name = "matmul", .category = "kernel", .ts_us = 10.0 * i, .dur_us = 5});
  }
  writer.finish();
  const TraceReport report = analyse_trace(file.path(), FamilyTable());
  EXPECT_TRUE(report.file.compressed);
  EXPECT_EQ(report.total.num_kernels, 1000);
  EXPECT_LT(report.file.file_bytes * 5, report.file.json_bytes);
}

TEST(TraceWriter, WhatIsLeftBehindWithoutFinishIsReadable) {
  const TemporaryFile file("");
  TraceWriter(file.path()).write({.name = "matmul", .category = "kernel", .dur_us = 5});
  EXPECT_EQ(parse_file(file.path())["traceEvents"].size(), 1u);
}

TEST(TraceWriter, PathsThatCannotBeWritten) {
  EXPECT_THROW(TraceWriter("/does/not/exist/out.json"), Error);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TraceWriter writer("/dev/full");
  for (int i = 0; i < 10'000; ++i) writer.write({.name = "matmul", .category = "kernel"});
  try {
    writer.finish();
    FAIL() << "a full disk was not noticed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot write '/dev/full': No space left on device");
  }
}

TEST(Cut, KeepsTheWindowAndTheShares) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=8]", 0, 1000);
  builder.event("aten::mm", "cpu_op", 100, 100, 0, 5, R"("External id": 1)");
  builder.launched("void flash_fwd_kernel<T>(P)\x01", 1, 100, 25).launched("nvjet_x", 2, 200, 75);
  builder.launched("nvjet_x", 3, 5000, 75);
  const TemporaryFile in(builder.json());
  const TemporaryFile out("");
  const CutSummary summary =
      write_cut(in.path(), out.path(), FamilyTable(), {.from_us = 50, .to_us = 1000});
  EXPECT_EQ(summary.num_written, 5);
  EXPECT_EQ(summary.num_left_out, 0);
  const TraceReport report = analyse_trace(out.path(), FamilyTable());
  ASSERT_NE(report.phase(Phase::kDecode), nullptr);
  EXPECT_EQ(report.total.num_kernels, 2);
  EXPECT_NEAR(report.total.attention.low, 0.25, 1e-6);
  const nlohmann::json json = parse_file(out.path());
  int arrows = 0;
  std::string family;
  for (const auto& event : json["traceEvents"]) {
    arrows += event["ph"] == "s" || event["ph"] == "f";
    if (family.empty() && event.contains("args") && event["args"].contains("family")) {
      family = event["args"]["family"];
    }
  }
  EXPECT_EQ(arrows, 4);
  EXPECT_EQ(family, "attention");
}

TEST(Cut, SaysWhatItLeftOutAndRefusesToOverwriteItsInput) {
  TraceBuilder builder;
  for (int i = 0; i < 10; ++i) builder.launched("nvjet_x", i, 100.0 * i + 50, 75);
  const TemporaryFile in(builder.json());
  const TemporaryFile out("");
  const CutSummary summary = write_cut(in.path(), out.path(), FamilyTable(), {.most_events = 10});
  EXPECT_EQ(summary.num_written, 5);
  EXPECT_EQ(summary.num_left_out, 15);
  EXPECT_THROW(write_cut(in.path(), in.path(), FamilyTable(), {}), Error);
  const std::string other_name =
      testing::TempDir() + "./" + in.path().substr(testing::TempDir().size());
  EXPECT_THROW(write_cut(in.path(), other_name, FamilyTable(), {}), Error);
  EXPECT_EQ(analyse_trace(in.path(), FamilyTable()).total.num_kernels, 10);  // still whole
  EXPECT_THROW(write_cut(in.path(), out.path(), FamilyTable(), {.from_us = 5, .to_us = 5}), Error);
}

}  // namespace
}  // namespace fovea::trace
