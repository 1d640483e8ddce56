#include "apps/cli/eval_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/attention_options.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/checked_math.h"
#include "fovea/model_io/model_config.h"
#include "fovea/quality/answer.h"
#include "fovea/quality/rate.h"
#include "fovea/quality/task.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using quality::Rate;
using quality::Task;

struct EvalOptions {
  ModelArguments model;
  std::string file;
  std::string tasks = "single,lookalike,eight";
  std::string length = "32K";
  std::string attention = "centroid,rescue,witness:1,witness:4,oracle";
  AttentionOptions knobs;
  int64_t num_questions = 32;
  uint64_t seed = 1;
  bool json = false;
  std::string output;
};

// One attention on one kind of task.
struct Cell {
  Rate rate;
  std::vector<double> density;
  std::vector<double> prefill_ms;
};

struct Row {
  std::string attention;
  std::vector<Cell> cells;  // one a kind
};

// Prompts of each kind, the same for every attention.
std::vector<std::vector<Task>> make_tasks(const Model& model, const EvalOptions& options,
                                          int64_t length, const std::vector<std::string>& kinds,
                                          const std::string& text) {
  const quality::TaskMaker maker(text, [&](std::string_view part) {
    return model.tokenizer().encode(part, {.add_bos = false});
  });
  const quality::TaskSettings settings = {
      .length = length, .seed = options.seed, .bos_id = model.config().bos_id};
  std::vector<std::vector<Task>> tasks(kinds.size());
  for (size_t k = 0; k < kinds.size(); ++k) {
    const int64_t num_tasks =
        ceil_div(options.num_questions, quality::questions_per_task(kinds[k]));
    for (int64_t i = 0; i < num_tasks; ++i) {
      tasks[k].push_back(maker.make(kinds[k], settings, i, num_tasks));
    }
  }
  return tasks;
}

Cell run_cell(Session& session, const std::vector<Task>& tasks, const std::string& label) {
  Cell cell;
  ProgressBar bar;
  for (size_t i = 0; i < tasks.size(); ++i) {
    PrefillOptions prefill;
    prefill.cancel = &interrupt_flag();
    prefill.progress = [&](double share) {
      bar.update(label, static_cast<int64_t>((static_cast<double>(i) + share) * 1000),
                 static_cast<int64_t>(tasks.size()) * 1000);
    };
    const quality::TaskOutcome outcome = answer_task(session, tasks[i], prefill);
    cell.rate.total += static_cast<int64_t>(outcome.scores.size());
    cell.rate.right += std::count(outcome.scores.begin(), outcome.scores.end(), 1.0);
    cell.density.push_back(outcome.report.density());
    cell.prefill_ms.push_back(outcome.report.times.total_ms);
  }
  return cell;
}

std::string rate_text(const Rate& rate) {
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", rate.value(), rate.low(), rate.high());
}

void print_rows(const std::vector<Row>& rows, const std::vector<std::string>& kinds) {
  std::vector<std::string> header = {"attention"};
  for (const std::string& kind : kinds) {
    header.push_back(fmt::format("{} (95 %)", kind));
  }
  header.insert(header.end(), {"density", "prefill"});
  Table table(header);
  for (const Row& row : rows) {
    std::vector<std::string> cells = {row.attention};
    std::vector<double> density, prefill_ms;
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (i >= row.cells.size()) {  // interrupted before this one
        cells.emplace_back("-");
        continue;
      }
      const Cell& cell = row.cells[i];
      cells.push_back(rate_text(cell.rate));
      density.insert(density.end(), cell.density.begin(), cell.density.end());
      prefill_ms.insert(prefill_ms.end(), cell.prefill_ms.begin(), cell.prefill_ms.end());
    }
    cells.push_back(density.empty() ? "-" : format_percent(median(density)));
    cells.push_back(prefill_ms.empty() ? "-" : format_seconds(median(prefill_ms) / 1e3));
    table.add_row(cells);
  }
  fmt::print("{}", table.to_string());
}

nlohmann::json rows_json(const std::vector<Row>& rows, const std::vector<std::string>& kinds) {
  nlohmann::json json = nlohmann::json::array();
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const Cell& cell = row.cells[i];
      json.push_back({{"attention", row.attention},
                      {"task", kinds[i]},
                      {"num_right", cell.rate.right},
                      {"num_questions", cell.rate.total},
                      {"rate", cell.rate.value()},
                      {"rate_low", cell.rate.low()},
                      {"rate_high", cell.rate.high()},
                      {"density", summary_json(cell.density)},
                      {"prefill_ms", summary_json(cell.prefill_ms)}});
    }
  }
  return json;
}

// Fills rows until all is done or Ctrl-C; what is there by then is whole.
std::vector<Row> evaluate(const std::shared_ptr<const Model>& model, const EvalOptions& options,
                          int64_t length, const std::vector<std::string>& attentions,
                          const std::vector<std::string>& kinds, const std::string& text) {
  const auto tasks = make_tasks(*model, options, length, kinds, text);
  std::vector<Row> rows;
  try {
    for (const std::string& name : attentions) {
      SessionOptions session_options;
      session_options.attention = attention_settings(name, options.knobs);
      session_options.max_len = length;
      Session session(model, session_options);
      rows.push_back({name, {}});
      for (size_t i = 0; i < kinds.size(); ++i) {
        const std::string label = fmt::format("{}, {}", name, kinds[i]);
        rows.back().cells.push_back(run_cell(session, tasks[i], label));
      }
    }
  } catch (const Cancelled&) {
    // What is whole is reported; the caller says that it is not all.
  }
  return rows;
}

std::vector<std::string> parse_tasks(const std::string& text) {
  std::vector<std::string> kinds;
  for (const std::string& name : split_list(text, "--tasks")) {
    quality::task_description(name);  // refuses what it does not know
    kinds.push_back(name);
  }
  check_argument(!kinds.empty(), "--tasks names no task, known are {}",
                 fmt::join(quality::task_kinds(), ", "));
  return kinds;
}

void eval(const EvalOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  const int64_t length = parse_tokens(options.length, "--length");
  const std::vector<std::string> kinds = parse_tasks(options.tasks);
  const std::vector<std::string> attentions = parse_attention_list(options.attention);
  check_selection_options(command, attentions);
  for (const std::string& name : attentions) attention_settings(name, options.knobs);
  check_argument(options.num_questions > 0 && options.num_questions <= 1'000'000,
                 "--questions must be in 1 ... 1000000, is {}", options.num_questions);
  std::optional<OutputFile> output;
  if (!options.output.empty()) output.emplace(options.output);
  const std::string text = read_utf8_text(options.file);

  const auto model = load_model(options.model);
  check_argument(length <= model->config().context_length,
                 "--length {} is past this model's context of {}", length,
                 model->config().context_length);
  const std::vector<Row> rows = evaluate(model, options, length, attentions, kinds, text);

  Conditions conditions = model_conditions(*model, command);
  conditions.prompt_length = fmt::format("{} tokens", length);
  conditions.answer_length = "teacher-forced";
  conditions.tokens_counted = "prompt, for the prefill's time";
  nlohmann::json json = machine_json(model->context());
  json["command"] = "eval";
  json["conditions"] = to_json(conditions);
  json["rows"] = rows_json(rows, kinds);
  json["seed"] = options.seed;
  for (const std::string& name : attentions) {
    json["selectors"][name] = to_json(attention_settings(name, options.knobs));
  }
  if (output && !rows.empty()) output->write(json.dump(2) + "\n");
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
  } else if (!rows.empty()) {
    print_rows(rows, kinds);
    fmt::print("{}\n", to_line(conditions));
  }
  if (interrupted()) throw Interrupted("the table above is not complete");
}

std::string task_help() {
  std::string help;
  for (const std::string& kind : quality::task_kinds()) {
    help +=
        fmt::format("{}{}: {}", help.empty() ? "" : "; ", kind, quality::task_description(kind));
  }
  return help;
}

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval", "Score attentions on long-context tasks at one density, with intervals");
  add_model_options(*command, options->model);
  command->add_option("-f,--file", options->file, "Text to hide the facts in; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--tasks", options->tasks, task_help())
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  command->add_option("--length", options->length, "Tokens of a prompt")
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--attention", options->attention,
                   "Any of " + attention_names() + "; witness:2 keeps two witnesses")
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  command->add_option("-n,--questions", options->num_questions, "Questions per task and attention")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed asks the same questions")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("FILE");
  options->knobs.density = 0.0534f;
  add_attention_options(*command, options->knobs);
  command->footer(
      "Answers are teacher-forced: a question counts when every token of its answer was the "
      "model's\n"
      "first choice. Every attention sees the same prompts. Intervals are Wilson's, 95 %.\n"
      "The tasks are in the form that models/needle_7m was trained on.\n"
      "Examples:\n"
      "  scripts/long_text.py -o build/long_text.txt\n"
      "  fovea eval -m models/needle_7m -f build/long_text.txt\n"
      "  fovea eval -m models/needle_7m -f build/long_text.txt --tasks lookalike -n 64 \\\n"
      "      --attention rescue,witness --density 0.03 -o eval.json");
  command->callback([options, command] { eval(*options, *command); });
}

}  // namespace fovea::cli
