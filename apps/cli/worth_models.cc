#include "apps/cli/worth_models.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/model_io/model_file.h"

namespace fovea::cli {
namespace {

constexpr int64_t kLongestPrompt = 16 << 20;
constexpr double kBreakEven = 1.10;

std::string format_tokens(int64_t tokens) {
  if (tokens >= 1 << 20 && tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  if (tokens >= 1 << 10 && tokens % (1 << 10) == 0) return fmt::format("{}K", tokens >> 10);
  return fmt::format("{}", tokens);
}

// What Fovea's own reader found, in the cost model's terms.
worth::ModelShape shape_of(const ModelConfig& config, const std::string& name) {
  worth::ModelShape shape;
  shape.name = name;
  shape.model_dim = config.model_dim;
  shape.vocab_size = config.vocab_size;
  shape.num_q_heads = config.num_q_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = shape.value_head_dim = config.head_dim;
  shape.mlp_dim = config.mlp_dim;
  shape.sliding_window = config.sliding_window;
  shape.tied_embeddings = config.tied_embeddings;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.layers.push_back(
        {config.is_local(layer) ? worth::AttentionKind::kSliding : worth::AttentionKind::kFull,
         worth::MlpKind::kDense});
  }
  return shape;
}

std::string shape_line(const worth::ModelShape& shape) {
  const auto sliding = shape.count(worth::AttentionKind::kSliding);
  const auto linear = shape.count(worth::AttentionKind::kLinear);
  std::string kinds = fmt::format("{} layers", shape.layers.size());
  if (sliding > 0) kinds += fmt::format(", {} with a window of {}", sliding, shape.sliding_window);
  if (linear > 0) kinds += fmt::format(", {} linear", linear);
  const std::string heads =
      shape.is_latent()
          ? fmt::format("{} heads on one latent of {}", shape.num_q_heads,
                        shape.latent.kv_rank + shape.latent.rope_head_dim)
          : fmt::format("{}/{} heads of {}", shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
  return fmt::format("{}: {} parameters ({} active), {}, {}, KV {:.0f} bytes/token", shape.name,
                     format_count(shape.num_parameters()),
                     format_count(shape.num_active_parameters()), kinds, heads,
                     shape.kv_bytes_per_token());
}

std::string device_line(const worth::DeviceRates& device) {
  return fmt::format("on {}: {:g} TFLOP/s, {:g} GB/s, ridge {:.0f} FLOP/byte ({})",
                     device.description.empty() ? device.name : device.description,
                     device.gemm_tflops, device.copy_gbps, device.ridge(), device.source);
}

worth::StepCost prefill_of(const ModelQuestion& question, const worth::ModelShape& shape,
                           int64_t tokens) {
  return worth::prefill_cost(shape, question.device, tokens, question.cached_tokens,
                             question.batch_size);
}

std::string one_model(const ModelQuestion& question, double speedup) {
  const worth::ModelShape& shape = question.models.front();
  std::string text = shape_line(shape) + "\n";
  const std::string with = fmt::format("{:g}x kernel", speedup);
  Table prefill({"prompt", "prefill", "attention", "ceiling", with, "bound by"});
  Table decode({"context", "decode step", "attention", "ceiling", with, "FLOP/byte", "bound by"});
  for (const int64_t tokens : question.contexts) {
    const worth::StepCost cost = prefill_of(question, shape, tokens);
    const double share = cost.attention_share();
    prefill.add_row({format_tokens(tokens), format_seconds(cost.time_s), format_percent(share),
                     format_speedup(worth::step_ceiling(share)),
                     format_speedup(worth::step_speedup(share, speedup)),
                     std::string(cost.attention_bound())});
    const worth::StepCost step =
        worth::decode_cost(shape, question.device, tokens, question.batch_size);
    const double step_share = step.attention_share();
    decode.add_row({format_tokens(tokens), format_seconds(step.time_s), format_percent(step_share),
                    format_speedup(worth::step_ceiling(step_share)),
                    format_speedup(worth::step_speedup(step_share, speedup)),
                    fmt::format("{:.1f}", step.attention_intensity()),
                    std::string(step.attention_bound())});
  }
  text += fmt::format("\n{}\n{}\n", prefill.to_string(), decode.to_string());
  const auto tokens =
      speedup > 1 ? break_even_tokens(shape, question.device, speedup, kBreakEven) : std::nullopt;
  text +=
      tokens
          ? fmt::format("A {:g}x kernel returns {:.2f}x of prefill from {} prompt tokens on.\n",
                        speedup, kBreakEven, *tokens)
          : fmt::format("A {:g}x kernel never returns {:.2f}x of prefill.\n", speedup, kBreakEven);
  return text +
         "Where decode attention is bound by memory, a kernel that only computes faster wins "
         "nothing there.\n";
}

std::string several_models(const ModelQuestion& question) {
  std::string text;
  std::vector<std::string> header = {"attention share"};
  for (const worth::ModelShape& shape : question.models) {
    text += shape_line(shape) + "\n";
    header.push_back(shape.name);
  }
  Table prefill(header);
  Table decode(header);
  for (const int64_t tokens : question.contexts) {
    std::vector<std::string> prefill_row = {fmt::format("prefill {}", format_tokens(tokens))};
    std::vector<std::string> decode_row = {fmt::format("decode at {}", format_tokens(tokens))};
    for (const worth::ModelShape& shape : question.models) {
      prefill_row.push_back(format_percent(prefill_of(question, shape, tokens).attention_share()));
      decode_row.push_back(
          format_percent(worth::decode_cost(shape, question.device, tokens, question.batch_size)
                             .attention_share()));
    }
    prefill.add_row(prefill_row);
    decode.add_row(decode_row);
  }
  return fmt::format("{}\n{}\n{}", text, prefill.to_string(), decode.to_string());
}

nlohmann::ordered_json cost_json(const worth::StepCost& cost, double speedup) {
  const double share = cost.attention_share();
  nlohmann::ordered_json json = {{"time_s", cost.time_s},
                                 {"flops", cost.flops},
                                 {"bytes", cost.bytes},
                                 {"attention_share", share},
                                 {"step_speedup", worth::step_speedup(share, speedup)},
                                 {"ceiling", worth::step_ceiling(share)},
                                 {"attention_flop_per_byte", cost.attention_intensity()},
                                 {"attention_bound", cost.attention_bound()},
                                 {"step_bound", cost.step_bound()},
                                 {"ops", nlohmann::ordered_json::array()}};
  for (const worth::OpCost& op : cost.ops) {
    json["ops"].push_back({{"name", op.name},
                           {"group", worth::op_group_name(op.group)},
                           {"flops", op.flops},
                           {"bytes", op.bytes},
                           {"time_s", op.time_s},
                           {"bound", op.compute_bound ? "compute" : "memory"}});
  }
  return json;
}

}  // namespace

worth::ModelShape load_model_shape(const std::string& model) {
  std::error_code ignored;
  if (!std::filesystem::exists(model, ignored)) return worth::model_shape_by_name(model);
  if (model.ends_with(".json")) return worth::model_shape_from_config(read_text(model), model);
  const std::filesystem::path config = std::filesystem::path(model) / "config.json";
  if (std::filesystem::exists(config, ignored)) {
    return worth::model_shape_from_config(read_text(config.string()), model);
  }
  const ModelFile file = ModelFile::open(model);
  return shape_of(file.config(), file.name());
}

worth::DeviceRates load_device_rates(const std::string& device, const std::string& dtype) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(device, ignored)) {
    return naming_file(device,
                       [&] { return worth::device_rates_from_json(read_text(device), dtype); });
  }
  return worth::device_rates_by_name(device, dtype);
}

std::string model_tables(const ModelQuestion& question, double speedup) {
  const std::string text =
      question.models.size() == 1 ? one_model(question, speedup) : several_models(question);
  return device_line(question.device) + fmt::format(", batch {}\n", question.batch_size) + text;
}

nlohmann::ordered_json model_json(const ModelQuestion& question, double speedup) {
  nlohmann::ordered_json json;
  const worth::DeviceRates& device = question.device;
  json["device"] = {{"name", device.name},
                    {"source", device.source},
                    {"gemm_tflops", device.gemm_tflops},
                    {"copy_gbps", device.copy_gbps},
                    {"ridge_flop_per_byte", device.ridge()}};
  json["batch_size"] = question.batch_size;
  json["cached_tokens"] = question.cached_tokens;
  json["speedup"] = speedup;
  json["models"] = nlohmann::ordered_json::array();
  for (const worth::ModelShape& shape : question.models) {
    nlohmann::ordered_json model = {{"name", shape.name},
                                    {"num_parameters", shape.num_parameters()},
                                    {"num_active_parameters", shape.num_active_parameters()},
                                    {"kv_bytes_per_token", shape.kv_bytes_per_token()},
                                    {"rows", nlohmann::ordered_json::array()}};
    for (const int64_t tokens : question.contexts) {
      model["rows"].push_back(
          {{"tokens", tokens},
           {"prefill", cost_json(prefill_of(question, shape, tokens), speedup)},
           {"decode",
            cost_json(worth::decode_cost(shape, device, tokens, question.batch_size), speedup)}});
    }
    json["models"].push_back(model);
  }
  return json;
}

std::optional<int64_t> break_even_tokens(const worth::ModelShape& shape,
                                         const worth::DeviceRates& device, double speedup,
                                         double target) {
  const auto enough = [&](int64_t tokens) {
    const double share = worth::prefill_cost(shape, device, tokens).attention_share();
    return worth::step_speedup(share, speedup) >= target;
  };
  if (!enough(kLongestPrompt)) return {};
  int64_t low = 0;  // not enough
  int64_t high = kLongestPrompt;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace fovea::cli
