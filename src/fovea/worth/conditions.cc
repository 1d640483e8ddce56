#include "fovea/worth/conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/worth/untrusted_json.h"

namespace fovea::worth {
namespace {

using Json = nlohmann::ordered_json;
using Paths = std::vector<const char*>;

constexpr size_t kLongestValue = 120;

// The member at a dotted path, or null. A number picks an element of an array.
const Json* find(const Json& json, std::string_view path) {
  const Json* at = &json;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
    if (at->is_array() && key == "0" && !at->empty()) {
      at = &at->at(0);
    } else if (at->is_object() && at->contains(key)) {
      at = &at->at(key);
    } else {
      return nullptr;
    }
  }
  return at;
}

bool says_something(const Json* json) {
  if (json == nullptr || json->is_null()) return false;
  if (json->is_string()) return !json->get_ref<const std::string&>().empty();
  return !((json->is_array() || json->is_object()) && json->empty());
}

std::string text_of(const Json& json) {
  std::string text = json.is_string()
                         ? json.get<std::string>()
                         : json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongestValue) text = text.substr(0, kLongestValue) + "...";
  return text;
}

double number_at(const Json& json, const char* path) {
  const Json* found = find(json, path);
  return found != nullptr && found->is_number() ? found->get<double>() : 0;
}

/// Collects what the candidate members of one condition say.
class Entry {
 public:
  Entry(const Json& report, ConditionEntry empty) : report_(report), entry_(std::move(empty)) {}

  /// Adds "label value" from the first of `paths` that says something.
  Entry& add(const char* label, const Paths& paths) {
    for (const char* path : paths) {
      const Json* found = find(report_, path);
      if (!says_something(found)) continue;
      append(label, text_of(*found), path);
      break;
    }
    return *this;
  }
  Entry& append(const std::string& label, const std::string& value, const std::string& path) {
    if (!entry_.value.empty()) entry_.value += ", ";
    entry_.value += label.empty() ? value : label + " " + value;
    if (!entry_.found_at.empty()) entry_.found_at += ", ";
    entry_.found_at += path;
    return *this;
  }
  ConditionEntry take() const { return entry_; }

 private:
  const Json& report_;
  ConditionEntry entry_;
};

enum class Dialect { kVllm, kAiperf, kGuidellm, kFovea, kUnknown };

Dialect dialect_of(const Json& report) {
  if (report.contains("conditions") && report.at("conditions").is_object()) return Dialect::kFovea;
  if (report.contains("benchmarks") && report.at("benchmarks").is_array())
    return Dialect::kGuidellm;
  if (report.contains("input_config") || report.contains("aiperf_version")) return Dialect::kAiperf;
  if (report.contains("mean_ttft_ms") || report.contains("request_throughput") ||
      report.contains("total_token_throughput")) {
    return Dialect::kVllm;
  }
  return Dialect::kUnknown;
}

const char* dialect_name(Dialect dialect) {
  switch (dialect) {
    case Dialect::kVllm:
      return "vLLM bench";
    case Dialect::kAiperf:
      return "AIPerf";
    case Dialect::kGuidellm:
      return "GuideLLM";
    case Dialect::kFovea:
      return "Fovea";
    case Dialect::kUnknown:
      return "unknown JSON";
  }
  return "unknown JSON";
}

// Mean tokens of a request, from totals.
void add_mean(Entry* entry, const Json& report, const char* label, const char* total,
              const char* requests) {
  const double sum = number_at(report, total);
  const double count = number_at(report, requests);
  if (sum > 0 && count > 0) {
    entry->append(label, fmt::format("{:.0f} tokens (mean)", sum / count),
                  fmt::format("{} / {}", total, requests));
  }
}

// Throughput counted two ways: the second is larger by a multiplier that a reader must know.
void add_token_counts(Entry* entry, const Json& report, const char* output, const char* total) {
  const double output_rate = number_at(report, output);
  const double total_rate = number_at(report, total);
  if (output_rate > 0) entry->append("output", fmt::format("{:.4g}/s", output_rate), output);
  if (total_rate <= 0) return;
  entry->append("input + output", fmt::format("{:.4g}/s", total_rate), total);
  if (output_rate > 0) {
    entry->append("", fmt::format("{:.2f} times the output alone", total_rate / output_rate),
                  "their quotient");
  }
}

// Where each dialect keeps each condition; the first member that says something is taken.
struct Sources {
  Paths model, hardware, weights, attention, kv, prompt, answer, concurrency, arrivals, engine,
      version, flags, prefix_caching, hit_rate, target, met;
  const char* output_rate;
  const char* total_rate;
};

Sources sources_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kFovea:
      return {.model = {"conditions.model"},
              .hardware = {"conditions.hardware", "processor"},
              .weights = {"conditions.weights_dtype"},
              .attention = {"conditions.attention_dtype"},
              .kv = {"conditions.kv_dtype"},
              .prompt = {"conditions.prompt_length"},
              .answer = {"conditions.answer_length"},
              .concurrency = {"conditions.concurrency"},
              .arrivals = {},
              .engine = {"conditions.engine"},
              .version = {"version"},
              .flags = {"conditions.flags"},
              .prefix_caching = {"conditions.prefix_caching"},
              .hit_rate = {},
              .target = {"conditions.latency_target"},
              .met = {"conditions.fraction_met"},
              .output_rate = "",
              .total_rate = ""};
    case Dialect::kGuidellm:
      return {.model = {"args.model", "benchmarks.0.config.backend.model",
                        "benchmarks.0.benchmarker.backend.model",
                        "benchmarks.0.worker.backend_model", "benchmarks.0.args.model"},
              .hardware = {"benchmarks.0.extras.hardware", "args.output_extras.hardware"},
              .weights = {"benchmarks.0.extras.dtype"},
              .attention = {},
              .kv = {"benchmarks.0.extras.kv_cache_dtype"},
              .prompt = {"benchmarks.0.metrics.prompt_token_count.successful.mean",
                         "benchmarks.0.prompt_token_count.successful.mean"},
              .answer = {"benchmarks.0.metrics.output_token_count.successful.mean",
                         "benchmarks.0.output_token_count.successful.mean"},
              .concurrency = {"benchmarks.0.metrics.request_concurrency.successful.mean"},
              .arrivals = {"benchmarks.0.config.strategy.type_",
                           "benchmarks.0.scheduler.strategy.type_",
                           "benchmarks.0.args.strategy.type_", "args.profile", "args.rate_type"},
              .engine = {"benchmarks.0.extras.engine"},
              .version = {"benchmarks.0.extras.engine_version"},
              .flags = {"benchmarks.0.extras.flags"},
              .prefix_caching = {"benchmarks.0.extras.prefix_caching"},
              .hit_rate = {"benchmarks.0.extras.prefix_cache_hit_rate"},
              .target = {"args.goodput", "args.slo"},
              .met = {},
              .output_rate = "benchmarks.0.metrics.output_tokens_per_second.successful.mean",
              .total_rate = "benchmarks.0.metrics.tokens_per_second.successful.mean"};
    case Dialect::kAiperf:
      return {.model = {"input_config.endpoint.model_names", "input_config.endpoint.models",
                        "input_config.models"},
              .hardware = {"input_config.hardware"},
              .weights = {"input_config.dtype"},
              .attention = {},
              .kv = {},
              .prompt = {"input_sequence_length.avg"},
              .answer = {"output_sequence_length.avg"},
              .concurrency = {"input_config.loadgen.concurrency"},
              .arrivals = {"input_config.loadgen.arrival_pattern",
                           "input_config.loadgen.request_rate_mode",
                           "input_config.loadgen.request_rate"},
              .engine = {"input_config.endpoint.engine"},
              .version = {},
              .flags = {},
              .prefix_caching = {"input_config.input.prompt.prefix_prompt.pool_size"},
              .hit_rate = {},
              .target = {"input_config.input.goodput", "input_config.goodput", "input_config.slos"},
              .met = {"good_request_fraction.avg", "good_request_count.avg", "goodput.avg"},
              .output_rate = "output_token_throughput.avg",
              .total_rate = "total_token_throughput.avg"};
    case Dialect::kVllm:
    case Dialect::kUnknown:
      break;
  }
  // vLLM's benchmark keeps `--metadata key=value` at the top, so what a careful user adds is found
  // there.
  return {.model = {"model_id", "model", "model_name"},
          .hardware = {"hardware", "gpu", "gpu_type", "device"},
          .weights = {"dtype", "weights_dtype", "quantization", "precision"},
          .attention = {"attention_dtype"},
          .kv = {"kv_cache_dtype", "kv_dtype"},
          .prompt = {"random_input_len", "input_len"},
          .answer = {"random_output_len", "output_len"},
          .concurrency = {"max_concurrency", "concurrency"},
          .arrivals = {"request_rate"},
          .engine = {"engine", "endpoint_type", "backend"},
          .version = {"vllm_version", "engine_version", "version"},
          .flags = {"server_args", "engine_args", "flags"},
          .prefix_caching = {"enable_prefix_caching", "prefix_caching"},
          .hit_rate = {"prefix_cache_hit_rate"},
          .target = {"goodput_config", "goodput_config_dict", "slo"},
          .met = {"goodput_fraction"},
          .output_rate = "output_throughput",
          .total_rate = "total_token_throughput"};
}

void add_remarks(ConditionsAudit* audit, Dialect dialect, const Json& report) {
  if (dialect == Dialect::kGuidellm) {
    audit->remarks.emplace_back(
        "GuideLLM's time per output token counts the first token: with a long ttft it reads higher "
        "than vLLM's tpot.");
  }
  if (dialect == Dialect::kVllm) {
    audit->remarks.emplace_back(
        "vLLM's goodput tests a request's mean gap against a tpot target: a stall inside a request "
        "can pass.");
    audit->remarks.emplace_back(
        "endpoint_type names the client's protocol, not the server that answered.");
    const double failed = number_at(report, "failed");
    if (failed > 0) {
      audit->remarks.push_back(
          fmt::format("{:.0f} requests failed and are in none of the latencies.", failed));
    }
  }
  if (dialect == Dialect::kUnknown) {
    audit->remarks.emplace_back(
        "Not a report of vLLM bench, AIPerf, GuideLLM or Fovea: members were looked for by their "
        "common names.");
  }
}

}  // namespace

int ConditionsAudit::num_missing() const {
  return static_cast<int>(std::count_if(entries.begin(), entries.end(),
                                        [](const ConditionEntry& e) { return e.missing(); }));
}

std::vector<ConditionEntry> ten_conditions(const std::map<std::string, std::string>& known) {
  std::vector<ConditionEntry> ten = {
      {"model", "which weights", "", ""},
      {"hardware", "type and count", "", ""},
      {"precision", "of weights, attention and KV cache", "", ""},
      {"lengths", "tokens of prompt and answer", "", ""},
      {"load", "concurrency and arrivals", "", ""},
      {"engine", "name, version, flags that differ from default", "", ""},
      {"prefix_caching", "on or off, and the hit rate", "", ""},
      {"tokens_counted", "output alone, or input + output", "", ""},
      {"latency_target", "what a request must meet", "", ""},
      {"fraction_met", "requests that met it", "", ""},
  };
  for (ConditionEntry& entry : ten) {
    const auto found = known.find(entry.name);
    if (found != known.end()) entry.value = found->second;
  }
  return ten;
}

ConditionsAudit audit_conditions(std::string_view json_text) {
  Json report = parse_untrusted_json(json_text);
  if (!report.is_discarded() && report.is_array() && !report.empty()) {
    Json first = report.at(0);
    report = std::move(first);
  }
  if (report.is_discarded() || !report.is_object()) {
    fail(ErrorCode::kInvalidFile, "the report is not a JSON object");
  }
  const Dialect dialect = dialect_of(report);
  const Sources from = sources_of(dialect);
  ConditionsAudit audit;
  audit.format = dialect_name(dialect);
  const std::vector<ConditionEntry> ten = ten_conditions();
  const auto entry = [&](std::string_view name) {
    return Entry(report, *std::find_if(ten.begin(), ten.end(), [&](const ConditionEntry& one) {
                   return one.name == name;
                 }));
  };
  const auto keep = [&](const Entry& one) { audit.entries.push_back(one.take()); };

  keep(entry("model").add("", from.model));
  keep(entry("hardware").add("", from.hardware));
  keep(entry("precision")
           .add("weights", from.weights)
           .add("attention", from.attention)
           .add("KV", from.kv));
  Entry lengths = entry("lengths");
  lengths.add("prompt", from.prompt).add("answer", from.answer);
  if (dialect == Dialect::kVllm && lengths.take().missing()) {
    add_mean(&lengths, report, "prompt", "total_input_tokens", "completed");
    add_mean(&lengths, report, "answer", "total_output_tokens", "completed");
  }
  keep(lengths);
  keep(entry("load").add("concurrency", from.concurrency).add("arrivals", from.arrivals));
  keep(entry("engine").add("", from.engine).add("version", from.version).add("flags", from.flags));
  keep(entry("prefix_caching").add("", from.prefix_caching).add("hit rate", from.hit_rate));
  Entry counted = entry("tokens_counted");
  if (dialect == Dialect::kFovea) {
    counted.add("", {"conditions.tokens_counted"});
  } else {
    add_token_counts(&counted, report, from.output_rate, from.total_rate);
  }
  keep(counted);
  keep(entry("latency_target").add("", from.target));
  Entry met = entry("fraction_met");
  met.add("", from.met);
  const double good = number_at(report, "request_goodput");
  const double all = number_at(report, "request_throughput");
  if (dialect == Dialect::kVllm && met.take().missing() && good > 0 && all > 0) {
    met.append("", fmt::format("{:.1f} %", 100 * good / all),
               "request_goodput / request_throughput");
  }
  keep(met);
  add_remarks(&audit, dialect, report);
  return audit;
}

}  // namespace fovea::worth
