#include "apps/cli/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "fovea/base/error.h"

namespace fovea::cli {

nlohmann::json to_json(const AttentionSettings& settings) {
  if (!settings.selector) return nullptr;
  const SelectorSettings& selector = *settings.selector;
  nlohmann::json json = {
      {"method", selector_method_name(selector.method)},
      {"block_size", selector.block_size},
      {"density", selector.density},
      {"alpha_base", selector.alpha_base},
      {"alpha_rescue", selector.alpha_rescue},
      {"rescue_share", selector.rescue_share},
      {"quantile_low", selector.quantile_low},
      {"quantile_high", selector.quantile_high},
      {"quantiles", selector.quantiles == QuantileMode::kCausal ? "causal" : "prompt"},
      {"uplift_clamp", selector.uplift_clamp},
      {"forced_in_maximum", selector.forced_in_maximum},
      {"sink_blocks", selector.sink_blocks},
      {"local_blocks", selector.local_blocks},
      {"dense_tail_blocks", selector.dense_tail_blocks},
      {"min_sparse_len", settings.min_sparse_len},
      {"streaming_sink_tokens", selector.streaming_sink_tokens},
      {"streaming_local_tokens", selector.streaming_local_tokens},
      {"num_witnesses", selector.num_witnesses},
      {"witness_choice", witness_choice_name(selector.witness_choice)},
      {"f8_witnesses", selector.f8_witnesses},
      {"calm_quantile", selector.calm_quantile},
      {"skip_by_bound", selector.skip_by_bound},
      {"aggregation", aggregation_name(selector.aggregation)},
      {"lists_per_kv_head", selector.lists_per_kv_head},
      {"coverage", selector.coverage},
      {"antidiagonal_stride", selector.antidiagonal_stride},
      {"vertical_tokens", selector.vertical_tokens},
      {"slash_tokens", selector.slash_tokens},
      {"most_divergence", selector.most_divergence},
      {"least_similarity", selector.least_similarity},
      {"nearest_gap", selector.nearest_gap},
      {"mass_power", selector.mass_power},
      {"least_peak", selector.least_peak},
      {"periphery", settings.periphery ? "mean" : "none"},
      {"decode", settings.sparse_decode ? "sparse" : "dense"}};
  if (!settings.layer_budgets.empty()) json["layer_budgets"] = settings.layer_budgets;
  return json;
}

nlohmann::json to_json(const PrefillReport& report, int64_t num_q_heads, bool head_density) {
  nlohmann::json json = {{"num_tokens", report.num_tokens},
                         {"num_cached_tokens", report.num_cached_tokens},
                         {"chunk_size", report.chunk_size},
                         {"total_ms", report.times.total_ms},
                         {"attention_ms", report.times.attention_ms},
                         {"selection_ms", report.times.selection_ms},
                         {"matmul_ms", report.times.matmul_ms},
                         {"other_ms", report.times.other_ms},
                         {"matmul_flops", report.work.matmul_flops},
                         {"attention_flops", report.work.attention_flops},
                         {"weight_read_bytes", report.work.weight_bytes},
                         {"kv_read_bytes", report.work.kv_bytes},
                         {"sparse", report.sparse},
                         {"note", report.note},
                         {"density", report.density()},
                         {"forced_share", report.forced_share()},
                         {"causal_pairs", report.causal_pairs},
                         {"kept_pairs", report.kept_pairs},
                         {"forced_pairs", report.forced_pairs},
                         {"non_finite_pairs", report.non_finite_pairs},
                         {"skipped_pairs", report.skipped_pairs},
                         {"kv_bytes", report.kv_bytes},
                         {"stats_bytes", report.stats_bytes},
                         {"selection_scratch_bytes", report.selection_scratch_bytes},
                         {"activation_bytes", report.activation_bytes}};
  if (!head_density) return json;
  nlohmann::json layers = nlohmann::json::array();
  for (size_t at = 0; at < report.head_density.size(); at += static_cast<size_t>(num_q_heads)) {
    const auto first = report.head_density.begin() + static_cast<ptrdiff_t>(at);
    layers.push_back(std::vector<double>(first, first + num_q_heads));
  }
  json["head_density"] = layers;
  return json;
}

double median(std::vector<double> values) {
  check_argument(!values.empty(), "the median of no values");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

nlohmann::json summary_json(const std::vector<double>& samples) {
  if (samples.empty()) return nullptr;
  constexpr size_t kMostSamples = 16;
  std::vector<double> ordered = samples;
  std::sort(ordered.begin(), ordered.end());
  nlohmann::json json = {
      {"median", median(samples)}, {"min", ordered.front()}, {"max", ordered.back()}};
  if (samples.size() <= kMostSamples) {
    json["samples"] = samples;
  } else {
    json["q1"] = ordered[samples.size() / 4];
    json["q3"] = ordered[samples.size() * 3 / 4];
  }
  return json;
}

std::string prompt_hash(std::span<const int32_t> tokens) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(token) >> shift) & 0xffu)) * 0x100000001b3u;
    }
  }
  return fmt::format("{:016x}", hash);
}

int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    int64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace fovea::cli
