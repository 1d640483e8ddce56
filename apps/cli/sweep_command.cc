#include "apps/cli/sweep_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "apps/cli/attention_options.h"
#include "apps/cli/conditions.h"
#include "apps/cli/fit_text.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/sweep_engine.h"
#include "apps/cli/sweep_server.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

constexpr const char* kServerGroup = "A server instead of our engine";

struct SweepOptions {
  ModelArguments model;
  ServerOptions server;
  std::string lengths = "256..4K";
  std::string attention = "dense,witness";
  AttentionOptions knobs;
  SweepPlan plan;
  std::optional<int64_t> seed;
  FitQuestion fit;
  bool json = false;
  std::string output, csv, report;

  bool on_server() const { return !server.url.empty(); }
};

/// What a sweep ends with; `error` when it did not come to its end.
struct Outcome {
  SweepRecord record;
  Conditions conditions;
  nlohmann::json machine;  // that the requests were sent from, or ran on
  std::vector<std::string> notes;
  std::optional<int64_t> kv_bytes;
  std::exception_ptr error;
};

/// Runs `sweep`; what ends it early is kept for after the reports.
template <typename Sweep>
void run_to_the_end(Outcome* outcome, const Sweep& sweep) {
  ProgressBar bar;
  try {
    sweep([&](const std::string& what, double share) {
      bar.update(what, static_cast<int64_t>(share * 1000), 1000);
    });
  } catch (const Cancelled&) {
    outcome->error = std::make_exception_ptr(
        Interrupted(fmt::format("{} requests were measured", outcome->record.num_samples())));
  } catch (const Error&) {
    outcome->error = std::current_exception();
  }
}

Outcome run_engine(const SweepOptions& options, const CLI::App& command) {
  const std::vector<std::string> names = parse_attention_list(options.attention);
  std::vector<AttentionSettings> attentions;
  for (const std::string& name : names) {
    attentions.push_back(attention_settings(name, options.knobs));
  }
  const auto model = load_model(options.model);
  Outcome outcome;
  outcome.conditions = model_conditions(*model, command);
  outcome.machine = machine_json(model->context());
  outcome.kv_bytes = growing_kv_bytes_per_token(*model, attentions.front());
  if (std::any_of(attentions.begin(), attentions.end(),
                  [](const AttentionSettings& one) { return one.selector.has_value(); })) {
    outcome.notes.emplace_back(
        "prompts are random tokens: a selector keeps another share of them than of text (fovea "
        "bench measures on text)");
  }
  run_to_the_end(&outcome, [&](const SweepProgress& progress) {
    sweep_engine(model, options.plan, names, attentions, &interrupt_flag(), progress,
                 &outcome.record);
  });
  return outcome;
}

// What the answers said of the server's prefix cache.
std::string prefix_caching_text(const SweepRecord& record) {
  int64_t prompt_tokens = 0, cached_tokens = 0, num_told = 0;
  for (const SweepRow& row : record.rows()) {
    for (const SweepSample& sample : row.samples) {
      if (!sample.cached_tokens) continue;
      ++num_told;
      prompt_tokens += sample.prompt_tokens;
      cached_tokens += *sample.cached_tokens;
    }
  }
  if (num_told == 0) return "";
  return fmt::format("hit rate {:.1f} % of the prompts' tokens",
                     100 * static_cast<double>(cached_tokens) /
                         static_cast<double>(std::max<int64_t>(prompt_tokens, 1)));
}

Outcome run_server(const SweepOptions& options, const CLI::App& command) {
  ServerOptions server = options.server;
  server.model = options.model.path;
  CompletionClient client(server, &interrupt_flag());
  Outcome outcome;
  outcome.machine = machine_json({});
  run_to_the_end(&outcome, [&](const SweepProgress& progress) {
    outcome.conditions.model = client.model();
    sweep_server(client, options.plan, progress, &outcome.record);
  });
  outcome.conditions.concurrency = "1, one request at a time";
  outcome.conditions.flags = given_options(command);
  outcome.conditions.prefix_caching = prefix_caching_text(outcome.record);
  outcome.notes = client.notes();
  return outcome;
}

/// The sweeps that have lengths enough for a fit; the others are noted.
worth::SweepTable fittable(const worth::SweepTable& table, std::vector<std::string>* notes) {
  worth::SweepTable kept = table;
  const auto drop_short = [&](std::vector<worth::Sweep>& sweeps, size_t least, const char* what) {
    std::erase_if(sweeps, [&](const worth::Sweep& sweep) {
      if (sweep.tokens.size() >= least) return false;
      notes->push_back(fmt::format("{}: no fit of {} from {} lengths, it needs {}", sweep.backend,
                                   what, sweep.tokens.size(), least));
      return true;
    });
  };
  drop_short(kept.prefill, 3, "ttft");
  drop_short(kept.decode, 2, "itl");
  return kept;
}

SweepPlan make_plan(const SweepOptions& options) {
  SweepPlan plan = options.plan;
  plan.lengths = parse_tokens_list(options.lengths, "--lengths");
  std::sort(plan.lengths.begin(), plan.lengths.end());
  const auto twice = std::adjacent_find(plan.lengths.begin(), plan.lengths.end());
  check_argument(twice == plan.lengths.end(), "--lengths names {} twice",
                 twice == plan.lengths.end() ? 0 : *twice);
  constexpr int64_t kMost = 1'000'000;
  check_argument(plan.lengths.back() <= int64_t{1} << 30, "--lengths: {} tokens are too many",
                 plan.lengths.back());
  check_argument(plan.repetitions >= 1 && plan.repetitions <= kMost,
                 "--repetitions must be in 1 ... {}, is {}", kMost, plan.repetitions);
  check_argument(plan.warmups >= 0 && plan.warmups <= kMost, "--warmups must be in 0 ... {}, is {}",
                 kMost, plan.warmups);
  check_argument(plan.decode_tokens >= 0 && plan.decode_tokens <= kMost,
                 "--decode-tokens must be in 0 ... {}, is {}", kMost, plan.decode_tokens);
  check_argument(options.seed.value_or(0) >= 0, "--seed must not be negative, is {}",
                 options.seed.value_or(0));
  plan.seed = options.seed ? static_cast<uint64_t>(*options.seed) : std::random_device{}();
  return plan;
}

void check_options(const SweepOptions& options, const CLI::App& command) {
  const bool has_model = !options.model.path.empty() || !options.model.synthetic.empty();
  check_argument(options.on_server() || has_model,
                 "give --model FILE for our engine, or --url for a server");
  if (!options.on_server()) check_model_options(options.model);
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    const bool of_server = option->get_group() == kServerGroup;
    const bool of_engine = option->get_group() == "Selection" || name == "--attention" ||
                           name == "--dtype" || name == "--threads" || name == "--device" ||
                           name == "--f8-weights" || name == "--synthetic";
    check_argument(!of_server || options.on_server(), "{} is about a server: give --url", name);
    check_argument(!of_engine || !options.on_server(),
                   "{} is about our engine, --url about a server", name);
  }
  if (options.on_server()) check_server_options(options.server);
  check_fit_question(options.fit, "--share-lengths");
}

void sweep(SweepOptions options, const CLI::App& command) {
  check_options(options, command);
  options.plan = make_plan(options);
  std::optional<OutputFile> output, csv, page;
  if (!options.output.empty()) output.emplace(options.output);
  if (!options.csv.empty()) csv.emplace(options.csv);
  if (!options.report.empty()) page.emplace(options.report);

  Outcome outcome =
      options.on_server() ? run_server(options, command) : run_engine(options, command);
  if (outcome.record.num_samples() == 0) std::rethrow_exception(outcome.error);

  Conditions& conditions = outcome.conditions;
  conditions.prompt_length = options.lengths + " tokens";
  conditions.answer_length =
      fmt::format("1 token for ttft; itl over {}", options.plan.decode_tokens);
  conditions.tokens_counted = "prompt for ttft, output for itl";
  if (!options.fit.kv_bytes && outcome.kv_bytes) {
    options.fit.kv_bytes = static_cast<double>(*outcome.kv_bytes);
  }
  std::vector<std::string> notes = outcome.record.notes();
  notes.insert(notes.end(), outcome.notes.begin(), outcome.notes.end());
  const worth::SweepTable table = outcome.record.table();
  const worth::SweepTable fitted = fittable(table, &notes);
  const Fits fits = fit_all(fitted);

  nlohmann::json json;
  if (options.on_server()) {
    json["url"] = options.server.url;
    json["client"] = outcome.machine;
  } else {
    json = outcome.machine;
  }
  json["command"] = "sweep";
  json["conditions"] = to_json(conditions);
  json["finished"] = outcome.error == nullptr;
  json["seed"] = options.plan.seed;
  json["repetitions"] = options.plan.repetitions;
  json["warmups"] = options.plan.warmups;
  json["decode_tokens"] = options.plan.decode_tokens;
  json["rows"] = outcome.record.to_json();
  json["fits"] = fits_json(fits, options.fit);
  json["notes"] = notes;
  if (output) output->write(json_text(json) + "\n");
  if (csv) csv->write(worth::write_sweep_table(table));
  if (page) page->write(sweep_page(table, fits, notes, condition_entries(conditions)));
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else {
    fmt::print("{}\n{}\n", outcome.record.to_text(), fit_tables(fitted, fits, options.fit));
    for (const std::string& note : notes) fmt::print("note: {}\n", note);
    fmt::print("{}\n", to_line(conditions));
  }
  if (outcome.error) std::rethrow_exception(outcome.error);
}

}  // namespace

void add_sweep_command(CLI::App& app) {
  const auto options = std::make_shared<SweepOptions>();
  CLI::App* command = app.add_subcommand(
      "sweep", "Time ttft and itl against length, with fits; ours or a server's");
  add_model_options(*command, options->model);
  command->get_option("--model")->description(
      "A .gguf file, a .safetensors file beside its config.json, or their folder; with --url the "
      "server's name for its model");
  SweepPlan& plan = options->plan;
  command
      ->add_option("--lengths", options->lengths,
                   "Prompt lengths in tokens; A..B doubles from A to B")
      ->capture_default_str()
      ->type_name("N,N,...");
  command->add_option("--attention", options->attention, "Any of " + attention_names())
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  command
      ->add_option("--repetitions", plan.repetitions,
                   "Timed prompts per length and attention, each of them new")
      ->capture_default_str();
  command->add_option("--warmups", plan.warmups, "Untimed prompts before them")
      ->capture_default_str();
  command
      ->add_option("--decode-tokens", plan.decode_tokens,
                   "Tokens after an answer's first, for itl; 0 measures prefill only")
      ->capture_default_str();
  command->add_option("--seed", options->seed,
                      "Of the random prompts; a server may remember those of an earlier sweep");
  add_fit_options(*command, options->fit, "--share-lengths");
  command->add_option("--csv", options->csv, "Write medians as a table that fovea fit reads")
      ->type_name("OUT");
  command->add_option("--report", options->report, "Write an HTML page with charts")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("OUT");
  ServerOptions& server = options->server;
  command
      ->add_option("--url", server.url,
                   "An OpenAI-compatible server, such as http://localhost:8000")
      ->group(kServerGroup)
      ->type_name("URL");
  command
      ->add_option("--api-key-env", server.api_key_env,
                   "Environment variable that holds the server's key")
      ->group(kServerGroup)
      ->type_name("VAR");
  command->add_flag("--chat", server.chat, "Ask /v1/chat/completions, not /v1/completions")
      ->group(kServerGroup);
  command->add_option("--timeout", server.timeout_s, "Seconds without a byte that end the sweep")
      ->capture_default_str()
      ->group(kServerGroup);
  add_attention_options(*command, options->knobs);
  command->footer(
      "Examples:\n"
      "  fovea sweep -m model.gguf --lengths 256..8K --attention dense,rescue,witness\n"
      "  fovea sweep -m model.gguf --csv sweep.csv --report sweep.html\n"
      "  fovea sweep --url http://localhost:8000 --lengths 256..32K --kv-bytes 57344 --copy-gbps "
      "4200\n"
      "  fovea sweep --url https://host/api --model NAME --chat --api-key-env API_KEY");
  command->callback([options, command] { sweep(*options, *command); });
}

}  // namespace fovea::cli
