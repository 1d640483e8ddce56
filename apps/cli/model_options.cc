#include "apps/cli/model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "fovea/base/error.h"
#include "fovea/engine/synthetic.h"

namespace fovea::cli {
namespace {

ComputeType parse_compute_type(const std::string& name) {
  if (name == "auto") return ComputeType::kAuto;
  if (name == "f32") return ComputeType::kF32;
  check_argument(name == "bf16", "--dtype must be auto, f32 or bf16, not \"{}\"", name);
  return ComputeType::kBF16;
}

}  // namespace

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("-m,--model", arguments.path,
                  "A .gguf file, a .safetensors file beside its config.json, or their folder")
      ->type_name("MODEL");
  command
      .add_option("--synthetic", arguments.synthetic,
                  "Instead of a model: random weights of a published shape, whose tokens are bytes")
      ->type_name(fmt::format("{}", fmt::join(synthetic_names(), "|")));
  command.add_option("--device", arguments.device, "Where to compute; cuda needs a Hopper GPU")
      ->capture_default_str()
      ->type_name("cpu|cuda|cuda:N");
  command
      .add_option("--dtype", arguments.dtype,
                  "Type to compute in; auto is bf16 where the device multiplies it, else f32")
      ->capture_default_str()
      ->type_name("auto|f32|bf16");
  command.add_flag("--f8-weights", arguments.f8_weights,
                   "Keep the layers' matrices as f8e4m3, a scale per 128 x 128 block (GPU only)");
  command
      .add_option("--threads", arguments.num_threads,
                  "CPU threads; 0 is OMP_NUM_THREADS, or one per core")
      ->capture_default_str();
}

void check_model_options(const ModelArguments& arguments) {
  check_argument(arguments.path.empty() != arguments.synthetic.empty(),
                 "give either --model FILE or --synthetic NAME");
  if (!arguments.synthetic.empty()) synthetic_config(arguments.synthetic);
  parse_device(arguments.device);
  parse_compute_type(arguments.dtype);
  check_num_threads(arguments.num_threads);
}

void check_num_threads(int32_t num_threads) {
  constexpr int32_t kMost =
      1024;  // far beyond, threads take minutes to start and nothing else runs
  check_argument(num_threads >= 0 && num_threads <= kMost, "--threads must be in 0 ... {}, is {}",
                 kMost, num_threads);
}

Device parse_device(const std::string& name) {
  if (name == "cpu") return {};
  int32_t index = 0;
  const bool has_index = name.starts_with("cuda:");
  const char* end = name.data() + name.size();
  const bool is_number = has_index && std::from_chars(name.data() + 5, end, index).ptr == end &&
                         name.size() > 5 && index >= 0;
  check_argument(name == "cuda" || is_number, "--device must be cpu, cuda or cuda:N, not \"{}\"",
                 name);
  return {DeviceType::kCuda, index};
}

std::shared_ptr<const Model> load_model(const ModelArguments& arguments) {
  check_model_options(arguments);
  ModelOptions options;
  options.compute = parse_compute_type(arguments.dtype);
  options.f8_weights = arguments.f8_weights;
  options.device = parse_device(arguments.device);
  options.num_threads = arguments.num_threads;
  ProgressBar bar;
  options.progress = [&bar](double share) {
    if (interrupted()) {
      throw Interrupted(fmt::format("had loaded {:.0f} % of the model", share * 100));
    }
    bar.update("loading the model", static_cast<int64_t>(share * 1000), 1000);
  };
  return arguments.synthetic.empty() ? Model::load(arguments.path, options)
                                     : Model::synthetic(arguments.synthetic, 0, options);
}

Conditions model_conditions(const Model& model, const CLI::App& command) {
  const std::string dtype(dtype_name(model.compute_dtype()));
  Conditions conditions;
  conditions.model = model.path();
  conditions.hardware = hardware_text(model.context());
  conditions.weights_dtype = dtype_name(model.weight_dtype());
  const CLI::Option* kv_dtype = command.get_option_no_throw("--kv-cache-dtype");
  const std::string codes =
      kv_dtype != nullptr && kv_dtype->count() > 0 ? kv_dtype->as<std::string>() : "auto";
  conditions.attention_dtype = codes == "f8" ? "f8e4m3" : dtype;
  conditions.kv_dtype = codes == "i8" ? "i8" : conditions.attention_dtype;
  conditions.concurrency = "1, one request at a time";
  conditions.engine = "fovea " + version_text();
  conditions.flags = given_options(command);
  conditions.prefix_caching = "off";
  return conditions;
}

}  // namespace fovea::cli
