// One small trace for every trap.
#include "fovea/trace/trace_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/trace/trace_records.h"
#include "tests/trace/trace_builder.h"

namespace fovea::trace {
namespace {

constexpr char kAttention[] = "void flash::flash_fwd_kernel<T>(P)";
constexpr char kMatmul[] = "nvjet_tst_64x8";

TraceReport analyse(const TraceBuilder& builder, const std::string& suffix = ".json") {
  const TemporaryFile file(builder.json(), suffix);
  return analyse_trace(file.path(), FamilyTable());
}

const Finding* find(const TraceReport& report, const std::string& code) {
  for (const Finding& finding : report.findings) {
    if (finding.code == code) return &finding;
  }
  return nullptr;
}

TEST(Trap, PhaseComesFromTheLaunchNotFromTheClock) {
  // The decode step is launched while the prefill still runs: by the clock, its kernels fall
  // nowhere.
  TraceBuilder builder;
  builder.annotation("execute_context_1(512)_generation_0(0)", 0, 100);
  builder.annotation("execute_context_0(0)_generation_4(4)", 110, 50);
  builder.launch(1, 10).launch(2, 20).launch(3, 120).launch(4, 130);
  builder.kernel(kAttention, 1, 130, 1000).kernel(kMatmul, 2, 1130, 3000);
  builder.kernel(kAttention, 3, 9000, 100).kernel(kMatmul, 4, 9100, 900);
  const TraceReport report = analyse(builder);
  ASSERT_NE(report.phase(Phase::kPrefill), nullptr);
  ASSERT_NE(report.phase(Phase::kDecode), nullptr);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->attention.low, 0.25, 1e-6);
  EXPECT_NEAR(report.phase(Phase::kDecode)->attention.low, 0.10, 1e-6);
  EXPECT_EQ(report.phase(Phase::kUnlabelled), nullptr);
  ASSERT_EQ(report.steps.size(), 2u);
  EXPECT_NEAR(report.steps[1].attention_us, 100, 1e-3);
  EXPECT_NEAR(report.steps[1].first_us, 9000, 1e-3);
  EXPECT_NE(find(report, "late_kernels"), nullptr);
  EXPECT_NE(find(report, "phases_mixed"), nullptr);
}

TEST(Trap, GraphReplaySharesOneLaunch) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=8]", 0, 100);
  builder.launch(7, 50, 20, "cudaGraphLaunch");
  for (int i = 0; i < 30; ++i) builder.kernel(i % 3 ? kMatmul : kAttention, 7, 6000 + 10 * i, 9);
  const TraceReport report = analyse(builder);
  ASSERT_NE(report.phase(Phase::kDecode), nullptr);
  EXPECT_EQ(report.phase(Phase::kDecode)->num_kernels, 30);
  ASSERT_NE(find(report, "shared_launch"), nullptr);
  EXPECT_NE(find(report, "shared_launch")->message.find("at most 30"), std::string::npos);
  EXPECT_EQ(find(report, "eager"), nullptr);
  EXPECT_EQ(report.short_launches.num_runs, 0);  // graph kernels are not launched one by one
}

TEST(Trap, GraphLaunchesWithoutKernels) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=8]", 0, 100).annotation("step[DECODE bs=8]", 200, 100);
  builder.launch(7, 50, 20, "cudaGraphLaunch").launch(8, 250, 20, "cudaGraphLaunch");
  builder.launched(kMatmul, 9, 90, 5);
  const TraceReport report = analyse(builder);
  ASSERT_NE(find(report, "missing_graph_kernels"), nullptr);
  EXPECT_EQ(find(report, "missing_graph_kernels")->severity, Severity::kProblem);
  EXPECT_NE(find(report, "empty_steps"), nullptr);
  EXPECT_FALSE(report.idle_share.has_value());
  EXPECT_NE(report.idle_withheld_because.find("graph"), std::string::npos);
}

TEST(Trap, DecodeWindowThatHoldsAPrefillIsRefused) {
  TraceBuilder builder;
  builder.annotation("decode window", 0, 10000);
  builder.annotation("execute_context_1(8192)_generation_0(0)", 10, 100);
  builder.annotation("execute_context_0(0)_generation_1(1)", 200, 100);
  builder.launched(kAttention, 1, 60, 310).launched(kMatmul, 2, 400, 590);
  builder.launched(kAttention, 3, 260, 9).launched(kMatmul, 4, 270, 91);
  const TraceReport report = analyse(builder, "_decode.json");
  const Finding* window = find(report, "decode_window_holds_context");
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(window->severity, Severity::kProblem);
  EXPECT_NE(window->message.find("8192"), std::string::npos);
  EXPECT_NE(find(report, "decode_file_holds_context"), nullptr);
  EXPECT_NEAR(report.phase(Phase::kDecode)->attention.low, 0.09, 1e-6);
  EXPECT_NEAR(report.total.attention.low, 0.319, 1e-6);
}

TEST(Trap, CleanDecodeWindowIsNotRefused) {
  TraceBuilder builder;
  builder.annotation("decode window", 0, 10000);
  builder.annotation("execute_context_0(0)_generation_1(1)", 200, 100);
  builder.launched(kAttention, 3, 260, 9).launched(kMatmul, 4, 270, 91);
  const TraceReport report = analyse(builder, "_decode.json");
  EXPECT_EQ(find(report, "decode_window_holds_context"), nullptr);
  EXPECT_EQ(find(report, "decode_file_holds_context"), nullptr);
}

TEST(Trap, AStepNestedInOneOfAnotherPhaseKeepsItsOwn) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=1]", 0, 1000);
  builder.annotation("execute_context_1(64)_generation_0(0)", 10, 100);
  builder.launched(kAttention, 1, 60, 10).launched(kMatmul, 2, 600, 10);
  const TraceReport report = analyse(builder);
  ASSERT_EQ(report.steps.size(), 2u);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->kernel_us, 10, 1e-6);
  EXPECT_NEAR(report.phase(Phase::kDecode)->kernel_us, 10, 1e-6);
}

TEST(Trap, KvWritesAreNotAttentionAndUnknownIsNotOther) {
  TraceBuilder builder;
  builder.launched("void vllm::reshape_and_cache_flash_kernel<T>(P)", 1, 100, 30);
  builder.launched(kAttention, 2, 200, 50).launched("mystery", 3, 300, 20);
  const TraceReport report = analyse(builder);
  EXPECT_NEAR(report.total.attention.low, 0.5, 1e-6);
  EXPECT_NEAR(report.total.attention.high, 0.7, 1e-6);
  EXPECT_NEAR(report.total.unknown_share, 0.2, 1e-6);
  EXPECT_NE(find(report, "unknown_kernels"), nullptr);
  EXPECT_NE(find(report, "no_steps"), nullptr);
}

TEST(Trap, FewUnknownKernelsDoNotWarn) {
  TraceBuilder builder;
  builder.launched(kAttention, 2, 200, 97).launched("mystery", 3, 300, 3);
  EXPECT_EQ(find(analyse(builder), "unknown_kernels"), nullptr);
}

TEST(Trap, InductorTemplateTakesTheOperatorThatLaunchedIt) {
  TraceBuilder builder;
  builder.event("flex_attention", "cpu_op", 100, 100, 0, 50, R"("External id": 11)");
  builder.event("aten::mm", "cpu_op", 100, 100, 60, 50, R"("External id": 12)");
  for (int id = 11; id <= 13; ++id) {
    builder.event("triton_tem_fused_0", "kernel", 0, 7, 100.0 * id, 10,
                  fmt::format(R"("correlation": {0}, "External id": {0})", id));
  }
  const TraceReport report = analyse(builder);
  EXPECT_NEAR(report.total.attention.low, 1.0 / 3, 1e-6);
  EXPECT_NEAR(report.total.unknown_share, 1.0 / 3, 1e-6);
  ASSERT_EQ(report.kernels.size(), 3u);
}

TEST(Trap, FrontEndOnlyFile) {
  TraceBuilder builder;
  builder.annotation("execute_context_1(8)_generation_0(0)", 0, 10);
  builder.event("aten::mm", "cpu_op", 100, 100, 0, 5, R"("External id": 1)").launch(1, 2);
  const TraceReport report = analyse(builder);
  ASSERT_NE(find(report, "front_end_only"), nullptr);
  EXPECT_EQ(find(report, "front_end_only")->severity, Severity::kProblem);
  EXPECT_EQ(report.total.num_kernels, 0);
  EXPECT_FALSE(report.idle_share.has_value());
  EXPECT_NE(find(analyse(TraceBuilder()), "no_kernels"), nullptr);
}

TEST(Trap, MissingCorrelationIsCountedAndUnlabelled) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=1]", 0, 1000);
  builder.launched(kMatmul, 1, 100, 50)
      .kernel(kAttention, -1, 200, 50)
      .kernel(kMatmul, 99, 300, 50);
  const TraceReport report = analyse(builder);
  ASSERT_NE(find(report, "missing_correlation"), nullptr);
  EXPECT_NE(find(report, "missing_correlation")->message.find("66.7"), std::string::npos);
  EXPECT_NEAR(report.phase(Phase::kUnlabelled)->kernel_us, 100, 1e-6);
}

TEST(Trap, WorkOnTheThreadThatAskedForItNeedsNoLaunch) {
  // A CPU engine: operations lie inside the annotation, on its own thread.
  TraceBuilder builder;
  builder.annotation("step[prefill bs=1 toks=64]", 0, 100);
  builder.event("fovea_attention_cpu", "kernel", 100, 100, 10, 20, "");
  builder.event("matmul", "kernel", 100, 100, 40, 20, "");
  const TraceReport report = analyse(builder);
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_EQ(report.phases[0].phase, Phase::kPrefill);
  EXPECT_NEAR(report.total.attention.low, 0.5, 1e-6);
  EXPECT_EQ(find(report, "missing_correlation"), nullptr);
}

TEST(Trap, NsightReportsMadeChromeTraces) {
  // Kernels without correlation, streams by name, the range as the device saw it on a track of its
  // own; the host's range lies in the same process and must not be matched by the clock.
  const auto event = [](const char* category, const char* name, const char* track, int ts,
                        int dur) {
    return fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": " Device 0", "tid": "{}", "ts": {}, "dur": {}, "args": {{}}}})",
        category, name, track, ts, dur);
  };
  TraceBuilder builder;
  builder.raw(event("nvtx", "execute_context_0(0)_generation_4(4)", "NVTX Thread 9", 0, 5000));
  builder.raw(
      event("nvtx-kernel", "execute_context_1(64)_generation_0(0)", "NVTX Kernel 9", 90, 110));
  builder.raw(event("cuda", "flash_fwd_kernel", "Stream 7", 100, 50));
  builder.raw(event("cuda", "nvjet_tst_64x8", "Stream 7", 150, 50));
  builder.raw(event("cuda", "nvjet_tst_64x8", "Stream 7", 1000, 50));
  builder.raw(event("cuda_api", "cudaLaunchKernel", "CUDA API Thread 9", 10, 5));
  const TraceReport report = analyse(builder);
  ASSERT_NE(report.phase(Phase::kPrefill), nullptr);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->kernel_us, 100, 1e-6);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->attention.low, 0.5, 1e-6);
  EXPECT_EQ(report.phase(Phase::kDecode), nullptr);
  EXPECT_NEAR(report.phase(Phase::kUnlabelled)->kernel_us, 50, 1e-6);
}

// Two ranks whose files were made one: correlation 1 is a prefill's launch in the first and a
// decode's in the second.
std::string two_ranks(const std::string& first, const std::string& second) {
  TraceBuilder builder;
  const auto event = [&](const std::string& rank, int pid, const char* category, const char* name,
                         int ts, int dur) {
    const std::string process =
        rank.empty() ? std::to_string(pid) : fmt::format("\"[{}] {}\"", rank, pid);
    builder.raw(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"correlation": 1}}}})",
        category, name, process, pid, ts, dur));
  };
  event(first, 10, "user_annotation", "step[EXTEND bs=1 toks=64]", 0, 100);
  event(first, 10, "cuda_runtime", "cudaLaunchKernel", 10, 5);
  event(first, 0, "kernel", kMatmul, 50, 30);
  event(second, 20, "user_annotation", "step[DECODE bs=1]", 0, 100);
  event(second, 20, "cuda_runtime", "cudaLaunchKernel", 10, 5);
  event(second, 1, "kernel", kMatmul, 50, 20);
  return builder.json();
}

TEST(Trap, MergedRanksAreToldApartByTheirProcesses) {
  const TemporaryFile named(two_ranks("TP0", "TP1"));
  const TraceReport report = analyse_trace(named.path(), FamilyTable());
  ASSERT_NE(report.phase(Phase::kPrefill), nullptr);
  ASSERT_NE(report.phase(Phase::kDecode), nullptr);
  EXPECT_NEAR(report.phase(Phase::kPrefill)->kernel_us, 30, 1e-6);
  EXPECT_NEAR(report.phase(Phase::kDecode)->kernel_us, 20, 1e-6);
  EXPECT_EQ(find(report, "merged_ranks"), nullptr);

  const TemporaryFile unnamed(two_ranks("", ""));  // then it is at least said
  EXPECT_NE(find(analyse_trace(unnamed.path(), FamilyTable()), "merged_ranks"), nullptr);
}

TEST(Trap, ARangeThatOnlyCallsItselfDecodeIsNoStep) {
  TraceBuilder builder;
  builder.annotation("decode_step_3", 0, 1000).launched(kMatmul, 1, 100, 50);
  const TraceReport report = analyse(builder);
  EXPECT_EQ(report.phase(Phase::kDecode), nullptr);
  ASSERT_NE(find(report, "no_steps"), nullptr);
  EXPECT_NE(find(report, "no_steps")->message.find("'decode_step_3'"), std::string::npos);
}

TEST(Idle, IsNotTheWaitForLaunchesThatAProfilerSlows) {
  TraceBuilder builder;
  builder.launch(50, 1, 20, "cudaGraphLaunch");
  builder.kernel(kMatmul, 50, 1000, 100).kernel(kMatmul, 50, 1100, 100);
  builder.launched(kMatmul, 1, 1300, 100);  // one by one, 100 us late
  const TraceReport report = analyse(builder);
  EXPECT_FALSE(report.idle_share.has_value());
  EXPECT_NE(report.idle_withheld_because.find("one by one"), std::string::npos);
}

TEST(Idle, IsTheComplementOfTheUnionWithCopiesBusy) {
  TraceBuilder builder;
  builder.launch(50, 1, 20, "cudaGraphLaunch");
  builder.kernel(kMatmul, 50, 1000, 100).kernel(kMatmul, 50, 1050, 100, 8);  // overlap: 1000..1150
  builder.launched("Memcpy HtoD", 3, 1150, 40, 5, 9);
  builder.kernel(kAttention, 50, 1200, 60);
  std::string json = builder.json();
  const size_t at = json.find("Memcpy HtoD");
  json.replace(json.rfind("\"kernel\"", at), 8, "\"gpu_memcpy\"");
  const TemporaryFile file(json);
  const TraceReport report = analyse_trace(file.path(), FamilyTable());
  EXPECT_NEAR(report.span_us, 260, 1e-3);
  EXPECT_NEAR(report.busy_us, 250, 1e-3);
  EXPECT_NEAR(report.memory_us, 40, 1e-3);
  EXPECT_NEAR(report.total.kernel_us, 260, 1e-3);  // the copy is busy, but no kernel
  ASSERT_TRUE(report.idle_share.has_value()) << report.idle_withheld_because;
  EXPECT_NEAR(*report.idle_share, 10.0 / 260, 1e-6);
  EXPECT_EQ(report.gaps.num_gaps, 1);
}

TEST(Idle, StacksAndHolesWithholdIt) {
  TraceBuilder stacks;
  stacks.header(R"("with_stack": 1)").launched(kMatmul, 1, 100, 50).launched(kMatmul, 2, 170, 50);
  EXPECT_FALSE(analyse(stacks).idle_share.has_value());
  EXPECT_NE(find(analyse(stacks), "with_stack"), nullptr);

  TraceBuilder hole;
  hole.launched(kMatmul, 1, 100, 5).launched(kMatmul, 2, 500000, 4000);
  const TraceReport report = analyse(hole);
  ASSERT_NE(find(report, "hole"), nullptr);
  EXPECT_NE(find(report, "hole")->message.find("between the first kernels"), std::string::npos);
  EXPECT_FALSE(report.idle_share.has_value());
}

TEST(Gaps, CauseIsTheHostWhenTheLaunchCameLate) {
  TraceBuilder builder;
  builder.launched(kMatmul, 1, 1000, 100);       // ends at 1100
  builder.launched(kAttention, 2, 1500, 100);    // launched at 1490: the host was late
  builder.launched(kMatmul, 3, 1700, 100, 400);  // launched at 1300: the device held it
  builder.kernel(kMatmul, 77, 1820, 10);         // launch unknown
  const TraceReport report = analyse(builder);
  EXPECT_NEAR(report.gaps.time_us[static_cast<size_t>(GapCause::kHost)], 400, 1e-3);
  EXPECT_NEAR(report.gaps.time_us[static_cast<size_t>(GapCause::kDevice)], 100, 1e-3);
  EXPECT_NEAR(report.gaps.time_us[static_cast<size_t>(GapCause::kUnknown)], 20, 1e-3);
  ASSERT_EQ(report.gaps.longest.size(), 3u);
  EXPECT_NEAR(report.gaps.longest[0].dur_us, 400, 1e-3);
  EXPECT_EQ(report.gaps.longest[0].before, kMatmul);
  EXPECT_EQ(report.gaps.longest[0].after, kAttention);
}

TEST(Gaps, OnlyTheLongestAreKept) {
  TraceBuilder builder;
  for (int i = 0; i < 100; ++i) builder.launched(kMatmul, i, 1000.0 * i + (i * 37) % 100, 5);
  const TraceReport report = analyse(builder);
  EXPECT_EQ(report.gaps.num_gaps, 99);
  ASSERT_EQ(report.gaps.longest.size(), GapReport::kLongestGaps);
  EXPECT_TRUE(std::is_sorted(report.gaps.longest.begin(), report.gaps.longest.end(),
                             [](const Gap& a, const Gap& b) { return a.dur_us > b.dur_us; }));
}

TEST(ShortLaunches, RunsShorterThanTheirLaunch) {
  TraceBuilder builder;
  int id = 0;
  for (int i = 0; i < 20; ++i, ++id) builder.launched(kMatmul, id, 1000 + 8.0 * id, 2);
  builder.launched(kAttention, id, 1000 + 8.0 * id, 100);
  for (int i = 0; i < 15; ++i) {
    ++id;
    builder.launched(kMatmul, id, 1200 + 8.0 * id, 2);  // one fewer than a run
  }
  const TraceReport report = analyse(builder);
  EXPECT_NEAR(report.short_launches.launch_cost_us, 5, 0.1);
  EXPECT_EQ(report.short_launches.num_runs, 1);
  EXPECT_EQ(report.short_launches.num_kernels, 20);
  EXPECT_NEAR(report.short_launches.span_us, 19 * 8 + 2, 1e-3);
  EXPECT_NEAR(report.short_launches.busy_us, 40, 1e-3);
  EXPECT_FALSE(report.idle_share.has_value());  // eager and launch-bound
}

TEST(StreamWaits, AStreamHeldUntilAnotherEnds) {
  TraceBuilder builder;
  builder.launched(kMatmul, 1, 1000, 50, 500, 8);             // stream 8, ends at 1050
  builder.launched("ncclDevKernel_X", 2, 1000, 300, 500, 9);  // stream 9, ends at 1300
  builder.launched(kMatmul, 3, 1302, 50, 700, 8);  // launched at 602, waited for stream 9
  const TraceReport report = analyse(builder);
  EXPECT_EQ(report.stream_waits.num_waits, 1);
  EXPECT_NEAR(report.stream_waits.time_us, 252, 1e-2);
}

TEST(Report, JsonHoldsTheFigures) {
  TraceBuilder builder;
  builder.annotation("step[DECODE bs=8]", 0, 1000);
  builder.launched(kAttention, 1, 100, 25).launched(kMatmul, 2, 200, 75);
  const nlohmann::json json = nlohmann::json::parse(trace_report_json(analyse(builder)));
  EXPECT_NEAR(json["total"]["attention_share_low"].get<double>(), 0.25, 1e-6);
  EXPECT_EQ(json["phases"][0]["phase"], "decode");
  EXPECT_EQ(json["steps"][0]["num_kernels"], 2);
  EXPECT_EQ(json["kernels"][0]["family"], "matmul");
  EXPECT_TRUE(json["findings"].is_array());
}

TEST(LaunchCosts, Median) {
  LaunchCostHistogram histogram;
  EXPECT_EQ(histogram.median_us(), 0);
  for (const double cost : {1.0, 4.0, 5000.0}) histogram.add(cost);
  EXPECT_NEAR(histogram.median_us(), 4, 0.125);
}

}  // namespace
}  // namespace fovea::trace
