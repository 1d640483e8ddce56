// Traces that we captured (tests/golden/traces/README.md): every figure is computed here a second
// time, from the raw events and a handful of names.
#include <gtest/gtest.h>
#include <zlib.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "fovea/trace/trace_report.h"

namespace fovea::trace {
namespace {

using Json = nlohmann::json;

struct Golden {
  const char* file;
  std::vector<const char*> attention, matmul;  // parts of kernels' names
  double prefill_percent, decode_percent;      // attention, as the README says
  int64_t num_steps;
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.file; }

std::string path_of(const Golden& golden) {
  return std::string("tests/golden/traces/") + golden.file;
}

Json read_events(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  std::string text;
  char buffer[1 << 16];
  for (int count = 0; (count = gzread(file, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  gzclose(file);
  return Json::parse(text).at("traceEvents");
}

struct Sums {
  int64_t num_kernels = 0;
  double kernel_us = 0, attention_us = 0, matmul_us = 0;
};

bool contains_any(const std::string& name, const std::vector<const char*>& parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

/// Sums by phase ("prefill", "decode"), each kernel belonging to the annotation that was open when
/// it was launched; a kernel without launch ran where it was asked for.
std::map<std::string, Sums> sums_of(const Golden& golden) {
  const Json events = read_events(path_of(golden));
  std::vector<Json> steps;
  std::map<int64_t, double> launched_at;
  for (const Json& event : events) {
    const std::string category = event.value("cat", "");
    if (category == "user_annotation") steps.push_back(event);
    if ((category == "cuda_runtime" || category == "cuda_driver") &&
        event.at("name").get<std::string>().find("Launch") != std::string::npos) {
      launched_at.emplace(event.at("args").at("correlation"), event.at("ts"));
    }
  }
  std::map<std::string, Sums> sums;
  for (const Json& event : events) {
    if (event.value("cat", "") != "kernel") continue;
    const bool has_launch = event.at("args").contains("correlation");
    const double when = has_launch ? launched_at.at(event.at("args").at("correlation"))
                                   : event.at("ts").get<double>();
    std::string phase = "none";
    for (const Json& step : steps) {
      const double start = step.at("ts");
      if (when < start || when > start + step.at("dur").get<double>()) continue;
      const std::string label = step.at("name");
      phase = label.substr(5, label.find(' ') - 5);  // "step[decode bs=1]"
    }
    const std::string name = event.at("name");
    Sums& to = sums[phase];
    const double dur = event.at("dur");
    ++to.num_kernels;
    to.kernel_us += dur;
    if (contains_any(name, golden.attention)) to.attention_us += dur;
    if (contains_any(name, golden.matmul)) to.matmul_us += dur;
  }
  return sums;
}

double matmul_share(const PhaseReport& phase) {
  for (const TimeShare& family : phase.families) {
    if (family.name == "matmul") return family.share;
  }
  return 0;
}

class GoldenTrace : public testing::TestWithParam<Golden> {};

TEST_P(GoldenTrace, SharesByPhaseAreThoseOfTheRawEvents) {
  const Golden& golden = GetParam();
  const TraceReport report = analyse_trace(path_of(golden), FamilyTable());
  const std::map<std::string, Sums> sums = sums_of(golden);
  ASSERT_EQ(report.phases.size(), 2u);
  ASSERT_EQ(sums.size(), 2u);
  for (const PhaseReport& phase : report.phases) {
    const Sums& expected = sums.at(std::string(phase_name(phase.phase)));
    EXPECT_EQ(phase.num_kernels, expected.num_kernels);
    EXPECT_NEAR(phase.kernel_us, expected.kernel_us, 1e-5 * expected.kernel_us);
    EXPECT_NEAR(phase.attention.low, expected.attention_us / expected.kernel_us, 1e-5);
    EXPECT_NEAR(phase.attention.high, expected.attention_us / expected.kernel_us, 1e-5);
    EXPECT_NEAR(matmul_share(phase), expected.matmul_us / expected.kernel_us, 1e-5);
    EXPECT_EQ(phase.unknown_share, 0);
    EXPECT_NEAR(100 * phase.attention.low,
                phase.phase == Phase::kDecode ? golden.decode_percent : golden.prefill_percent,
                0.05);
  }
  EXPECT_EQ(static_cast<int64_t>(report.steps.size()), golden.num_steps);
  EXPECT_FALSE(report.file.truncated);
  EXPECT_EQ(report.file.num_malformed, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Own, GoldenTrace,
    testing::Values(
        Golden{"torch_h200.json.gz", {"flash_fwd"}, {"nvjet", "splitKreduce"}, 18.2, 11.5, 3},
        Golden{"torch_h200_graph.json.gz", {"flash_fwd"}, {"nvjet", "splitKreduce"}, 18.2, 11.2, 3},
        Golden{"cuda_h200.json.gz",
               {"prefill_kernel", "plan_kernel", "combine_kernel"},
               {"gemm"},
               94.6,
               100.0,
               5},
        Golden{"fovea_cpu.json.gz", {"_attention"}, {"_matmul"}, 32.3, 54.5, 4}),
    [](const auto& test) {
      const std::string file = test.param.file;
      return file.substr(0, file.find('.'));
    });

TEST(GoldenTraces, DecodeUnderGraphReplayIsOneLaunchAStep) {
  const TraceReport report =
      analyse_trace("tests/golden/traces/torch_h200_graph.json.gz", FamilyTable());
  bool shared = false;
  for (const Finding& finding : report.findings) shared |= finding.code == "shared_launch";
  EXPECT_TRUE(shared);
  ASSERT_EQ(report.steps.size(), 3u);
  EXPECT_EQ(report.steps[1].num_kernels, 61);
  EXPECT_EQ(report.steps[2].num_kernels, 61);
  EXPECT_FALSE(report.idle_share.has_value());  // the prefill waited for its launches
}

TEST(GoldenTraces, SelectionIsAFamilyOfItsOwn) {
  const TraceReport report = analyse_trace("tests/golden/traces/cuda_h200.json.gz", FamilyTable());
  double selection = 0;
  for (const TimeShare& family : report.phase(Phase::kPrefill)->families) {
    if (family.name == "selection") selection = family.share;
  }
  EXPECT_NEAR(selection, 1 - report.phase(Phase::kPrefill)->attention.low, 1e-9);
}

}  // namespace
}  // namespace fovea::trace
