#include "apps/cli/needle_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/cli/attention_options.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/engine/generate.h"
#include "fovea/model_io/model_config.h"
#include "fovea/quality/needle_task.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using quality::Task;

struct NeedleOptions {
  ModelArguments model;
  std::string file;
  std::string length = "32K";
  std::string attention = "dense,centroid,rescue,witness";
  AttentionOptions knobs;
  quality::NeedleSettings task;
  int64_t num_documents = 4;
  double max_seconds = 0;
  bool json = false;
  std::string output;
};

struct NeedleResult {
  std::string attention;
  std::string answer;  // what the model said, up to the end of the sentence
  bool right = false;
  double ttft_ms = 0;
  PrefillReport prefill;
};

struct DocumentResult {
  Task task;
  std::vector<NeedleResult> results;  // one an attention, in order
};

// One attention over all documents.
struct AttentionRow {
  std::string attention;
  std::vector<double> ttft_ms, density, speedup;
  int64_t num_right = 0;
};

std::string first_sentence(std::string text) {
  text.erase(0, text.find_first_not_of(" \n"));
  return text.substr(0, text.find_first_of(".\n"));
}

NeedleResult ask(Session& session, const Task& task, const std::string& attention) {
  GenerateOptions options;
  options.max_new_tokens = 10;  // a blank, five digits and the full stop, with room to be wrong
  options.prefill.cancel = &interrupt_flag();
  ProgressBar bar;
  options.prefill.progress = [&](double share) {
    bar.update(fmt::format("reading {} tokens with {} attention", task.prompt().size(), attention),
               static_cast<int64_t>(share * 1000), 1000);
  };
  session.reset();
  const GenerateResult answer = generate(session, task.prompt(), options);
  if (answer.stop == StopReason::kCancelled) throw Cancelled();
  return {attention, first_sentence(answer.text),
          quality::is_needle_answer(answer.text, task.questions.back().answers[0]), answer.ttft_ms,
          answer.prefill};
}

void print_result(const NeedleResult& result) {
  fmt::print("  {:<10} {:>8}  density {:>7}  answers \"{}\": {}\n", result.attention,
             format_seconds(result.ttft_ms / 1e3), format_percent(result.prefill.density()),
             result.answer, result.right ? "right" : "wrong");
  if (!result.prefill.note.empty()) fmt::print("  {:<10} {}\n", "", result.prefill.note);
  std::fflush(stdout);
}

std::vector<AttentionRow> summarise(const std::vector<DocumentResult>& documents) {
  std::vector<AttentionRow> rows;
  for (const DocumentResult& document : documents) {
    rows.resize(document.results.size());
    const auto dense =
        std::find_if(document.results.begin(), document.results.end(),
                     [](const NeedleResult& result) { return result.attention == "dense"; });
    for (size_t i = 0; i < rows.size(); ++i) {
      const NeedleResult& result = document.results[i];
      rows[i].attention = result.attention;
      rows[i].ttft_ms.push_back(result.ttft_ms);
      rows[i].density.push_back(result.prefill.density());
      rows[i].num_right += result.right ? 1 : 0;
      if (dense != document.results.end()) {
        rows[i].speedup.push_back(dense->ttft_ms / result.ttft_ms);
      }
    }
  }
  return rows;
}

void print_summary(const std::vector<DocumentResult>& documents) {
  Table table({"attention", "found", "ttft", "density", "speed-up"});
  for (const AttentionRow& row : summarise(documents)) {
    table.add_row({row.attention, fmt::format("{} of {}", row.num_right, documents.size()),
                   format_seconds(median(row.ttft_ms) / 1e3), format_percent(median(row.density)),
                   row.speedup.empty() ? "-" : fmt::format("{:.1f}x", median(row.speedup))});
  }
  fmt::print("\n{}", table.to_string());
}

nlohmann::json documents_json(const std::vector<DocumentResult>& documents, int64_t num_q_heads) {
  nlohmann::json json = nlohmann::json::array();
  for (const DocumentResult& document : documents) {
    nlohmann::json results = nlohmann::json::array();
    for (const NeedleResult& result : document.results) {
      results.push_back({{"attention", result.attention},
                         {"answer", result.answer},
                         {"right", result.right},
                         {"ttft_ms", result.ttft_ms},
                         {"density", result.prefill.density()},
                         {"prefill", to_json(result.prefill, num_q_heads, false)}});
    }
    json.push_back({{"prompt_tokens", document.task.prompt().size()},
                    {"prompt_hash", prompt_hash(document.task.prompt())},
                    {"fact", document.task.questions.back().fact},
                    {"question", document.task.questions.back().text},
                    {"depth", document.task.questions.back().depth},
                    {"results", results}});
  }
  return json;
}

nlohmann::json summary_rows_json(const std::vector<DocumentResult>& documents) {
  nlohmann::json json = nlohmann::json::array();
  for (const AttentionRow& row : summarise(documents)) {
    json.push_back({{"attention", row.attention},
                    {"num_right", row.num_right},
                    {"num_documents", documents.size()},
                    {"ttft_ms", summary_json(row.ttft_ms)},
                    {"density", summary_json(row.density)},
                    {"speedup", summary_json(row.speedup)}});
  }
  return json;
}

// Numbers of documents in the order in which they are read: from the middle depth outwards, because
// the time may be up early, and at a prompt's ends every attention looks.
std::vector<int64_t> reading_order(int64_t num_documents) {
  std::vector<int64_t> order(static_cast<size_t>(num_documents));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {},
                           [&](int64_t i) { return std::abs(2 * i - (num_documents - 1)); });
  return order;
}

// Documents one by one, each read by every attention, until all are read or the next would go past
// max_seconds. A Ctrl-C ends it after the last whole document.
std::vector<DocumentResult> read_documents(const std::shared_ptr<const Model>& model,
                                           const NeedleOptions& options,
                                           const std::vector<std::string>& attentions,
                                           const std::string& text) {
  const Tokenizer& tokenizer = model->tokenizer();
  const auto encode = [&](std::string_view part) {
    return tokenizer.encode(part, {.add_bos = false});
  };
  const std::vector<int32_t> filler = encode(text);
  const std::vector<std::string> names = quality::needle_names(text, encode);
  std::vector<Session> sessions;
  for (const std::string& name : attentions) {
    SessionOptions session_options;
    session_options.attention = attention_settings(name, options.knobs);
    session_options.max_len = options.task.length + 16;
    sessions.emplace_back(model, session_options);
  }

  std::vector<DocumentResult> documents;
  quality::NeedleSettings settings = options.task;
  settings.bos_id = model->config().bos_id;
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t i : reading_order(options.num_documents)) {
    const auto num_read = static_cast<int64_t>(documents.size());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const double each = num_read > 0 ? spent.count() / static_cast<double>(num_read) : 0;
    if (options.max_seconds > 0 && num_read > 0 && spent.count() + each > options.max_seconds) {
      if (!options.json) {
        fmt::print(
            "{} of {} documents left out: each takes {:.0f} s, and --max-seconds is {:.0f}\n",
            options.num_documents - num_read, options.num_documents, each, options.max_seconds);
      }
      break;
    }
    DocumentResult document;
    document.task =
        quality::make_needle_task(settings, i, options.num_documents, filler, names, encode);
    const quality::Question& question = document.task.questions.back();
    if (!options.json) {
      fmt::print("document {} of {}: {} tokens, at {:.0f} % of them \"{}\"\n", num_read + 1,
                 options.num_documents, document.task.prompt().size(), question.depth * 100,
                 question.fact.substr(1));
      std::fflush(stdout);
    }
    try {
      for (size_t j = 0; j < attentions.size(); ++j) {
        document.results.push_back(ask(sessions[j], document.task, attentions[j]));
        if (!options.json) print_result(document.results.back());
      }
    } catch (const Cancelled&) {
      return documents;
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

void needle(NeedleOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  options.task.length = parse_tokens(options.length, "--length");
  const std::vector<std::string> attentions = parse_attention_list(options.attention);
  check_selection_options(command, attentions);
  for (const std::string& name : attentions) attention_settings(name, options.knobs);
  check_argument(options.num_documents > 0, "--documents must be positive, is {}",
                 options.num_documents);
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  const std::string text = read_utf8_text(options.file);

  const auto model = load_model(options.model);
  check_argument(options.task.length + 16 <= model->config().context_length,
                 "--length {} leaves no room for an answer in this model's context of {}",
                 options.task.length, model->config().context_length);
  const std::vector<DocumentResult> documents = read_documents(model, options, attentions, text);

  Conditions conditions = model_conditions(*model, command);
  conditions.prompt_length = fmt::format("{} tokens", options.task.length);
  conditions.answer_length = "at most 10 tokens";
  conditions.tokens_counted = "prompt, for ttft";
  nlohmann::json json = machine_json(model->context());
  json["command"] = "needle";
  json["conditions"] = to_json(conditions);
  json["rows"] = summary_rows_json(documents);
  json["documents"] = documents_json(documents, model->config().num_q_heads);
  for (const std::string& name : attentions) {
    json["selectors"][name] = to_json(attention_settings(name, options.knobs));
  }
  if (output && !documents.empty()) output->write(json_text(json) + "\n");
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else if (!documents.empty()) {
    print_summary(documents);
    fmt::print("{}\n", to_line(conditions));
  }
  if (interrupted()) {
    throw Interrupted(fmt::format("{} of {} documents were read by every attention",
                                  documents.size(), options.num_documents));
  }
}

}  // namespace

void add_needle_command(CLI::App& app) {
  const auto options = std::make_shared<NeedleOptions>();
  CLI::App* command = app.add_subcommand(
      "needle", "Hide facts in long texts and ask for them, attention by attention");
  add_model_options(*command, options->model);
  command->add_option("-f,--file", options->file, "Text to hide the facts in; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--length", options->length, "Tokens of a document")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--attention", options->attention, "Any of " + attention_names())
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  command
      ->add_option("--documents", options->num_documents,
                   "Documents, each with its own fact; depths are spread evenly and read from the "
                   "middle outwards")
      ->capture_default_str();
  command
      ->add_option("--max-seconds", options->max_seconds,
                   "Start no document that would probably end later than this; 0 is no limit")
      ->capture_default_str();
  command
      ->add_option("--distractors", options->task.num_distractors,
                   "Facts of the same form about other things, in each document")
      ->capture_default_str();
  command->add_option("--seed", options->task.seed, "The same seed hides the same facts")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of text");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("OUT");
  options->knobs.density = 0.05f;
  add_attention_options(*command, options->knobs);
  command->footer(
      "Each document asks \" Recall: the red code of apple is\", which models/needle_7m was "
      "trained to\n"
      "answer from the text; other models may or may not.\n"
      "Examples:\n"
      "  scripts/long_text.py -o build/long_text.txt\n"
      "  fovea needle -m models/needle_7m -f build/long_text.txt\n"
      "  fovea needle -m models/needle_7m -f build/long_text.txt --length 64K --density 0.03 \\\n"
      "      --attention dense,witness --documents 8");
  command->callback([options, command] { needle(*options, *command); });
}

}  // namespace fovea::cli
