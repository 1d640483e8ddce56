// Public traces, checked by hand, when they lie beside the tree. Shares are of kernel time, in
// percent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>

#include "fovea/trace/trace_report.h"

namespace fovea::trace {
namespace {

struct Known {
  const char* file;
  double attention, matmul, rest;
  double kernel_ms;
  int64_t num_kernels;
};

void PrintTo(const Known& known, std::ostream* out) { *out << known.file; }

std::string path_of(const char* file) { return std::string("../shared/traces/") + file; }

bool has_finding(const TraceReport& report, const std::string& code) {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [&](const Finding& finding) { return finding.code == code; });
}

double family_percent(const TraceReport& report, const std::string& name) {
  for (const TimeShare& family : report.total.families) {
    if (family.name == name) return 100 * family.share;
  }
  return 0;
}

#define SKIP_WITHOUT(file) \
  if (!std::filesystem::exists(path_of(file))) GTEST_SKIP() << path_of(file) << " is not there"

class SharedTrace : public testing::TestWithParam<Known> {};

TEST_P(SharedTrace, SharesAgree) {
  const Known& known = GetParam();
  SKIP_WITHOUT(known.file);
  const TraceReport report = analyse_trace(path_of(known.file), FamilyTable());
  EXPECT_EQ(report.total.num_kernels, known.num_kernels);
  EXPECT_NEAR(report.total.kernel_us / 1e3, known.kernel_ms, 0.05);
  EXPECT_NEAR(100 * report.total.attention.low, known.attention, 0.2);
  EXPECT_NEAR(100 * report.total.attention.high, known.attention, 0.2);
  EXPECT_NEAR(family_percent(report, "matmul"), known.matmul, 0.2);
  const double rest = 100 - 100 * report.total.attention.low - family_percent(report, "matmul");
  EXPECT_NEAR(rest, known.rest, 0.2);
  EXPECT_EQ(report.total.unknown_share, 0);
  EXPECT_FALSE(report.file.truncated);
  EXPECT_EQ(report.file.num_malformed, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Readme, SharedTrace,
    testing::Values(Known{"mi300_vllm_decode_graph.json.gz", 6.8, 77.4, 15.8, 10.67, 425},
                    Known{"mi300_sglang_qwen3_8b_prefill.json.gz", 4.1, 85.3, 10.6, 492.77, 527},
                    Known{"h100_hf_qwen1.5_0.5b.json.gz", 8.5, 28.2, 63.4, 45.43, 1465}),
    [](const auto& test) {
      std::string name = test.param.file;
      std::replace_if(
          name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(SharedTraces, DecodeUnderGraphReplayIsDecode) {
  SKIP_WITHOUT("mi300_vllm_decode_graph.json.gz");
  const TraceReport report =
      analyse_trace(path_of("mi300_vllm_decode_graph.json.gz"), FamilyTable());
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_EQ(report.phases[0].phase, Phase::kDecode);
  EXPECT_EQ(report.phases[0].num_kernels, 425);
  ASSERT_EQ(report.steps.size(), 1u);
  EXPECT_EQ(report.steps[0].label.generation_requests, 32);
  EXPECT_EQ(report.steps[0].label.context_tokens, 0);
  EXPECT_NEAR(report.steps[0].first_us - report.steps[0].host_ts_us - report.steps[0].host_dur_us,
              6000, 100);
  EXPECT_TRUE(has_finding(report, "shared_launch"));
  EXPECT_TRUE(has_finding(report, "late_kernels"));
  EXPECT_NEAR(family_percent(report, "kv_write"), 1.3, 0.05);
  EXPECT_FALSE(report.idle_share.has_value());
}

TEST(SharedTraces, TheHoleBeforeThePrefillIsReported) {
  SKIP_WITHOUT("mi300_sglang_qwen3_8b_prefill.json.gz");
  const TraceReport report =
      analyse_trace(path_of("mi300_sglang_qwen3_8b_prefill.json.gz"), FamilyTable());
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_EQ(report.phases[0].phase, Phase::kPrefill);
  ASSERT_EQ(report.steps.size(), 1u);  // vLLM's label around SGLang's: one step
  EXPECT_EQ(report.steps[0].label.context_tokens, 15360);
  EXPECT_EQ(report.steps[0].label.context_requests, 15);
  EXPECT_TRUE(has_finding(report, "hole"));
  EXPECT_TRUE(has_finding(report, "with_stack"));
  EXPECT_FALSE(report.idle_share.has_value());
  ASSERT_FALSE(report.gaps.longest.empty());
  EXPECT_NEAR(report.gaps.longest[0].dur_us / 1e3, 493, 1);
  EXPECT_EQ(report.gaps.longest[0].cause, GapCause::kHost);
}

TEST(SharedTraces, WithoutEngineLabelsThePhaseIsUnlabelled) {
  SKIP_WITHOUT("h100_hf_qwen1.5_0.5b.json.gz");
  const TraceReport report = analyse_trace(path_of("h100_hf_qwen1.5_0.5b.json.gz"), FamilyTable());
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_EQ(report.phases[0].phase, Phase::kUnlabelled);
  EXPECT_EQ(report.file.devices, "NVIDIA H100 80GB HBM3");
  // Work that was in flight when the capture began has no launch in it.
  EXPECT_TRUE(has_finding(report, "missing_correlation"));
}

}  // namespace
}  // namespace fovea::trace
