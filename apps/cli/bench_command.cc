#include "apps/cli/bench_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/cli/attention_options.h"
#include "apps/cli/bench.h"
#include "apps/cli/chain.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

struct BenchOptions {
  ModelArguments model;
  std::string file;
  std::string lengths = "1K,2K,4K";
  std::string attention = "dense,witness";
  AttentionOptions knobs;
  BenchPlan plan;
  bool chain = false;
  std::vector<double> rival_layer_ms;
  bool json = false;
  std::string output;
};

using PhaseMember = double PhaseTimes::*;

std::vector<double> phase_samples(const BenchRow& row, PhaseMember member) {
  std::vector<double> samples;
  for (const PrefillReport& report : row.reports) samples.push_back(report.times.*member);
  return samples;
}

nlohmann::json agreement_json(const std::optional<Agreement>& agreement) {
  if (!agreement) return nullptr;
  return {{"num_rows", agreement->num_rows},
          {"top1_share", agreement->top1_share},
          {"mean_kl", agreement->mean_kl}};
}

nlohmann::json row_json(const BenchRow& row, int64_t num_q_heads) {
  return {{"length", row.length},
          {"attention", row.attention},
          {"ttft_ms", summary_json(row.ttft_ms)},
          {"attention_ms", summary_json(phase_samples(row, &PhaseTimes::attention_ms))},
          {"selection_ms", summary_json(phase_samples(row, &PhaseTimes::selection_ms))},
          {"matmul_ms", summary_json(phase_samples(row, &PhaseTimes::matmul_ms))},
          {"other_ms", summary_json(phase_samples(row, &PhaseTimes::other_ms))},
          {"speedup", summary_json(row.speedup)},
          {"density", summary_json(row.density)},
          {"itl_ms", summary_json(row.itl_ms)},
          {"decode_density", row.decode_density},
          {"agreement", agreement_json(row.agreement)},
          {"decode_agreement", agreement_json(row.decode_agreement)},
          {"peak_memory_bytes", row.peak_memory_bytes},
          {"prefill", to_json(row.reports.back(), num_q_heads, row.reports.back().sparse)}};
}

std::string median_ms(const std::vector<double>& samples) {
  return samples.empty() ? "-" : format_seconds(median(samples) / 1e3);
}

std::string spread_ms(const std::vector<double>& samples) {
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  return format_seconds(*low / 1e3) + " - " + format_seconds(*high / 1e3);
}

void print_rows(const std::vector<BenchRow>& rows, int64_t repetitions) {
  Table times({"length", "attention", "ttft", "min - max", "attention", "selection", "matmul",
               "other", "speed-up"});
  Table costs({"length", "attention", "density", "top-1", "mean KL", "itl", "itl density",
               "itl top-1", "kv", "statistics", "scratch", "peak memory"});
  std::set<std::string> notes;
  for (const BenchRow& row : rows) {
    const std::string length = fmt::format("{}", row.length);
    const PrefillReport& report = row.reports.back();
    times.add_row({length, row.attention, median_ms(row.ttft_ms), spread_ms(row.ttft_ms),
                   median_ms(phase_samples(row, &PhaseTimes::attention_ms)),
                   median_ms(phase_samples(row, &PhaseTimes::selection_ms)),
                   median_ms(phase_samples(row, &PhaseTimes::matmul_ms)),
                   median_ms(phase_samples(row, &PhaseTimes::other_ms)),
                   row.speedup.empty() ? "-" : fmt::format("{:.2f}x", median(row.speedup))});
    costs.add_row({length, row.attention, format_percent(median(row.density)),
                   row.agreement ? format_percent(row.agreement->top1_share) : "-",
                   row.agreement ? fmt::format("{:.4f}", row.agreement->mean_kl) : "-",
                   median_ms(row.itl_ms), format_percent(row.decode_density),
                   row.decode_agreement ? format_percent(row.decode_agreement->top1_share) : "-",
                   format_bytes(static_cast<double>(report.kv_bytes)),
                   format_bytes(static_cast<double>(report.stats_bytes)),
                   format_bytes(static_cast<double>(report.selection_scratch_bytes)),
                   format_bytes(static_cast<double>(row.peak_memory_bytes))});
    if (!report.note.empty()) notes.insert(fmt::format("{}: {}", row.attention, report.note));
  }
  fmt::print("{}\n{}", times.to_string(), costs.to_string());
  const auto agreement = std::find_if(
      rows.begin(), rows.end(), [](const BenchRow& row) { return row.agreement.has_value(); });
  fmt::print("\nMedians of {} repetitions, each on a fresh prompt; rivals in turn.", repetitions);
  if (agreement != rows.end()) {
    fmt::print(
        " Top-1 and KL: against dense, over the last {} positions of one prompt; itl top-1: over "
        "the "
        "tokens behind it, as dense chose them.",
        agreement->agreement->num_rows);
  }
  fmt::print("\n");
  for (const std::string& note : notes) fmt::print("{}\n", note);
}

BenchPlan make_plan(const BenchOptions& options, const CLI::App& command) {
  BenchPlan plan = options.plan;
  check_argument(plan.repetitions > 0, "--repetitions must be positive, is {}", plan.repetitions);
  check_argument(plan.agreement_rows > 0, "--agreement-rows must be positive, is {}",
                 plan.agreement_rows);
  check_argument(plan.decode_tokens >= 0, "--decode-tokens must not be negative, is {}",
                 plan.decode_tokens);
  check_argument(plan.chunk_size >= 0, "--chunk-size must not be negative, is {}", plan.chunk_size);
  plan.lengths = parse_tokens_list(options.lengths, "--lengths");
  plan.attention_names = parse_attention_list(options.attention);
  check_selection_options(command, plan.attention_names);
  for (const std::string& name : plan.attention_names) {
    plan.attentions.push_back(attention_settings(name, options.knobs));
  }
  const auto has_dense =
      std::find(plan.attention_names.begin(), plan.attention_names.end(), "dense");
  check_argument(!options.chain || has_dense != plan.attention_names.end(),
                 "--chain compares with dense: name it in --attention");
  check_argument(options.chain || options.rival_layer_ms.empty(), "--rival-layer-ms needs --chain");
  check_argument(
      options.rival_layer_ms.empty() || options.rival_layer_ms.size() == plan.lengths.size(),
      "--rival-layer-ms needs one number a length, {} for {}", options.rival_layer_ms.size(),
      plan.lengths.size());
  for (const double ms : options.rival_layer_ms) {
    check_argument(ms > 0, "--rival-layer-ms must be positive, is {}", ms);
  }
  return plan;
}

void bench(const BenchOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  const BenchPlan plan = make_plan(options, command);
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  const std::string text = read_utf8_text(options.file);

  const auto model = load_model(options.model);
  const std::vector<int32_t> tokens = model->tokenizer().encode(text, {.add_bos = false});
  std::vector<BenchRow> rows;
  ProgressBar bar;
  bool finished = false;
  try {
    run_bench(
        model, plan, tokens, &interrupt_flag(),
        [&](const std::string& what, double share) {
          bar.update(what, static_cast<int64_t>(share * 1000), 1000);
        },
        [&](const std::vector<BenchRow>& more) {
          rows.insert(rows.end(), more.begin(), more.end());
        });
    finished = true;
  } catch (const Cancelled&) {
  }
  std::vector<ChainRow> chain;
  if (options.chain && finished) {
    chain = chain_of(rows);
    bar.update("the kernels alone", 1000, 1000);
    time_kernels(*model, options.knobs.periphery, chain);
  }
  bar.clear();

  Conditions conditions = model_conditions(*model, command);
  conditions.prompt_length = options.lengths + " tokens";
  conditions.answer_length = "1 token for ttft; itl over " + std::to_string(plan.decode_tokens);
  conditions.tokens_counted = "prompt for ttft, output for itl";
  nlohmann::json json = machine_json(model->context());
  json["command"] = "bench";
  json["conditions"] = to_json(conditions);
  json["finished"] = finished;
  json["repetitions"] = plan.repetitions;
  json["text_hash"] = prompt_hash(tokens);
  json["text_tokens"] = tokens.size();
  json["weight_bytes"] = model->weight_bytes();
  for (size_t i = 0; i < plan.attentions.size(); ++i) {
    json["selectors"][plan.attention_names[i]] = to_json(plan.attentions[i]);
  }
  json["rows"] = nlohmann::json::array();
  for (const BenchRow& row : rows)
    json["rows"].push_back(row_json(row, model->config().num_q_heads));

  const int64_t num_layers = model->config().num_layers;
  if (options.chain) {
    json["chain"] = chain_json(chain, plan.lengths, options.rival_layer_ms, num_layers);
  }

  if (output && !rows.empty()) output->write(json_text(json) + "\n");
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else if (!rows.empty()) {
    print_rows(rows, plan.repetitions);
    if (!chain.empty()) {
      fmt::print("\n{}\n", chain_table(chain, plan.lengths, options.rival_layer_ms, num_layers));
    } else if (options.chain && finished) {
      fmt::print(
          "No chain: no prompt was read sparsely. Try longer ones, or --min-sparse-len 0.\n");
    }
    fmt::print("{}\n", to_line(conditions));
  }
  if (!finished) {
    throw Interrupted(fmt::format("{} of {} lengths were measured",
                                  rows.size() / plan.attentions.size(), plan.lengths.size()));
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand("bench", "Time prompts of several lengths, attention by attention");
  add_model_options(*command, options->model);
  command->add_option("-f,--file", options->file, "Text to cut prompts from; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--lengths", options->lengths, "Prompt lengths in tokens")
      ->capture_default_str()
      ->type_name("N,N,...");
  command->add_option("--attention", options->attention, "Any of " + attention_names())
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  BenchPlan& plan = options->plan;
  command->add_option("--repetitions", plan.repetitions, "Timed prompts per length and attention")
      ->capture_default_str();
  command
      ->add_option("--agreement-rows", plan.agreement_rows,
                   "Last positions of a prompt over which answers are compared with dense")
      ->capture_default_str();
  command
      ->add_option("--decode-tokens", plan.decode_tokens, "Tokens decoded behind a prompt, for itl")
      ->capture_default_str();
  command
      ->add_option("--chunk-size", plan.chunk_size,
                   "Tokens per prefill step; 0 is the engine's own")
      ->capture_default_str();
  command->add_flag("--chain", options->chain,
                    "Then time the attention kernels alone, and show how much of their win arrives "
                    "in the engine and in ttft");
  command
      ->add_option("--rival-layer-ms", options->rival_layer_ms,
                   "With --chain: what a rival's dense attention takes per layer at each length "
                   "(benchmarks/peers measures some), to see ttft against dense at its speed")
      ->delimiter(',')
      ->type_name("MS,MS,...");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("OUT");
  add_attention_options(*command, options->knobs);
  command->footer(
      "Examples:\n"
      "  fovea bench -m model.gguf -f book.txt --lengths 1K,2K,4K,8K --attention dense,rescue\n"
      "  fovea bench -m model.gguf -f book.txt --attention dense,rescue,witness --density 0.1\n"
      "  fovea bench -m model.gguf -f book.txt --lengths 8K --repetitions 5 -o result.json\n"
      "  fovea bench --synthetic Qwen3-30B-A3B --device cuda --f8-weights -f book.txt "
      "--lengths 32K,128K --density 0.0534 --chain");
  command->callback([options, command] { bench(*options, *command); });
}

}  // namespace fovea::cli
