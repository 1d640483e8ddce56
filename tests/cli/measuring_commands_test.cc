// `fovea trace`, `worth`, `fit` and `conditions` as a user runs them, mistakes included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace fovea::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class File {
 public:
  File(const std::string& name, const std::string& content) : path_(testing::TempDir() + name) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~File() { std::remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const char kTrace[] = R"({"traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "step[EXTEND bs=1 toks=512]", "pid": 9, "tid": 9, "ts": 0, "dur": 50},
  {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 9, "tid": 9, "ts": 60, "dur": 50},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 10, "dur": 5, "args": {"correlation": 1}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 20, "dur": 5, "args": {"correlation": 2}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 70, "dur": 5, "args": {"correlation": 3}},
  {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "pid": 0, "tid": 7, "ts": 100, "dur": 180, "args": {"correlation": 1}},
  {"ph": "X", "cat": "kernel", "name": "nvjet_tst", "pid": 0, "tid": 7, "ts": 300, "dur": 820, "args": {"correlation": 2}},
  {"ph": "X", "cat": "kernel", "name": "my_own_kernel", "pid": 0, "tid": 7, "ts": 1200, "dur": 100, "args": {"correlation": 3}}
]})";

nlohmann::json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

void expect_mistake(const std::vector<std::string>& arguments, const std::string& named) {
  const ProcessResult result = run_fovea(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(testing::StartsWith("fovea: error: "), HasSubstr(named)));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(MeasuringHelp, TeachesByExample) {
  for (const std::string command : {"trace", "worth", "sweep", "fit", "conditions"}) {
    const ProcessResult result = run_fovea({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("\n  fovea " + command + " ")) << command;
  }
}

TEST(TraceCommand, SharesPerPhaseAndVerdict) {
  const File file("fovea_cli_trace.json", kTrace);
  const ProcessResult text =
      run_fovea({"trace", file.path(), "--ttft", "500", "--tpot", "50", "--output", "128"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("18.0 %"));
  EXPECT_THAT(text.out, HasSubstr("= 0.657 % of its time"));
  EXPECT_THAT(text.out, HasSubstr("1.0066x"));
  const nlohmann::json json = json_of(run_fovea({"trace", file.path(), "--json"}));
  EXPECT_NEAR(json["phases"][0]["attention_share_low"].get<double>(), 0.18, 1e-9);
  EXPECT_EQ(json["phases"][1]["phase"], "decode");
}

TEST(TraceCommand, FamiliesCanBeExtended) {
  const File file("fovea_cli_trace2.json", kTrace);
  EXPECT_THAT(run_fovea({"trace", file.path(), "--unknown"}).out, HasSubstr("my_own_kernel"));
  const File rules("fovea_cli_rules.txt", "attention my_own_*\n");
  const nlohmann::json json =
      json_of(run_fovea({"trace", file.path(), "--families", rules.path(), "--json"}));
  EXPECT_NEAR(json["phases"][1]["attention_share_low"].get<double>(), 1, 1e-9);
}

TEST(TraceCommand, PerfettoCutIsATrace) {
  const File file("fovea_cli_trace3.json", kTrace);
  const std::string cut = testing::TempDir() + "fovea_cli_cut.json";
  const ProcessResult result = run_fovea({"trace", file.path(), "--perfetto", cut, "--to", "0.5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("ui.perfetto.dev"));
  EXPECT_EQ(json_of(run_fovea({"trace", cut, "--json"}))["total"]["num_kernels"], 2);
  std::remove(cut.c_str());
}

TEST(TraceCommand, Mistakes) {
  expect_mistake({"trace"}, "files");
  expect_mistake({"trace", "/does/not/exist.json"}, "/does/not/exist.json");
  const File text("fovea_cli_not_a_trace.json", "hello");
  expect_mistake({"trace", text.path()}, "not a Chrome trace");
  const File file("fovea_cli_trace4.json", kTrace);
  expect_mistake({"trace", file.path(), "--speedup", "0"}, "speed-up");
  expect_mistake({"trace", file.path(), "--ttft", "500"}, "--output");
  expect_mistake({"trace", file.path(), "--from", "1"}, "--perfetto");
  expect_mistake({"trace", file.path(), "--perfetto", file.path()}, "overwritten");
  const File rules("fovea_cli_bad_rules.txt", "attention\n");
  expect_mistake({"trace", file.path(), "--families", rules.path()}, "line 1");
}

TEST(WorthCommand, ShareAndRequest) {
  const ProcessResult result = run_fovea({"worth", "--p-prefill", "0.18", "--p-decode", "0",
                                          "--ttft", "500", "--tpot", "50", "--output", "128"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("0.657 %"), HasSubstr("1.0066x"), HasSubstr("1.0989x"),
                                HasSubstr("1.220x")));
  const nlohmann::json json = json_of(run_fovea({"worth", "--p", "0.85", "--prefill", "--json"}));
  EXPECT_NEAR(json["prefill"]["step_speedup"].get<double>(), 1.739, 5e-4);
  EXPECT_EQ(json["decode"]["step_speedup"], 1.0);
}

TEST(WorthCommand, Claim) {
  const nlohmann::json json =
      json_of(run_fovea({"worth", "--claim", "kernel=20.65,stack=11.92,e2e=5.97", "--json"}));
  EXPECT_NEAR(json[1]["share"].get<double>(), 0.875, 5e-4);
  EXPECT_NEAR(json[2]["share"].get<double>(), 0.909, 5e-4);
  EXPECT_THAT(run_fovea({"worth", "--claim", "kernel=2,e2e=3"}).out, HasSubstr("impossible"));
  EXPECT_THAT(run_fovea({"worth", "--claim", "kernel=2,e2e=1.5", "--p", "0.1"}).out,
              HasSubstr("suspicious"));
}

TEST(WorthCommand, Points) {
  EXPECT_THAT(run_fovea({"worth", "--points", "4K=0.18,128K=0.85"}).out, HasSubstr("87.5 %"));
}

TEST(WorthCommand, ModelsFromTableConfigAndFile) {
  const ProcessResult table =
      run_fovea({"worth", "--model", "gpt-oss-120b,DeepSeek-R1", "--context", "1K,1M"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("prefill 1K"), HasSubstr("decode at 1M"), HasSubstr("DeepSeek-R1")));
  const nlohmann::json by_folder =
      json_of(run_fovea({"worth", "--model", "models/needle_7m", "--context", "4K", "--json"}));
  EXPECT_GT(by_folder["models"][0]["rows"][0]["prefill"]["attention_share"].get<double>(), 0);
  const ProcessResult request =
      run_fovea({"worth", "--model", "Qwen2.5-7B", "--device", "a10g", "--input", "8K", "--ttft",
                 "2067", "--tpot", "35", "--output", "200"});
  EXPECT_THAT(request.out, AllOf(HasSubstr("cost model of Qwen2.5-7B"), HasSubstr("request:")));
}

TEST(WorthCommand, ARequestWithoutTimesTakesTheRooflines) {
  const ProcessResult result =
      run_fovea({"worth", "--model", "Llama-3.1-8B", "--input", "8K", "--output", "128"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("no engine reaches"), HasSubstr("a request of")));
}

TEST(WorthCommand, ReportIsAPage) {
  const std::string path = testing::TempDir() + "fovea_cli_report.html";
  const ProcessResult result =
      run_fovea({"worth", "--model", "gpt-oss-20b", "--context", "1K,64K", "--report", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(path);
  const std::string html((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(html, AllOf(HasSubstr("<!doctype html>"), HasSubstr("<svg"), HasSubstr("<footer>")));
  EXPECT_THAT(html, testing::Not(HasSubstr("nan")));
  std::remove(path.c_str());
}

TEST(Reports, EveryCommandOfTheKitWritesAPage) {
  const File trace("fovea_cli_trace5.json", kTrace);
  const File csv("fovea_cli_sweep2.csv", "n,A_ttft_s,B_itl_ms\n1024,1,5\n2048,2.5,6\n4096,7,7\n");
  const File bench("fovea_cli_bench.json", R"({"model_id": "<m>", "request_throughput": 2})");
  const std::vector<std::string> request = {"--ttft", "500", "--tpot", "50", "--output", "128"};
  const auto with_request = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), request.begin(), request.end());
    return arguments;
  };
  struct Case {
    std::vector<std::string> arguments;
    int num_charts;
    const char* said;
  };
  const Case cases[] = {
      {with_request({"trace", trace.path()}), 2, "What a request notices"},
      {with_request({"worth", "--p", "0.3"}), 2, "the ceiling (dashed)"},
      {{"worth", "--trace", trace.path()}, 1, "the ceiling (dashed)"},
      {{"worth", "--points", "4K=0.18,128K=0.85"}, 2, "87.5"},
      {{"worth", "--claim", "kernel=20,e2e=6"}, 1, "kernel inside e2e"},
      {{"worth", "--model", "gpt-oss-20b", "--context", "1K..64K", "--input", "8K", "--output",
        "9"},
       5,
       "a roofline"},
      {{"fit", csv.path()}, 3, "B itl"},
      {{"conditions", bench.path()}, 0, "&lt;m&gt;"},
  };
  const std::string path = testing::TempDir() + "fovea_cli_page.html";
  for (const Case& one : cases) {
    std::vector<std::string> arguments = one.arguments;
    arguments.insert(arguments.end(), {"--report", path});
    const ProcessResult result = run_fovea(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::ifstream file(path);
    const std::string html((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const auto count = [&](const std::string& part) {
      int found = 0;
      for (size_t at = html.find(part); at != std::string::npos; at = html.find(part, at + 1))
        ++found;
      return found;
    };
    SCOPED_TRACE(one.arguments[0] + " " + one.arguments[1]);
    EXPECT_EQ(count("<svg "), one.num_charts);
    EXPECT_GE(count("<table>"), 1);
    EXPECT_EQ(count("<li>"), 10);  // the ten conditions
    EXPECT_THAT(html, AllOf(HasSubstr(one.said), testing::Not(HasSubstr("nan"))));
    std::remove(path.c_str());
  }
}

TEST(WorthCommand, APlotAlone) {
  const std::string path = testing::TempDir() + "fovea_cli_plot.svg";
  const ProcessResult result = run_fovea({"worth", "--model", "gpt-oss-20b", "--report", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(path);
  const std::string svg((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(svg, AllOf(testing::StartsWith("<svg xmlns"), HasSubstr("Decode: attention")));
  std::remove(path.c_str());
  expect_mistake({"worth", "--p", "0.3", "--report", path}, ".html");
}

TEST(WorthCommand, Mistakes) {
  expect_mistake({"worth"}, "--model");
  expect_mistake({"worth", "--p", "1.5"}, "between 0 and 1");
  expect_mistake({"worth", "--p", "0.5", "--model", "gpt-oss-20b"}, "not by both");
  expect_mistake({"worth", "--model", "gpt-9"}, "gpt-oss-120b");
  expect_mistake({"worth", "--model", "gpt-oss-20b", "--device", "abacus"}, "h200");
  expect_mistake({"worth", "--model", "gpt-oss-20b", "--context", "many"}, "--context");
  expect_mistake({"worth", "--claim", "kernel=2"}, "two levels");
  expect_mistake({"worth", "--claim", "kernel"}, "--claim");
  expect_mistake({"worth", "--claim", "kernel=fast,e2e=2"}, "not a number");
  expect_mistake({"worth", "--points", "4K=0.18"}, "two points");
  expect_mistake({"worth", "--p", "0.5", "--prefill", "--decode"}, "exclude");
  expect_mistake({"worth", "--p", "0.5", "--device", "h100"}, "--device is about the cost model");
  expect_mistake({"worth", "--p", "0.5", "--context", "1K"}, "--context");
  expect_mistake({"worth", "--claim", "kernel=2,e2e=1.5", "--p", "7"}, "between 0 and 1");
  const ProcessResult early =
      run_fovea({"worth", "--p", "0.5", "--ttft", "-5", "--tpot", "1", "--output", "3"});
  EXPECT_EQ(early.exit_code, 2);
  EXPECT_EQ(early.out, "");  // refused before anything was said
  const File device("fovea_cli_device.json", R"({"mine": {"gemm_tflops": {"bf16": 1}}})");
  expect_mistake({"worth", "--model", "gpt-oss-20b", "--device", device.path()}, device.path());
  const File text("fovea_cli_no_trace.json", "hello");
  expect_mistake({"worth", "--trace", text.path()}, text.path());
}

TEST(FitCommand, PublishedTable) {
  const File csv(
      "fovea_cli_sweep.csv",
      "n,FLASH_ttft_s,FLEX_ttft_s,FLASH_itl_ms,FLEX_itl_ms\n"
      "257,.116,.119,33.76,35.43\n1025,.280,.292,33.68,36.74\n2050,.502,.544,33.86,38.72\n"
      "4097,.992,1.127,34.20,42.73\n8193,2.067,2.540,34.96,49.94\n16385,4.591,6.393,35.81,65.06\n"
      "24577,7.620,11.704,36.81,80.68\n30720,10.181,16.410,37.33,91.83\n");
  const ProcessResult text =
      run_fovea({"fit", csv.path(), "--kv-bytes", "57344", "--copy-gbps", "483", "--residuals"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("466 GB/s"), HasSubstr("31 GB/s"), HasSubstr("35.8 % *"),
                    HasSubstr("12.2 %"), HasSubstr("b shared"), HasSubstr("residuals of FLEX")));
  const nlohmann::json json = json_of(run_fovea({"fit", csv.path(), "--json"}));
  EXPECT_NEAR(json["prefill"][0]["c_s"].get<double>() * 1e12, 3688.9, 0.1);
  EXPECT_TRUE(json["prefill"][0]["shares"][2]["extrapolated"].get<bool>());
}

TEST(FitCommand, ThreeLengthsFitWithoutErrorsAndWithoutNan) {
  const ProcessResult result = run_fovea(
      {"fit", "-"}, "n,A_ttft_s,B_ttft_s\n512,.026,.026\n1024,.058,.054\n2048,.141,.102\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no error: too few lengths"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("nan")));
  // B's c came out below 0: no ratio of the two means anything.
  EXPECT_THAT(result.out, HasSubstr("c came out below 0"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("c of B over c of A")));
}

TEST(FitCommand, Mistakes) {
  const File csv("fovea_cli_bad.csv", "n,speed\n1,2\n");
  expect_mistake({"fit", csv.path()}, "'speed'");
  const File few("fovea_cli_few.csv", "n,A_ttft_s\n1,2\n2,3\n");
  expect_mistake({"fit", few.path()}, "at least 3");
  expect_mistake({"fit", "/does/not/exist.csv"}, "/does/not/exist.csv");
  const File binary("fovea_cli_binary.csv", std::string("\0\x01\xff,\0\n", 6));
  expect_mistake({"fit", binary.path()}, "must be named like");
}

TEST(SweepCommand, MeasuresWritesAndIsReadByTheKit) {
  const std::string folder = testing::TempDir();
  const std::string json_path = folder + "fovea_cli_sweep.json";
  const std::string csv_path = folder + "fovea_cli_sweep3.csv";
  const std::string page_path = folder + "fovea_cli_sweep.html";
  const ProcessResult result =
      run_fovea({"sweep", "-m", "models/needle_7m", "--lengths", "32..256", "--attention",
                 "dense,witness", "--repetitions", "1", "--decode-tokens", "2", "--seed", "1", "-o",
                 json_path, "--csv", csv_path, "--report", page_path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("ttft(n) = a + b n + c n^2"), HasSubstr("itl(n)"),
                                HasSubstr("random tokens"), HasSubstr("conditions: ")));
  const nlohmann::json json = nlohmann::json::parse(std::ifstream(json_path));
  EXPECT_EQ(json["rows"].size(), 8u);
  EXPECT_EQ(json["finished"], true);
  EXPECT_EQ(json["seed"], 1);
  EXPECT_EQ(json["rows"][0]["backend"], "dense");
  EXPECT_EQ(json["rows"][0]["itl_ms"]["samples"].size(), 2u);
  // Two backends alone and together, under two weightings.
  EXPECT_EQ(json["fits"]["prefill"].size(), 8u);
  EXPECT_TRUE(json["fits"]["prefill"][0]["a_se"].is_number());
  EXPECT_EQ(json["fits"]["decode"].size(), 2u);
  const nlohmann::json fit = json_of(run_fovea({"fit", csv_path, "--json"}));
  EXPECT_NEAR(fit["prefill"][0]["b_s"].get<double>(),
              json["fits"]["prefill"][0]["b_s"].get<double>(),
              1e-6 * std::abs(json["fits"]["prefill"][0]["b_s"].get<double>()));
  const nlohmann::json audit = json_of(run_fovea({"conditions", json_path, "--json"}));
  EXPECT_EQ(audit["format"], "Fovea");
  EXPECT_EQ(audit["num_missing"], 2);  // no latency target, so none that met it
  std::ifstream page(page_path);
  const std::string html((std::istreambuf_iterator<char>(page)), std::istreambuf_iterator<char>());
  EXPECT_THAT(html, AllOf(HasSubstr("<svg"), HasSubstr("witness, fit"), HasSubstr("needle_7m")));
  for (const std::string& path : {json_path, csv_path, page_path}) std::remove(path.c_str());
}

TEST(SweepCommand, TooFewLengthsForAFitAreSaid) {
  const ProcessResult result =
      run_fovea({"sweep", "-m", "models/needle_7m", "--lengths", "32", "--attention", "dense",
                 "--repetitions", "1", "--decode-tokens", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("no fit of ttft from 1 lengths, it needs 3"),
                                HasSubstr("no fit of itl")));
}

TEST(SweepCommand, CtrlCEndsIt) {
  Process process({"sweep", "-m", "models/needle_7m", "--lengths", "16", "--attention", "dense",
                   "--repetitions", "1000000", "--decode-tokens", "0"});
  process.interrupt();
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("interrupted: "));
}

TEST(SweepCommand, Mistakes) {
  const std::string needle = "models/needle_7m";
  expect_mistake({"sweep"}, "--url");
  expect_mistake({"sweep", "-m", "/does/not/exist"}, "/does/not/exist");
  expect_mistake({"sweep", "-m", needle, "--attention", "dense,dense"}, "twice");
  expect_mistake({"sweep", "-m", needle, "--lengths", "1K,1K"}, "1024 twice");
  expect_mistake({"sweep", "-m", needle, "--lengths", "1M"}, "context of 131072");
  expect_mistake({"sweep", "-m", needle, "--repetitions", "0"}, "--repetitions");
  expect_mistake({"sweep", "-m", needle, "--seed", "-5"}, "--seed");
  expect_mistake({"sweep", "-m", needle, "--chat"}, "--chat is about a server");
  expect_mistake({"sweep", "-m", needle, "--csv", "/does/not/exist/x.csv"}, "cannot write");
  expect_mistake({"sweep", "--url", "localhost:8000"}, "http://localhost:8000");
  expect_mistake({"sweep", "--url", "http://127.0.0.1:1", "--density", "0.1"},
                 "--density is about our engine");
  expect_mistake({"sweep", "--url", "http://127.0.0.1:1", "--model", "m"}, "cannot connect");
  expect_mistake({"sweep", "--url", "http://127.0.0.1:1", "--api-key-env", "FOVEA_NOT_SET"},
                 "FOVEA_NOT_SET");
}

TEST(ConditionsCommand, MissingOnesComeFirst) {
  const File report(
      "fovea_cli_report.json",
      R"({"model_id": "m", "request_throughput": 2, "output_throughput": 10, "total_token_throughput": 90})");
  const ProcessResult result = run_fovea({"conditions", report.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.out.find("MISSING"), result.out.find("model_id"));
  EXPECT_THAT(result.out, HasSubstr("9.00 times"));
  EXPECT_EQ(json_of(run_fovea({"conditions", report.path(), "--json"}))["format"], "vLLM bench");
  const File text("fovea_cli_report.txt", "fast!");
  expect_mistake({"conditions", text.path()}, "not a JSON object");
}

}  // namespace
}  // namespace fovea::cli
