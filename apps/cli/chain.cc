#include "apps/cli/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "benchmarks/kernel_bench.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/worth/amdahl.h"

namespace fovea::cli {
namespace {

double median_engine_ms(const BenchRow& row) {
  std::vector<double> samples;
  for (const PrefillReport& report : row.reports) {
    samples.push_back(report.times.attention_ms + report.times.selection_ms);
  }
  return median(samples);
}

double kernel_ms(const KernelShape& shape, const Context& context) {
  const AttentionWork work(shape, context);
  const auto body = [&] { work.run(); };
  if (context.device.type == DeviceType::kCpu) return time_repeatedly(body, 0.2).median_ms;
  return time_on_gpu(body, GpuRegime::kSustained, context).median_ms;
}

/// The rival's time a layer at a length; none when it was not given.
std::optional<double> rival_ms(int64_t length, const std::vector<int64_t>& lengths,
                               const std::vector<double>& layer_ms) {
  const auto found = std::find(lengths.begin(), lengths.end(), length);
  if (layer_ms.empty() || found == lengths.end()) return std::nullopt;
  return layer_ms[static_cast<size_t>(found - lengths.begin())];
}

std::string times_text(double ratio) { return fmt::format("{:.2f}x", ratio); }
std::string ms_text(double ms) { return format_seconds(ms / 1e3); }

}  // namespace

double ChainRow::predicted_speedup() const {
  return worth::step_speedup(attention_share(), engine_speedup());
}

double ChainRow::speedup_over_rival(double layer_ms, int64_t num_layers) const {
  const double others_ms = dense.ttft_ms - dense.engine_ms;
  return (others_ms + layer_ms * static_cast<double>(num_layers)) / sparse.ttft_ms;
}

std::vector<ChainRow> chain_of(const std::vector<BenchRow>& rows) {
  std::map<int64_t, const BenchRow*> dense;
  for (const BenchRow& row : rows) {
    if (row.attention == "dense") dense[row.length] = &row;
  }
  std::vector<ChainRow> chain;
  for (const BenchRow& row : rows) {
    const auto beside = dense.find(row.length);
    if (row.attention == "dense" || beside == dense.end() || !row.reports.back().sparse) continue;
    ChainRow& link = chain.emplace_back();
    link.length = row.length;
    link.attention = row.attention;
    link.density = median(row.density);
    link.dense.engine_ms = median_engine_ms(*beside->second);
    link.dense.ttft_ms = median(beside->second->ttft_ms);
    link.sparse.engine_ms = median_engine_ms(row);
    link.sparse.ttft_ms = median(row.ttft_ms);
  }
  return chain;
}

void time_kernels(const Model& model, bool periphery, std::vector<ChainRow>& rows) {
  const ModelConfig& config = model.config();
  const std::shared_ptr<void> stream = make_stream(model.context().device);
  const Context context{model.context().device, model.context().num_threads, stream.get()};
  double num_layers = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) num_layers += !config.is_local(layer);
  std::map<int64_t, double> dense_ms;
  for (ChainRow& row : rows) {
    KernelShape shape;
    shape.dtype = model.compute_dtype();
    shape.q_len = shape.kv_len = row.length;
    shape.head_dim = config.head_dim;
    shape.num_q_heads = config.num_q_heads;
    shape.num_kv_heads = config.num_kv_heads;
    auto [dense, is_new] = dense_ms.try_emplace(row.length);
    if (is_new) dense->second = num_layers * kernel_ms(shape, context);
    row.dense.kernel_ms = dense->second;
    shape.density = std::min(row.density, 1.0);
    const double plain_ms = kernel_ms(shape, context);
    row.sparse.kernel_ms = num_layers * plain_ms;
    if (periphery && shape.density < 1) {  // in all layers but the first: see AttentionSettings
      shape.has_periphery = true;
      const double num_plain = config.is_local(0) ? 0 : 1;
      row.sparse.kernel_ms =
          num_plain * plain_ms + (num_layers - num_plain) * kernel_ms(shape, context);
    }
  }
}

nlohmann::json chain_json(const std::vector<ChainRow>& rows, const std::vector<int64_t>& lengths,
                          const std::vector<double>& rival_layer_ms, int64_t num_layers) {
  const auto times = [](const ChainTimes& of) {
    return nlohmann::json{
        {"kernel_ms", of.kernel_ms}, {"engine_ms", of.engine_ms}, {"ttft_ms", of.ttft_ms}};
  };
  nlohmann::json json = nlohmann::json::array();
  for (const ChainRow& row : rows) {
    nlohmann::json entry = {{"length", row.length},
                            {"attention", row.attention},
                            {"density", row.density},
                            {"dense", times(row.dense)},
                            {"sparse", times(row.sparse)},
                            {"kernel_speedup", row.kernel_speedup()},
                            {"engine_speedup", row.engine_speedup()},
                            {"ttft_speedup", row.ttft_speedup()},
                            {"attention_share", row.attention_share()},
                            {"predicted_ttft_speedup", row.predicted_speedup()}};
    if (const auto rival = rival_ms(row.length, lengths, rival_layer_ms)) {
      entry["rival_layer_ms"] = *rival;
      entry["ttft_speedup_over_rival"] = row.speedup_over_rival(*rival, num_layers);
    }
    json.push_back(entry);
  }
  return json;
}

std::string chain_table(const std::vector<ChainRow>& rows, const std::vector<int64_t>& lengths,
                        const std::vector<double>& rival_layer_ms, int64_t num_layers) {
  Table table({"length", "attention", "density", "kernel", "in the engine", "share p",
               "Amdahl says", "ttft", "ttft over rival"});
  for (const ChainRow& row : rows) {
    const auto rival = rival_ms(row.length, lengths, rival_layer_ms);
    const auto step = [](double dense_ms, double sparse_ms) {
      return fmt::format("{} / {} = {}", ms_text(dense_ms), ms_text(sparse_ms),
                         times_text(dense_ms / sparse_ms));
    };
    table.add_row({fmt::format("{}", row.length), row.attention, format_percent(row.density),
                   step(row.dense.kernel_ms, row.sparse.kernel_ms),
                   step(row.dense.engine_ms, row.sparse.engine_ms),
                   format_percent(row.attention_share()), times_text(row.predicted_speedup()),
                   step(row.dense.ttft_ms, row.sparse.ttft_ms),
                   rival ? times_text(row.speedup_over_rival(*rival, num_layers)) : "-"});
  }
  return table.to_string() +
         "\nkernel: attend() alone, the prompt in one call, all layers. in the engine: with "
         "selection, chunk by chunk.\nAmdahl says: 1 / (1 - p + p / s), p attention's share of "
         "dense's ttft, s the win in the engine.\n";
}

}  // namespace fovea::cli
