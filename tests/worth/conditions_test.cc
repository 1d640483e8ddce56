#include "fovea/worth/conditions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

using testing::HasSubstr;

ConditionEntry entry(const ConditionsAudit& audit, const std::string& name) {
  for (const ConditionEntry& one : audit.entries) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "no condition " << name;
  return {};
}

TEST(Conditions, VllmBench) {
  const ConditionsAudit audit = audit_conditions(R"({
    "date": "20250101-000000", "endpoint_type": "openai", "backend": "openai", "label": null,
    "model_id": "org/model-8b", "tokenizer_id": "org/model-8b", "num_prompts": 100, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 32, "duration": 10.0, "completed": 100, "failed": 3,
    "total_input_tokens": 102400, "total_output_tokens": 12800, "request_throughput": 10.0,
    "request_goodput": 8.0, "output_throughput": 1280.0, "total_token_throughput": 11520.0,
    "mean_ttft_ms": 80.0, "kv_cache_dtype": "fp8"})");
  EXPECT_EQ(audit.format, "vLLM bench");
  ASSERT_EQ(audit.entries.size(), 10u);
  EXPECT_EQ(entry(audit, "model").value, "org/model-8b");
  EXPECT_TRUE(entry(audit, "hardware").missing());
  EXPECT_EQ(entry(audit, "precision").value, "KV fp8");
  EXPECT_EQ(entry(audit, "lengths").value, "prompt 1024 tokens (mean), answer 128 tokens (mean)");
  EXPECT_EQ(entry(audit, "load").value, "concurrency 32, arrivals inf");
  EXPECT_THAT(entry(audit, "tokens_counted").value, HasSubstr("9.00 times"));
  EXPECT_EQ(entry(audit, "fraction_met").value, "80.0 %");
  EXPECT_TRUE(entry(audit, "latency_target").missing());
  EXPECT_TRUE(entry(audit, "prefix_caching").missing());
  EXPECT_EQ(audit.num_missing(), 3);
  EXPECT_THAT(audit.remarks, testing::Contains(HasSubstr("3 requests failed")));
}

TEST(Conditions, Aiperf) {
  const ConditionsAudit audit = audit_conditions(R"({
    "schema_version": "1.0", "aiperf_version": "0.8.0",
    "input_config": {"endpoint": {"model_names": ["org/m"], "url": "http://localhost:8000"},
                     "loadgen": {"concurrency": 16, "request_rate_mode": "poisson"},
                     "input": {"goodput": {"time_to_first_token": 500.0}}},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 100.0},
    "total_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
    "input_sequence_length": {"unit": "tokens", "avg": 512.0}, "output_sequence_length": {"unit": "tokens", "avg": 64.0},
    "goodput": {"unit": "requests/sec", "avg": 1.5}})");
  EXPECT_EQ(audit.format, "AIPerf");
  EXPECT_EQ(entry(audit, "model").value, "[\"org/m\"]");
  EXPECT_EQ(entry(audit, "load").value, "concurrency 16, arrivals poisson");
  EXPECT_EQ(entry(audit, "load").found_at,
            "input_config.loadgen.concurrency, input_config.loadgen.request_rate_mode");
  EXPECT_EQ(entry(audit, "lengths").value, "prompt 512.0, answer 64.0");
  EXPECT_THAT(entry(audit, "latency_target").value, HasSubstr("500"));
  EXPECT_THAT(entry(audit, "tokens_counted").value, HasSubstr("3.00 times"));
}

TEST(Conditions, Guidellm) {
  const ConditionsAudit audit = audit_conditions(R"({
    "metadata": {"guidellm_version": "0.4"}, "args": {"target": "http://x", "model": "org/m", "profile": "sweep"},
    "benchmarks": [{"config": {"strategy": {"type_": "constant"}}, "metrics": {
      "prompt_token_count": {"successful": {"mean": 256}}, "output_token_count": {"successful": {"mean": 128}},
      "request_concurrency": {"successful": {"mean": 3.5}}, "output_tokens_per_second": {"successful": {"mean": 50}},
      "tokens_per_second": {"successful": {"mean": 150}}}}]})");
  EXPECT_EQ(audit.format, "GuideLLM");
  EXPECT_EQ(entry(audit, "model").value, "org/m");
  EXPECT_EQ(entry(audit, "lengths").value, "prompt 256, answer 128");
  EXPECT_EQ(entry(audit, "load").value, "concurrency 3.5, arrivals constant");
  EXPECT_THAT(audit.remarks, testing::Contains(HasSubstr("counts the first token")));
}

TEST(Conditions, OurOwn) {
  const ConditionsAudit audit = audit_conditions(R"({"version": "0.1.0", "conditions": {
    "model": "needle_7m", "hardware": "2 threads", "weights_dtype": "bf16", "attention_dtype": "f32",
    "kv_dtype": "bf16", "prompt_length": "1024", "answer_length": "8", "concurrency": "1", "engine": "fovea",
    "flags": {"--lengths": "1K"}, "prefix_caching": "off", "tokens_counted": "output", "latency_target": null,
    "fraction_met": null}})");
  EXPECT_EQ(audit.format, "Fovea");
  EXPECT_EQ(audit.num_missing(), 2);
  EXPECT_EQ(entry(audit, "precision").value, "weights bf16, attention f32, KV bf16");
}

TEST(Conditions, UnknownReportsAndGarbage) {
  const ConditionsAudit audit = audit_conditions(R"({"throughput": 12000, "hardware": "8 x GPU"})");
  EXPECT_EQ(audit.format, "unknown JSON");
  EXPECT_EQ(audit.num_missing(), 9);
  EXPECT_EQ(audit_conditions(R"([{"model": "a"}])").num_missing(), 9);
  for (const char* bad : {"", "12", "[]", "{\"a\":", "null", "\"text\""}) {
    EXPECT_THROW(audit_conditions(bad), Error) << bad;
  }
  // Nesting deeper than any report is left out, not followed.
  const std::string deep =
      R"({"model": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_LE(audit_conditions(deep).num_missing(), 10);
  // Members of unexpected types are no crash.
  EXPECT_EQ(audit_conditions(R"({"conditions": {}, "benchmarks": 5})").num_missing(), 10);
  EXPECT_GT(audit_conditions(R"({"benchmarks": [5]})").num_missing(), 8);
}

}  // namespace
}  // namespace fovea::worth
