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
#include "apps/cli/kernel_rows.h"
#include "apps/cli/kernels_cpu.h"
#include "apps/cli/kernels_gpu.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"
#include "fovea/tensor/device_memory.h"

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
  std::string device = "cpu";
  std::string cases = fmt::format("{}", fmt::join(gpu_case_names(), ","));
  std::string regime = "sustained";
  bool json = false;
  std::string output;
  std::string device_file;
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

// Progress, and Ctrl-C between two measurements.
class Steps {
 public:
  explicit Steps(int64_t num_steps) : num_steps_(num_steps) {}
  /// The next of the steps.
  void begin(const std::string& what) {
    go_on(what);
    ++num_begun_;
  }
  /// Something else within a step.
  void go_on(const std::string& what) {
    if (interrupted()) {
      bar_.clear();
      throw Interrupted(fmt::format("{} of {} steps were begun", num_begun_, num_steps_));
    }
    bar_.update(what, num_begun_, num_steps_);
  }

 private:
  int64_t num_steps_;
  int64_t num_begun_ = 0;
  ProgressBar bar_;
};

// What was measured, on any device.
struct KernelsReport {
  Context context;
  KernelRates rates;
  std::vector<KernelRow> rows;
  std::string shape;    // in words
  std::string lengths;  // in words
  std::string dtype;
  nlohmann::json json;  // what only this device's report says
};

nlohmann::json kernels_json(const KernelsReport& report, const Conditions& conditions) {
  nlohmann::json json = machine_json(report.context);
  json["command"] = "kernels";
  json["conditions"] = to_json(conditions);
  json["dtype"] = report.dtype;
  json.update(report.json);
  json["gemm_gflops"] = report.rates.gemm_gflops;
  json["copy_gb_per_s"] = report.rates.copy_gb_per_s;
  json["rows"] = nlohmann::json::array();
  for (const KernelRow& row : report.rows) {
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

// The best rates of the run, as `fovea worth --device FILE` reads them; those that were not
// measured are left out. Attention as the engine calls it, over pages, where that was measured on
// its own.
nlohmann::ordered_json device_json(const KernelsReport& report, const std::string& hardware) {
  const auto best = [&](const char* figure) {
    double rate = 0;
    for (const KernelRow& row : report.rows) {
      if (row.density == 1) rate = std::max(rate, row.figures.value(figure, 0.0));
    }
    return rate;
  };
  nlohmann::ordered_json device;
  device["description"] = hardware;
  device["source"] =
      fmt::format("measured: fovea kernels, {}, {} tokens", report.shape, report.lengths);
  device["gemm_tflops"][report.dtype] = report.rates.gemm_gflops / 1e3;
  device["copy_gbps"] = report.rates.copy_gb_per_s;
  double attention_gflops = best("gflops");
  for (const KernelRow& row : report.rows) {
    if (row.figures.value("as_engine", false)) attention_gflops = row.figures.at("gflops");
  }
  if (attention_gflops > 0) device["attention_tflops"] = attention_gflops / 1e3;
  if (best("kv_gb_per_s") > 0) device["attention_gbps"] = best("kv_gb_per_s");
  return {{"this machine", device}};
}

void print_text(const KernelsReport& report) {
  const bool is_gpu = report.context.device.type != DeviceType::kCpu;
  fmt::print(
      "one layer, {}, {}; this machine in the same run: GEMM {:.0f} GFLOP/s, copy {:.1f} GB/s\n\n",
      report.shape, report.dtype, report.rates.gemm_gflops, report.rates.copy_gb_per_s);
  std::vector<std::string> header = {"length",  "kernel", "time",    "min - max",
                                     "density", "rate",   "against", "backend"};
  if (is_gpu) header.back() = "floor / goal";
  Table table(header);
  for (const KernelRow& row : report.rows) {
    table.add_row(
        {fmt::format("{}", row.length), row.kernel, format_seconds(row.timing.median_ms / 1e3),
         format_seconds(row.timing.min_ms / 1e3) + " - " + format_seconds(row.timing.max_ms / 1e3),
         format_percent(row.density), row.rate, row.against, is_gpu ? row.target : row.backend});
  }
  fmt::print("{}", table.to_string());
}

KernelsReport run_on_cpu(const KernelsOptions& options) {
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
  KernelsReport report;
  report.context.num_threads = options.num_threads;
  Steps steps(static_cast<int64_t>(1 + lengths.size() * (methods.size() + 3)));
  CpuKernels kernels(shape, options.knobs, options.min_seconds, report.context,
                     [&](const std::string& what) { steps.begin(what); });
  for (const int64_t length : lengths) kernels.measure(length, methods);
  report.rates = kernels.rates();
  report.rows = kernels.rows();
  report.shape = fmt::format("{} q and {} kv heads of {}", shape.num_q_heads, shape.num_kv_heads,
                             shape.head_dim);
  report.lengths = options.lengths;
  report.dtype = dtype_name(shape.dtype);
  report.json = {{"num_q_heads", shape.num_q_heads},
                 {"num_kv_heads", shape.num_kv_heads},
                 {"head_dim", shape.head_dim}};
  return report;
}

KernelsReport run_on_gpu(const KernelsOptions& options, Device device) {
  check_argument(options.regime == "sustained" || options.regime == "burst",
                 "--regime must be sustained or burst, not \"{}\"", options.regime);
  const std::vector<std::string> cases = split_list(options.cases, "--cases");
  const std::vector<std::string> known = gpu_case_names();
  for (const std::string& name : cases) {
    check_argument(std::find(known.begin(), known.end(), name) != known.end(),
                   "--cases takes {}, not \"{}\"", fmt::join(known, ", "), name);
  }
  check_usable(device);
  const bool is_burst = options.regime == "burst";
  Steps steps(static_cast<int64_t>(cases.size()));
  GpuKernels kernels(device, is_burst ? GpuRegime::kBurst : GpuRegime::kSustained,
                     [&](const std::string& what) { steps.go_on(what); });
  for (const std::string& name : cases) {
    steps.begin(name);
    kernels.measure(name);
  }
  KernelsReport report;
  report.context.device = device;
  report.rates = kernels.rates();
  report.rows = kernels.rows();
  report.shape =
      fmt::format("32 q and 4 kv heads of 128 where no other, {}",
                  is_burst ? "in bursts of 8 ms" : "sustained: after 200 ms of the same");
  report.lengths = "4K ... 128K";
  report.dtype = "bf16";
  report.json = {{"regime", options.regime}};
  return report;
}

void kernels(const KernelsOptions& options, const CLI::App& command) {
  const Device device = parse_device(options.device);
  const bool is_gpu = device.type != DeviceType::kCpu;
  for (const char* name : {"--model", "--lengths", "--attention", "--q-heads", "--kv-heads",
                           "--head-dim", "--dtype", "--threads", "--min-seconds", "--density"}) {
    check_argument(!is_gpu || command.count(name) == 0,
                   "{} does not apply to --device {}: its table is fixed, see --cases", name,
                   options.device);
  }
  for (const char* name : {"--cases", "--regime"}) {
    check_argument(is_gpu || command.count(name) == 0, "{} needs --device cuda", name);
  }
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  std::optional<OutputFile> device_file;
  if (!options.device_file.empty()) device_file.emplace(options.device_file);

  const KernelsReport report = is_gpu ? run_on_gpu(options, device) : run_on_cpu(options);

  Conditions conditions;
  conditions.model = options.model.empty() ? "no model, one layer of built data" : options.model;
  conditions.hardware = hardware_text(report.context);
  conditions.attention_dtype = report.dtype;
  conditions.kv_dtype = report.dtype;
  conditions.weights_dtype = "none";
  conditions.prompt_length = report.lengths + " tokens";
  conditions.answer_length = "none";
  conditions.concurrency = "1";
  conditions.engine = "fovea " + version_text();
  conditions.flags = given_options(command);
  conditions.prefix_caching = "none";
  conditions.tokens_counted = "none, kernels alone";
  const nlohmann::json json = kernels_json(report, conditions);
  if (output) output->write(json_text(json) + "\n");
  if (device_file) {
    device_file->write(json_text(device_json(report, conditions.hardware)) + "\n");
  }
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else {
    print_text(report);
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
  add("--device", options->device,
      "Where to compute; cuda measures a fixed table of cases on a Hopper GPU")
      ->type_name("cpu|cuda|cuda:N");
  add("--cases", options->cases, "Parts of the GPU's table")->type_name("NAME,NAME,...");
  add("--regime", options->regime,
      "Of the GPU's clock: after 200 ms of the same work, or 8 ms at a time between pauses")
      ->type_name("sustained|burst");
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
      ->type_name("OUT");
  command
      ->add_option("--device-file", options->device_file,
                   "Write this machine's rates for 'fovea worth --device FILE'")
      ->type_name("OUT");
  options->knobs.density = 0.05f;
  add_attention_options(*command, options->knobs);
  command->footer(
      "Sparse attention runs on random lists of --density; selections run on random data.\n"
      "Attention is timed in turn with what it is held against, so that both meet the same "
      "machine.\n"
      "Examples:\n"
      "  fovea kernels\n"
      "  fovea kernels -m model.gguf --lengths 8K --attention rescue,witness\n"
      "  fovea kernels --q-heads 9 --kv-heads 3 --head-dim 64 --dtype f32 --json\n"
      "  fovea kernels --device cuda --output h200.json\n"
      "  fovea kernels --device-file mine.json && fovea worth --model Qwen3-32B --device "
      "mine.json");
  command->callback([options, command] { kernels(*options, *command); });
}

}  // namespace fovea::cli
