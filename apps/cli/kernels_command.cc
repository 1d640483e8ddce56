#include "apps/cli/kernels_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/attention_options.h"
#include "apps/cli/conditions.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/selection_timing.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"

namespace fovea::cli {
namespace {

struct KernelsOptions {
  std::string model;
  std::string lengths = "2K,8K,32K";
  std::string attention = "rescue,witness";
  std::string dtype = "auto";
  int64_t num_q_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 128;
  int32_t num_threads = 0;
  double min_seconds = 0.2;
  AttentionOptions knobs;
  bool json = false;
  std::string output;
  std::string device_file;
};

// What one row of the table and of the JSON says.
struct KernelRow {
  std::string kernel;  // "attention", "attention, sparse", "selection: rescue", "decode"
  std::string backend;
  int64_t length = 0;
  Timing timing;
  double density = 1;
  std::string rate;     // in words, with its unit
  std::string against;  // what it is compared with, in words
  nlohmann::json figures = nlohmann::json::object();
};

DType parse_dtype(const std::string& name) {
  const bool has_bf16 = cpu_features().avx512_bf16 || cpu_features().amx_bf16;
  if (name == "auto") return has_bf16 ? DType::kBF16 : DType::kF32;
  if (name == "f32") return DType::kF32;
  check_argument(name == "bf16", "--dtype must be auto, f32 or bf16, not \"{}\"", name);
  return DType::kBF16;
}

KernelShape make_shape(const KernelsOptions& options) {
  KernelShape shape;
  shape.dtype = parse_dtype(options.dtype);
  shape.num_q_heads = options.num_q_heads;
  shape.num_kv_heads = options.num_kv_heads;
  shape.head_dim = options.head_dim;
  if (!options.model.empty()) {
    const ModelFile file = ModelFile::open(options.model);
    shape.num_q_heads = file.config().num_q_heads;
    shape.num_kv_heads = file.config().num_kv_heads;
    shape.head_dim = file.config().head_dim;
  }
  check_argument(shape.num_q_heads > 0 && shape.num_kv_heads > 0 && shape.head_dim > 0,
                 "--q-heads, --kv-heads and --head-dim must be positive, are {}, {} and {}",
                 shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
  check_argument(shape.num_q_heads % shape.num_kv_heads == 0,
                 "--q-heads must be a multiple of --kv-heads, are {} and {}", shape.num_q_heads,
                 shape.num_kv_heads);
  return shape;
}

// Runs the kernels one by one, and stops between two of them when Ctrl-C was pressed.
constexpr double kRateSeconds = 0.5;  // to measure one of the machine's own rates

class KernelsRun {
 public:
  KernelsRun(const KernelsOptions& options, const KernelShape& shape)
      : options_(options), shape_(shape) {
    context_.num_threads = options.num_threads;
    step("the machine's own rates");
    gemm_.emplace(shape.dtype);
    copy_.emplace(context_);
    gemm_gflops_ =
        giga_per_s(gemm_->flops(), time_repeatedly([&] { gemm_->run(); }, kRateSeconds).median_ms);
    copy_gb_per_s_ =
        giga_per_s(copy_->bytes(), time_repeatedly([&] { copy_->run(); }, kRateSeconds).median_ms);
  }

  double gemm_gflops() const { return gemm_gflops_; }
  double copy_gb_per_s() const { return copy_gb_per_s_; }
  const Context& context() const { return context_; }
  const std::vector<KernelRow>& rows() const { return rows_; }

  void measure(int64_t length, const std::vector<std::string>& methods) {
    KernelShape shape = shape_;
    shape.q_len = shape.kv_len = length;
    step(fmt::format("attention over {} tokens", length));
    const AttentionWork dense(shape, context_);
    const Comparison to_gemm = in_turn(dense, [&] { gemm_->run(); });
    const double gemm_ratio = to_gemm.ratio * dense.flops() / gemm_->flops();
    add_attention("attention", length, dense, to_gemm.work,
                  fmt::format("{:.2f} of GEMM", gemm_ratio), {{"ratio_to_gemm", gemm_ratio}});

    shape.density = options_.knobs.density.value_or(0);
    if (shape.density > 0 && shape.density < 1) {
      step(fmt::format("sparse attention over {} tokens", length));
      const AttentionWork sparse(shape, context_);
      const Comparison to_dense = in_turn(sparse, [&] { dense.run(); });
      const double cost = 1 / (to_dense.ratio * sparse.density());
      add_attention("attention, sparse", length, sparse, to_dense.work,
                    fmt::format("{:.2f} of density x dense", cost),
                    {{"time_over_density_x_dense", cost}});
    }
    for (const std::string& method : methods) add_selection(method, length, to_gemm.work.median_ms);

    shape = shape_;
    shape.q_len = 1;
    shape.kv_len = length;
    step(fmt::format("decode behind {} tokens", length));
    const AttentionWork decode(shape, context_);
    const Comparison to_copy = in_turn(decode, [&] { copy_->run(); });
    const double rate = giga_per_s(decode.kv_bytes(), to_copy.work.median_ms);
    const double copy_ratio = to_copy.ratio * decode.kv_bytes() / copy_->bytes();
    rows_.push_back({"decode",
                     std::string(decode.backend()),
                     length,
                     to_copy.work,
                     1,
                     fmt::format("{:.1f} GB/s", rate),
                     fmt::format("{:.2f} of copy", copy_ratio),
                     {{"kv_gb_per_s", rate}, {"ratio_to_copy", copy_ratio}}});
  }

 private:
  void step(const std::string& what) {
    if (interrupted()) {
      bar_.clear();
      throw Interrupted(fmt::format("{} kernels were measured", rows_.size()));
    }
    bar_.update(what, static_cast<int64_t>(rows_.size()), num_expected());
  }

  int64_t num_expected() const {
    return static_cast<int64_t>(parse_tokens_list(options_.lengths, "--lengths").size() *
                                (split_list(options_.attention, "--attention").size() + 3));
  }

  Comparison in_turn(const AttentionWork& work, const std::function<void()>& yardstick) const {
    return time_in_turn([&] { work.run(); }, yardstick, options_.min_seconds);
  }

  void add_attention(const std::string& kernel, int64_t length, const AttentionWork& work,
                     const Timing& timing, const std::string& against, nlohmann::json figures) {
    const double gflops = giga_per_s(work.flops(), timing.median_ms);
    figures["gflops"] = gflops;
    rows_.push_back({kernel, std::string(work.backend()), length, timing, work.density(),
                     fmt::format("{:.0f} GFLOP/s", gflops), against, figures});
  }

  void add_selection(const std::string& method, int64_t length, double dense_ms) {
    KernelShape shape = shape_;
    shape.q_len = shape.kv_len = length;
    step(fmt::format("{} over {} tokens", method, length));
    const auto settings = attention_settings(method, options_.knobs);
    const SelectionMeasurement measured =
        measure_selection(shape, *settings.selector, context_, options_.min_seconds);
    const double share = measured.selection.median_ms / dense_ms;
    rows_.push_back(
        {"selection: " + method,
         "",
         length,
         measured.selection,
         measured.density,
         fmt::format("{} of lists", format_bytes(static_cast<double>(measured.list_bytes))),
         fmt::format("{} of dense attention", format_percent(share)),
         {{"share_of_dense_attention", share},
          {"statistics_ms", measured.statistics.median_ms},
          {"list_bytes", measured.list_bytes}}});
  }

  const KernelsOptions& options_;
  KernelShape shape_;
  Context context_;
  std::optional<GemmWork> gemm_;
  std::optional<CopyWork> copy_;
  double gemm_gflops_ = 0, copy_gb_per_s_ = 0;
  std::vector<KernelRow> rows_;
  ProgressBar bar_;
};

nlohmann::json kernels_json(const KernelsRun& run, const KernelShape& shape,
                            const Conditions& conditions) {
  nlohmann::json json = machine_json(run.context());
  json["command"] = "kernels";
  json["conditions"] = to_json(conditions);
  json["dtype"] = dtype_name(shape.dtype);
  json["num_q_heads"] = shape.num_q_heads;
  json["num_kv_heads"] = shape.num_kv_heads;
  json["head_dim"] = shape.head_dim;
  json["gemm_gflops"] = run.gemm_gflops();
  json["copy_gb_per_s"] = run.copy_gb_per_s();
  json["rows"] = nlohmann::json::array();
  for (const KernelRow& row : run.rows()) {
    nlohmann::json entry = row.figures;
    entry.update({{"kernel", row.kernel},
                  {"backend", row.backend},
                  {"length", row.length},
                  {"density", row.density},
                  {"median_ms", row.timing.median_ms},
                  {"min_ms", row.timing.min_ms},
                  {"max_ms", row.timing.max_ms},
                  {"repetitions", row.timing.repetitions}});
    json["rows"].push_back(entry);
  }
  return json;
}

// The best rates of the run, as `fovea worth --device FILE` reads them.
nlohmann::ordered_json device_json(const KernelsRun& run, const KernelShape& shape,
                                   const std::string& lengths, const std::string& hardware) {
  const auto best = [&](const char* figure) {
    double rate = 0;
    for (const KernelRow& row : run.rows()) {
      if (row.density == 1) rate = std::max(rate, row.figures.value(figure, 0.0));
    }
    return rate;
  };
  nlohmann::ordered_json device;
  device["description"] = hardware;
  device["source"] = fmt::format("measured: fovea kernels, {} q and {} kv heads of {}, {} tokens",
                                 shape.num_q_heads, shape.num_kv_heads, shape.head_dim, lengths);
  device["gemm_tflops"][std::string(dtype_name(shape.dtype))] = run.gemm_gflops() / 1e3;
  device["copy_gbps"] = run.copy_gb_per_s();
  device["attention_tflops"] = best("gflops") / 1e3;
  device["attention_gbps"] = best("kv_gb_per_s");
  return {{"this machine", device}};
}

void print_text(const KernelsRun& run, const KernelShape& shape) {
  fmt::print(
      "one layer, {} q and {} kv heads of {}, {}; this machine in the same run: GEMM {:.0f} "
      "GFLOP/s, "
      "copy {:.1f} GB/s\n\n",
      shape.num_q_heads, shape.num_kv_heads, shape.head_dim, dtype_name(shape.dtype),
      run.gemm_gflops(), run.copy_gb_per_s());
  Table table({"length", "kernel", "time", "min - max", "density", "rate", "against", "backend"});
  for (const KernelRow& row : run.rows()) {
    table.add_row(
        {fmt::format("{}", row.length), row.kernel, format_seconds(row.timing.median_ms / 1e3),
         format_seconds(row.timing.min_ms / 1e3) + " - " + format_seconds(row.timing.max_ms / 1e3),
         format_percent(row.density), row.rate, row.against, row.backend});
  }
  fmt::print("{}", table.to_string());
}

void kernels(const KernelsOptions& options, const CLI::App& command) {
  const std::vector<int64_t> lengths = parse_tokens_list(options.lengths, "--lengths");
  for (const int64_t length : lengths) {
    check_argument(length >= options.knobs.selector.block_size,
                   "--lengths must be at least a block, {} tokens, is {}",
                   options.knobs.selector.block_size, length);
  }
  const std::vector<std::string> methods = parse_attention_list(options.attention);
  for (const std::string& method : methods) {
    check_argument(method != "dense", "dense attention selects nothing: it is timed in any case");
    attention_settings(method, options.knobs);
  }
  check_argument(options.min_seconds >= 0 && options.min_seconds <= 60,
                 "--min-seconds must be 0 ... 60, is {}", options.min_seconds);
  check_num_threads(options.num_threads);
  const KernelShape shape = make_shape(options);
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  std::optional<OutputFile> device_file;
  if (!options.device_file.empty()) device_file.emplace(options.device_file);

  KernelsRun run(options, shape);
  for (const int64_t length : lengths) run.measure(length, methods);

  const std::string dtype(dtype_name(shape.dtype));
  Conditions conditions;
  conditions.model = options.model.empty() ? "no model, one layer of built data" : options.model;
  conditions.hardware = hardware_text(run.context());
  conditions.attention_dtype = dtype;
  conditions.kv_dtype = dtype;
  conditions.weights_dtype = "none";
  conditions.prompt_length = options.lengths + " tokens";
  conditions.answer_length = "none";
  conditions.concurrency = "1";
  conditions.engine = "fovea " + version_text();
  conditions.flags = given_options(command);
  conditions.prefix_caching = "none";
  conditions.tokens_counted = "none, kernels alone";
  const nlohmann::json json = kernels_json(run, shape, conditions);
  if (output) output->write(json.dump(2) + "\n");
  if (device_file) {
    device_file->write(device_json(run, shape, options.lengths, conditions.hardware).dump(2) +
                       "\n");
  }
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    print_text(run, shape);
    fmt::print("{}\n", to_line(conditions));
  }
}

}  // namespace

void add_kernels_command(CLI::App& app) {
  const auto options = std::make_shared<KernelsOptions>();
  CLI::App* command = app.add_subcommand(
      "kernels", "Time attention and selection alone, beside this machine's GEMM and copy rates");
  const auto add = [&](const char* name, auto& value, const char* description) {
    return command->add_option(name, value, description)->capture_default_str();
  };
  command->add_option("-m,--model", options->model, "Take heads and head_dim from this model")
      ->type_name("MODEL");
  add("--lengths", options->lengths, "Prompt lengths in tokens")->type_name("N,N,...");
  add("--attention", options->attention, "Selections to time")->type_name("NAME,NAME,...");
  add("--q-heads", options->num_q_heads, "Query heads");
  add("--kv-heads", options->num_kv_heads, "KV heads");
  add("--head-dim", options->head_dim, "Width of a head");
  add("--dtype", options->dtype, "Type of queries, keys and values")->type_name("auto|f32|bf16");
  add("--threads", options->num_threads, "CPU threads; 0 is OMP_NUM_THREADS, or one per core");
  add("--min-seconds", options->min_seconds,
      "Time each kernel for as long as this, three times at least");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("FILE");
  command
      ->add_option("--device-file", options->device_file,
                   "Write this machine's rates for 'fovea worth --device FILE'")
      ->type_name("FILE");
  options->knobs.density = 0.05f;
  add_attention_options(*command, options->knobs);
  command->footer(
      "Sparse attention runs on random lists of --density; selections run on normally distributed "
      "data.\n"
      "Attention is timed in turn with what it is held against, so that both meet the same "
      "machine.\n"
      "Examples:\n"
      "  fovea kernels\n"
      "  fovea kernels -m model.gguf --lengths 8K --attention rescue,witness\n"
      "  fovea kernels --q-heads 9 --kv-heads 3 --head-dim 64 --dtype f32 --json\n"
      "  fovea kernels --device-file mine.json && fovea worth --model Qwen3-32B --device "
      "mine.json");
  command->callback([options, command] { kernels(*options, *command); });
}

}  // namespace fovea::cli
