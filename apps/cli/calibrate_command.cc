#include "apps/cli/calibrate_command.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "apps/cli/attention_options.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_json.h"
#include "apps/cli/settings_file.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/quality/calibrate.h"
#include "fovea/quality/layer_losses.h"
#include "fovea/quality/match_density.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using quality::AttentionLoss;
using quality::LayerLosses;
using quality::LossKind;
using quality::LossMeter;

// From the cheapest to the dearest; between neighbours the cost grows by a third or so.
constexpr std::array<double, 15> kDensities = {0.01, 0.015, 0.02, 0.03, 0.04, 0.0534, 0.07, 0.1,
                                               0.14, 0.2,   0.28, 0.4,  0.56, 0.75,   1};
constexpr std::array<double, 14> kAlphas = {0.9,  0.7,  0.5,  0.35, 0.22, 0.15,  0.1,
                                            0.07, 0.05, 0.03, 0.02, 0.01, 0.003, 0.001};

struct CalibrateOptions {
  ModelArguments model;
  std::vector<std::string> files;
  std::vector<std::string> held_out;
  std::string attention = "witness";
  AttentionOptions knobs;
  double max_loss = 0;
  bool certain = false;
  std::string loss = "agreement";
  std::string by = "density";
  bool per_layer = false;
  std::string length = "8K";
  int64_t num_windows = 2;
  std::vector<std::string> also_lengths;
  std::vector<std::string> also_models;
  bool json = false;
  std::string output;
};

// What was measured with one value of what is looked for.
struct Point {
  double value = 0;
  AttentionSettings settings;
  AttentionLoss loss;
};

// The picked settings elsewhere.
struct Transfer {
  std::string where;
  AttentionLoss loss;
};

struct Calibration {
  LossKind kind;
  std::optional<LayerLosses> layers;  // with --per-layer
  std::vector<Point> points;          // in the order of the grid
  std::optional<size_t> picked;       // of points
  std::vector<Transfer> transfers;
  double forced_density = 0;  // what forced blocks alone keep at the length
};

PrefillOptions with_progress(ProgressBar& bar, const std::string& label) {
  PrefillOptions options;
  options.cancel = &interrupt_flag();
  options.progress = [&bar, label](double share) {
    bar.update(label, static_cast<int64_t>(share * 1000), 1000);
  };
  return options;
}

// Texts to calibrate on and texts held out, as they are in the files.
struct Texts {
  std::vector<std::string> calibration, held_out;
};

Texts read_texts(const CalibrateOptions& options) {
  Texts texts;
  for (const std::string& file : options.files) texts.calibration.push_back(read_utf8_text(file));
  for (const std::string& file : options.held_out) texts.held_out.push_back(read_utf8_text(file));
  if (!texts.held_out.empty()) return texts;
  for (std::string& text : texts.calibration) {  // the second half of each
    size_t half = text.size() / 2;
    while (half < text.size() && (static_cast<unsigned char>(text[half]) & 0xc0u) == 0x80u) ++half;
    texts.held_out.push_back(text.substr(half));
    text.resize(half);
  }
  return texts;
}

std::vector<std::vector<int32_t>> windows_of(const Model& model,
                                             const std::vector<std::string>& texts, int64_t length,
                                             int64_t num_windows) {
  check_argument(length <= model.config().context_length,
                 "a length of {} is past the context of {}, which is {}", length, model.path(),
                 model.config().context_length);
  std::vector<std::vector<int32_t>> windows;
  for (const std::string& text : texts) {
    const std::vector<int32_t> tokens = model.tokenizer().encode(text, {.add_bos = false});
    for (auto& window : quality::text_windows(tokens, length, num_windows, model.config().bos_id)) {
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

// What --max-loss is held against.
double judged_loss(const AttentionLoss& loss, LossKind kind, const CalibrateOptions& options) {
  return options.certain ? loss.interval(kind).high : loss.value(kind);
}

bool by_density(const CalibrateOptions& options) { return options.by == "density"; }

AttentionSettings settings_with(const CalibrateOptions& options, double value) {
  AttentionOptions knobs = options.knobs;
  if (by_density(options)) {
    knobs.density = static_cast<float>(value);
  } else {  // both thresholds of rescue, in the proportion that the user or the paper gave
    const float share = knobs.selector.alpha_rescue / knobs.selector.alpha_base;
    knobs.density = 0;
    knobs.selector.alpha_base = static_cast<float>(value);
    knobs.selector.alpha_rescue = std::min(1.0f, static_cast<float>(value) * share);
  }
  return attention_settings(options.attention, knobs);
}

// With --per-layer, `value` spread over the layers by what each of them loses.
AttentionSettings spread_settings(const CalibrateOptions& options, const Calibration& calibration,
                                  double value) {
  AttentionSettings settings = settings_with(options, value);
  if (!calibration.layers) return settings;
  const double least = calibration.layers->densities.front();
  settings.layer_budgets = quality::spread_density(*calibration.layers, std::max(value, least));
  return settings;
}

// Densities at which layers are measured: four, in equal steps of the logarithm.
std::vector<double> layer_densities(const SelectorSettings& selector, int64_t length) {
  constexpr double kLeast = 0.01, kMost = 0.4;
  constexpr int kSteps = 3;
  const double least = std::clamp(quality::forced_density(selector, length), kLeast, kMost / 2);
  std::vector<double> densities;
  for (int step = 0; step <= kSteps; ++step) {
    densities.push_back(least * std::pow(kMost / least, static_cast<double>(step) / kSteps));
  }
  return densities;
}

// Densities under what forced blocks keep at this length would all measure the same, and carry what
// nobody measured to longer prompts: of those the largest stands for all.
std::span<const double> grid_of(const CalibrateOptions& options, double forced_density) {
  if (!by_density(options)) return kAlphas;
  const auto above = std::upper_bound(kDensities.begin(), kDensities.end() - 1, forced_density);
  return {above == kDensities.begin() ? above : above - 1, kDensities.end()};
}

void search(const CalibrateOptions& options, const LossMeter& meter, Calibration& calibration) {
  const std::span<const double> grid = grid_of(options, calibration.forced_density);
  ProgressBar bar;
  const auto found = quality::first_good(grid.size(), [&](size_t index) {
    const std::string label =
        fmt::format("{} with {} {}", options.attention, options.by, grid[index]);
    AttentionSettings settings = spread_settings(options, calibration, grid[index]);
    AttentionLoss loss = meter.measure(settings, with_progress(bar, label));
    calibration.points.push_back({grid[index], std::move(settings), std::move(loss)});
    return judged_loss(calibration.points.back().loss, calibration.kind, options) <=
           options.max_loss;
  });
  const auto place = [&](const Point& point) {
    return std::find(grid.begin(), grid.end(), point.value) - grid.begin();
  };
  std::sort(calibration.points.begin(), calibration.points.end(),
            [&](const Point& a, const Point& b) { return place(a) < place(b); });
  for (size_t i = 0; found && i < calibration.points.size(); ++i) {
    if (calibration.points[i].value == grid[*found]) calibration.picked = i;
  }
}

Transfer transfer(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                  const Texts& texts, int64_t length, const AttentionSettings& settings,
                  const std::string& where) {
  ProgressBar bar;
  const LossMeter meter(model, windows_of(*model, texts.held_out, length, options.num_windows),
                        with_progress(bar, "dense, " + where));
  return {where, meter.measure(settings, with_progress(bar, options.attention + ", " + where))};
}

Calibration calibrate(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                      const Texts& texts, int64_t length,
                      const std::vector<int64_t>& also_lengths) {
  Calibration calibration;
  calibration.kind = quality::parse_loss_kind(options.loss);
  {
    ProgressBar bar;
    const LossMeter meter(model, windows_of(*model, texts.calibration, length, options.num_windows),
                          with_progress(bar, "reading the texts densely"));
    if (options.per_layer) {
      const AttentionSettings settings = settings_with(options, kDensities.back());
      calibration.layers = quality::measure_layers(meter, model->config(), settings,
                                                   layer_densities(*settings.selector, length),
                                                   with_progress(bar, "one layer sparse"));
    }
    calibration.forced_density =
        quality::forced_density(*settings_with(options, kDensities.back()).selector, length);
    search(options, meter, calibration);
  }
  if (!calibration.picked) return calibration;
  const Point& picked = calibration.points[*calibration.picked];
  const auto add = [&](const std::shared_ptr<const Model>& on, int64_t at,
                       const std::string& where) {
    calibration.transfers.push_back(transfer(on, options, texts, at, picked.settings, where));
  };
  add(model, length, "held-out text");
  if (options.per_layer) {
    calibration.transfers.push_back(transfer(model, options, texts, length,
                                             settings_with(options, picked.value),
                                             "held-out text, all layers alike"));
  }
  for (const int64_t also : also_lengths) {
    add(model, also, fmt::format("held-out text, {} tokens", also));
  }
  for (const std::string& path : options.also_models) {
    ModelArguments arguments = options.model;
    arguments.synthetic.clear();
    arguments.path = path;
    add(load_model(arguments), length, fmt::format("held-out text, {}", path));
  }
  return calibration;
}

std::vector<std::string> loss_cells(const AttentionLoss& loss, LossKind kind) {
  const quality::Interval interval = loss.interval(kind);
  const auto text = [&](double value) {
    return kind == LossKind::kAgreement ? format_percent(value) : fmt::format("{:.4f}", value);
  };
  return {
      format_percent(loss.density),
      fmt::format("{} ({} to {})", text(loss.value(kind)), text(interval.low), text(interval.high)),
      format_percent(loss.agreement.agreement), fmt::format("{:.4f}", loss.agreement.nll_increase),
      format_seconds(loss.prefill_ms / 1e3)};
}

void print(const Calibration& calibration, const CalibrateOptions& options) {
  const auto add_row = [&](Table& table, std::string name, const AttentionLoss& loss,
                           const std::string& note) {
    std::vector<std::string> cells = loss_cells(loss, calibration.kind);
    cells.insert(cells.begin(), std::move(name));
    cells.push_back(note);
    table.add_row(cells);
  };
  const auto within = [&](const AttentionLoss& loss) {
    return judged_loss(loss, calibration.kind, options) <= options.max_loss;
  };
  Table table({options.by, "kept", "loss (95 %)", "agreement", "nll increase", "prefill", ""});
  for (size_t i = 0; i < calibration.points.size(); ++i) {
    const Point& point = calibration.points[i];
    add_row(table, fmt::format("{:g}", point.value), point.loss,
            calibration.picked == i ? "picked"
            : within(point.loss)    ? ""
                                    : "loses more");
  }
  fmt::print("{}", table.to_string());
  if (by_density(options) && calibration.forced_density > kDensities[1]) {
    fmt::print(
        "\nnote: forced blocks alone keep {} at this length, so lower densities were not told "
        "apart; a greater --length can\n",
        format_percent(calibration.forced_density));
  }
  if (calibration.picked && options.per_layer) {
    const std::vector<float>& budgets =
        calibration.points[*calibration.picked].settings.layer_budgets;
    fmt::print("\ndensity of each layer over the picked one: {:.2g}\n", fmt::join(budgets, " "));
  }
  if (calibration.transfers.empty()) return;
  Table elsewhere(
      {"the picked one on", "kept", "loss (95 %)", "agreement", "nll increase", "prefill", ""});
  for (const Transfer& there : calibration.transfers) {
    add_row(elsewhere, there.where, there.loss, within(there.loss) ? "" : "loses more");
  }
  fmt::print("\n{}", elsewhere.to_string());
}

nlohmann::json to_json(const AttentionLoss& loss, LossKind kind) {
  const quality::Interval interval = loss.interval(kind);
  return {{"density", loss.density},
          {"loss", loss.value(kind)},
          {"loss_low", interval.low},
          {"loss_high", interval.high},
          {"agreement", loss.agreement.agreement},
          {"nll_increase", loss.agreement.nll_increase},
          {"dense_nll", loss.agreement.nll},
          {"num_positions", loss.agreement.num_positions},
          {"prefill_ms", loss.prefill_ms}};
}

nlohmann::json to_json(const Calibration& calibration, const CalibrateOptions& options) {
  nlohmann::json points = nlohmann::json::array();
  for (const Point& point : calibration.points) {
    points.push_back(to_json(point.loss, calibration.kind));
    points.back()["value"] = point.value;
  }
  nlohmann::json transfers = nlohmann::json::array();
  for (const Transfer& there : calibration.transfers) {
    transfers.push_back(to_json(there.loss, calibration.kind));
    transfers.back()["where"] = there.where;
  }
  nlohmann::json layers;  // null unless --per-layer
  if (calibration.layers) {
    layers = {{"densities", calibration.layers->densities},
              {"squared_change", calibration.layers->loss}};
  }
  return {{"by", options.by},
          {"loss_kind", quality::loss_kind_name(calibration.kind)},
          {"max_loss", options.max_loss},
          {"certain", options.certain},
          {"forced_density", calibration.forced_density},
          {"points", points},
          {"transfers", transfers},
          {"layers", layers}};
}

// Every knob as it was measured, so that a later change of a default changes nothing.
nlohmann::json picked_settings(const CLI::App& command, const CalibrateOptions& options,
                               const Point& picked) {
  nlohmann::json settings = selection_settings(command);
  settings["density"] = by_density(options) ? picked.value : 0;
  if (!by_density(options)) {
    settings["alpha_base"] = picked.value;
    settings["alpha_rescue"] = picked.settings.selector->alpha_rescue;
  }
  if (options.per_layer) {
    settings["layer_budgets"] =
        fmt::format("{:.4g}", fmt::join(picked.settings.layer_budgets, ","));
  }
  return settings;
}

void check(const CalibrateOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  check_argument(options.attention != "dense", "--attention dense loses nothing: name a selector");
  parse_attention_list(options.attention);
  check_argument(options.by == "density" || options.by == "alpha",
                 "--by must be density or alpha, not \"{}\"", options.by);
  check_argument(!options.per_layer || by_density(options),
                 "--per-layer spreads a density over the layers: it needs --by density");
  check_argument(!options.per_layer || command.count("--layer-budgets") == 0,
                 "--layer-budgets are what --per-layer looks for: leave them out");
  check_argument(!options.per_layer || options.also_models.empty(),
                 "--per-layer is for the layers of one model: leave out --also-model");
  quality::parse_loss_kind(options.loss);
  check_argument(options.max_loss >= 0, "--max-loss must not be negative, is {}", options.max_loss);
  check_argument(options.num_windows > 0 && options.num_windows <= 1000,
                 "--windows must be in 1 ... 1000, is {}", options.num_windows);
  check_argument(command.count("--density") == 0 || !by_density(options),
                 "--density is what --by density looks for: leave it out");
  check_argument(options.knobs.selector.alpha_base > 0, "--alpha-base must be positive, is {}",
                 options.knobs.selector.alpha_base);
  settings_with(options, grid_of(options, 0).back());  // refuses what is wrong with the knobs
}

void run(const CalibrateOptions& options, const CLI::App& command) {
  check(options, command);
  const int64_t length = parse_tokens(options.length, "--length");
  std::vector<int64_t> also_lengths;
  for (const std::string& text : options.also_lengths) {
    also_lengths.push_back(parse_tokens(text, "--also-length"));
  }
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  const Texts texts = read_texts(options);
  const auto model = load_model(options.model);
  Calibration calibration;
  try {
    calibration = calibrate(model, options, texts, length, also_lengths);
  } catch (const Cancelled&) {
    throw Interrupted("nothing was picked, no settings are written");
  }

  Conditions conditions = model_conditions(*model, command);
  conditions.prompt_length = fmt::format("{} tokens", length);
  conditions.answer_length = "none: agreement with dense attention at the second half of each text";
  conditions.tokens_counted = "text, for the prefill's time";
  nlohmann::json json = machine_json(model->context());
  json["command"] = "calibrate";
  json["conditions"] = fovea::cli::to_json(conditions);
  json["calibration"] = to_json(calibration, options);
  json["attention"] = options.attention;
  json["settings"] = nullptr;
  if (calibration.picked) {
    json["settings"] = picked_settings(command, options, calibration.points[*calibration.picked]);
    if (output) {
      nlohmann::json source = json["calibration"];
      for (const char* key : {"version", "commit", "conditions"}) source[key] = json.at(key);
      output->write(settings_file_text(options.attention, json["settings"], source));
    }
  }
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else {
    print(calibration, options);
    fmt::print("{}\n", to_line(conditions));
  }
  if (!calibration.picked) {
    fail(ErrorCode::kInvalidArgument,
         "{} {} more than --max-loss {} at every {} tried, and {:.4g} at the best",
         options.attention, options.certain ? "may lose" : "loses", options.max_loss, options.by,
         judged_loss(calibration.points.back().loss, calibration.kind, options));
  }
  if (output && !options.json) {
    fmt::print("settings written: give --settings {} to run, bench, eval or needle\n",
               options.output);
  }
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  const auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Find the lowest density that loses no more than it may, for one model");
  add_model_options(*command, options->model);
  command
      ->add_option("-f,--file", options->files,
                   "Text to calibrate on; again for more. Its second half is held out")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--held-out", options->held_out,
                   "Text to check the result on instead; all of -f is calibrated on then")
      ->type_name("FILE");
  command->add_option("--max-loss", options->max_loss, "Most that may be lost, see --loss")
      ->required();
  command->add_flag("--certain", options->certain,
                    "Hold --max-loss against the upper end of the loss's 95 % interval, not "
                    "against the loss that was measured");
  command
      ->add_option("--loss", options->loss,
                   "agreement: share of positions at which another token than dense attention's is "
                   "the first choice; nll: nats per token by which the text becomes less likely")
      ->capture_default_str()
      ->type_name("agreement|nll");
  command->add_option("--attention", options->attention, "The selector to calibrate")
      ->capture_default_str()
      ->type_name(attention_names());
  command
      ->add_option("--by", options->by,
                   "What is looked for: a density, or the threshold alpha (both thresholds of "
                   "rescue, in proportion)")
      ->capture_default_str()
      ->type_name("density|alpha");
  command->add_flag("--per-layer", options->per_layer,
                    "Spread each density over the layers by what each of them loses on its own: "
                    "four more readings of the texts for each layer");
  command->add_option("--length", options->length, "Tokens of a piece of text")
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--windows", options->num_windows, "Pieces of each text, spread evenly over it")
      ->capture_default_str();
  command
      ->add_option("--also-length", options->also_lengths,
                   "Check the result at this length as well; again for more")
      ->type_name("N");
  command
      ->add_option("--also-model", options->also_models,
                   "Check the result on this model as well; again for more")
      ->type_name("PATH");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("-o,--output", options->output, "Write the settings for --settings to read")
      ->type_name("OUT");
  options->knobs.min_sparse_len = 0;  // what would be read densely says nothing about the selector
  add_attention_options(*command, options->knobs);
  command->footer(
      "Each text is read densely once, then by bisection over a grid of densities (or alphas). "
      "Only\n"
      "the second half of each piece counts. The result is a point estimate unless --certain is "
      "given:\n"
      "look at its interval, and at what it loses on held-out text, other lengths and other "
      "models.\n"
      "Examples:\n"
      "  fovea calibrate -m models/needle_7m -f build/long_text.txt --max-loss 0.02 -o "
      "settings.json\n"
      "  fovea run -m models/needle_7m -f build/long_text.txt --length 32K --settings "
      "settings.json\n"
      "  fovea calibrate -m model.gguf -f a.txt -f b.txt --held-out c.txt --attention rescue \\\n"
      "      --by alpha --loss nll --max-loss 0.01 --also-length 16K --also-model other.gguf\n"
      "  fovea calibrate -m model.gguf -f a.txt --per-layer --max-loss 0.1 -o settings.json");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace fovea::cli
