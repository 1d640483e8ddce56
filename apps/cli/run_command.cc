#include "apps/cli/run_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/attention_options.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/prompt.h"
#include "apps/cli/report_json.h"
#include "apps/cli/step_trace.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/engine/generate.h"
#include "fovea/model_io/model_config.h"

namespace fovea::cli {
namespace {

struct RunOptions {
  ModelArguments model;
  PromptOptions prompt;
  std::string attention = "dense";
  AttentionOptions knobs;
  int64_t chunk_size = 0;
  int64_t max_new_tokens = 128;
  SamplingSettings sampling;
  bool ignore_eos = false;
  bool json = false;
  std::string output;
  std::string trace;
};

// All that can be wrong with options is found before the model is loaded.
void check_options(const RunOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  check_selection_options(command, {options.attention});
  attention_settings(options.attention, options.knobs);
  check_sampling_settings(options.sampling);
  check_argument(options.max_new_tokens > 0, "-n must be positive, is {}", options.max_new_tokens);
  check_argument(options.chunk_size >= 0, "--chunk-size must not be negative, is {}",
                 options.chunk_size);
  if (!options.prompt.length.empty()) parse_tokens(options.prompt.length, "--length");
  check_argument(options.trace != "-", "--trace needs a file: standard output holds the answer");
  if (!options.trace.empty()) OutputFile{options.trace};  // throws unless it can be written
}

GenerateResult answer(Session& session, const Prompt& prompt, const RunOptions& options,
                      bool stream) {
  ProgressBar bar;
  double share_read = 0;
  GenerateOptions generation;
  generation.max_new_tokens = options.max_new_tokens;
  generation.sampling = options.sampling;
  generation.stop_at_eos = !options.ignore_eos;
  generation.prefill.cancel = &interrupt_flag();
  generation.prefill.progress = [&](double share) {
    share_read = share;
    bar.update(fmt::format("reading {} tokens", prompt.tokens.size()),
               static_cast<int64_t>(share * 1000), 1000);
  };
  generation.on_text = [&](std::string_view text) {
    bar.clear();
    if (stream) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
      check_standard_output();
    }
    return true;
  };
  try {
    return generate(session, prompt.tokens, generation);
  } catch (const Cancelled&) {
    throw Interrupted(
        fmt::format("had read {:.0f} % of {} tokens", share_read * 100, prompt.tokens.size()));
  }
}

std::string cut_of(const Prompt& prompt) {
  return prompt.was_cut ? fmt::format(" (the end of the text's {})", prompt.text_tokens) : "";
}

std::string summary_line(const RunOptions& options, const Prompt& prompt,
                         const GenerateResult& result) {
  const auto tokens = static_cast<double>(result.prompt_tokens);
  std::string line =
      fmt::format("{} prompt tokens{}, ttft {} ({:.0f} tokens/s), {} density {}, {} tokens out",
                  result.prompt_tokens, cut_of(prompt), format_seconds(result.ttft_ms / 1e3),
                  tokens / (result.ttft_ms / 1e3), options.attention,
                  format_percent(result.prefill.density()), result.tokens.size());
  if (!result.itl_ms.empty())
    line += fmt::format(" at {:.1f} tokens/s", result.decode_tokens_per_s());
  if (result.decode_density < 1)
    line += fmt::format(", decode density {}", format_percent(result.decode_density));
  line += fmt::format(", stopped by {}", stop_reason_name(result.stop));
  return result.prefill.note.empty() ? line : line + "; " + result.prefill.note;
}

nlohmann::json run_json(const RunOptions& options, const Model& model, const Prompt& prompt,
                        const GenerateResult& result, const Conditions& conditions) {
  const ModelConfig& config = model.config();
  nlohmann::json json = machine_json(model.context());
  json["command"] = "run";
  json["conditions"] = to_json(conditions);
  json["attention"] = options.attention;
  json["selector"] = to_json(attention_settings(options.attention, options.knobs));
  json["chat"] = prompt.chat;
  json["prompt_cut"] = prompt.was_cut;
  json["text_tokens"] = prompt.text_tokens;
  json["prompt_hash"] = prompt_hash(prompt.tokens);
  json["prompt_tokens"] = result.prompt_tokens;
  json["output_tokens"] = result.tokens.size();
  json["text"] = result.text;
  json["tokens"] = result.tokens;
  json["stop"] = stop_reason_name(result.stop);
  json["ttft_ms"] = result.ttft_ms;
  json["itl_ms"] = summary_json(result.itl_ms);
  json["output_tokens_per_s"] = result.decode_tokens_per_s();
  json["density"] = result.prefill.density();
  json["decode_density"] = result.decode_density;
  json["prefill"] = to_json(result.prefill, config.num_q_heads, true);
  json["weight_bytes"] = model.weight_bytes();
  json["peak_memory_bytes"] = peak_memory_bytes();
  return json;
}

void run(const RunOptions& options, const CLI::App& command) {
  check_options(options, command);
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  const std::string text = prompt_text(options.prompt);

  const auto model = load_model(options.model);
  const Prompt prompt = make_prompt(*model, text, options.prompt);
  const auto prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  SessionOptions session_options;
  session_options.attention = attention_settings(options.attention, options.knobs);
  session_options.chunk_size = options.chunk_size;
  session_options.max_len =
      prompt_tokens +
      std::min(options.max_new_tokens, model->config().context_length - prompt_tokens);
  Conditions conditions = model_conditions(*model, command);
  std::optional<StepTrace> trace;
  if (!options.trace.empty()) {
    trace.emplace(options.trace,
                  fmt::format("fovea: {} on {}", conditions.model, conditions.hardware));
    session_options.observer = &*trace;
  }
  Session session(model, session_options);
  const GenerateResult result = answer(session, prompt, options, !options.json);

  conditions.prompt_length = fmt::format("{} tokens", result.prompt_tokens);
  conditions.answer_length = fmt::format("{} tokens", result.tokens.size());
  conditions.tokens_counted = "ttft: prompt; tokens/s out: output after the first";
  const nlohmann::json json = run_json(options, *model, prompt, result, conditions);
  if (output) output->write(json_text(json) + "\n");
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else {
    fmt::print("\n");
    std::fflush(stdout);
    print_aside(
        fmt::format("{}\n{}\n", summary_line(options, prompt, result), to_line(conditions)));
  }
  if (trace) trace->finish();
  if (result.stop == StopReason::kCancelled) {
    throw Interrupted(fmt::format("had read {} tokens and written {}", result.prompt_tokens,
                                  result.tokens.size()));
  }
}

void add_sampling_options(CLI::App& command, RunOptions& options) {
  constexpr const char* kGroup = "Answer";
  SamplingSettings& sampling = options.sampling;
  const auto add = [&](const char* name, auto& value, const char* description) {
    command.add_option(name, value, description)->capture_default_str()->group(kGroup);
  };
  add("-n,--max-new-tokens", options.max_new_tokens, "Most tokens of the answer");
  add("--temperature", sampling.temperature, "0 takes the most probable token (greedy)");
  add("--top-k", sampling.top_k, "Draw from the k most probable tokens; 0 is all");
  add("--top-p", sampling.top_p, "Draw from the smallest set that reaches this probability");
  add("--min-p", sampling.min_p, "Drop tokens under this share of the best one's probability");
  add("--seed", sampling.seed, "The same seed gives the same answer");
  command.add_flag("--ignore-eos", options.ignore_eos, "Go on after the end token")->group(kGroup);
}

}  // namespace

void add_run_command(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Read a prompt and answer it");
  add_model_options(*command, options->model);
  command->add_option("--attention", options->attention, "How the prompt is read")
      ->capture_default_str()
      ->type_name(attention_names());
  command
      ->add_option("--chunk-size", options->chunk_size,
                   "Tokens per prefill step; 0 is the engine's own")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of the text");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("OUT");
  command
      ->add_option("--trace", options->trace,
                   "Write where each step's time went, for 'fovea trace' and Perfetto; .gz is "
                   "compressed")
      ->type_name("OUT");
  add_prompt_options(*command, options->prompt);
  add_sampling_options(*command, *options);
  // A prompt mostly ends with its question, whose own rows lose most; docs/quality.md.
  options->knobs.selector.dense_tail_blocks = 2;
  add_attention_options(*command, options->knobs);
  command->footer(
      "The text goes to standard output, what it took to standard error.\n"
      "Examples:\n"
      "  fovea run -m model.gguf -p 'Name three rivers.'\n"
      "  fovea run -m model.gguf -f report.txt -p ' Summarise this.' --attention rescue -n 200\n"
      "  cat report.txt | fovea run -m model.gguf -f - --attention witness --density 0.05 --json\n"
      "  fovea run -m model.gguf -f report.txt -n 50 --trace run.json.gz && fovea trace "
      "run.json.gz");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace fovea::cli
