#include "apps/cli/eval_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/conditions.h"
#include "apps/cli/diagnose_report.h"
#include "apps/cli/eval_equal_time.h"
#include "apps/cli/eval_options.h"
#include "apps/cli/eval_page.h"
#include "apps/cli/eval_runner.h"
#include "apps/cli/eval_summary.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/quality/load_tasks.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Texts are read before the model, so that a mistake in a name costs no time.
struct InputTexts {
  std::string filler;
  std::vector<std::string> texts;  // those of --texts
};

InputTexts read_texts(const EvalOptions& options, const EvalPlan& plan) {
  InputTexts input;
  if (!plan.tasks.empty()) input.filler = read_utf8_text(options.file);
  for (const std::string& path : plan.texts) input.texts.push_back(read_utf8_text(path));
  return input;
}

std::vector<std::unique_ptr<EvalSubject>> make_subjects(const std::shared_ptr<const Model>& model,
                                                        const EvalOptions& options,
                                                        const EvalPlan& plan,
                                                        const InputTexts& input) {
  const quality::EncodeFunction encode = [model](std::string_view part) {
    return model->tokenizer().encode(part, {.add_bos = false});
  };
  quality::PromptFrame frame;
  if (options.generated || !plan.task_files.empty()) {
    frame = quality::chat_frame(model->tokenizer());
  }
  std::shared_ptr<const quality::TaskMaker> maker;
  if (!plan.tasks.empty()) {
    maker = std::make_shared<const quality::TaskMaker>(input.filler, encode, frame);
  }
  std::vector<std::unique_ptr<EvalSubject>> subjects;
  for (const int64_t length : plan.lengths) {
    for (const std::string& kind : plan.tasks) {
      const quality::TaskSettings settings = {length, options.seed, model->config().bos_id,
                                              options.generated};
      subjects.push_back(
          std::make_unique<TaskSubject>(maker, kind, settings, options.num_questions));
    }
    for (const std::string& path : plan.task_files) {
      const quality::LoadSettings settings = {length, options.num_questions};
      subjects.push_back(
          std::make_unique<FileSubject>(file_name(path), content_hash(path), length,
                                        quality::load_tasks(path, encode, frame, settings)));
    }
    for (size_t i = 0; i < plan.texts.size(); ++i) {
      naming_file(plan.texts[i], [&] {
        subjects.push_back(std::make_unique<TextSubject>(file_name(plan.texts[i]), input.texts[i],
                                                         *model, length, plan.tail,
                                                         options.num_questions));
        return 0;
      });
    }
  }
  return subjects;
}

/// What every record of a journal depends on.
nlohmann::json journal_settings(const Model& model, const EvalOptions& options,
                                const std::string& filler_text) {
  return {{"model", content_hash(model.path())},
          {"compute_dtype", dtype_name(model.compute_dtype())},
          {"weight_dtype", dtype_name(model.weight_dtype())},
          {"device", model.context().device.type == DeviceType::kCpu ? "cpu" : "cuda"},
          {"text", text_hash(filler_text)},
          {"questions", options.num_questions},
          {"seed", options.seed}};
}

void print_table(const std::string& title, const worth::ReportTable& content) {
  Table table(content.header);
  for (const std::vector<std::string>& row : content.rows) table.add_row(row);
  fmt::print("{}\n{}\n", title, table.to_string());
}

/// Where the report goes: opened before the work, written after it.
class EvalOutput {
 public:
  explicit EvalOutput(const EvalOptions& options) : print_json_(options.json) {
    if (!options.output.empty()) json_.emplace(options.output);
    if (!options.report.empty()) page_.emplace(options.report);
  }
  /// `page` makes the page's HTML, `print_tables` what people read.
  void write(const nlohmann::json& json, const std::function<std::string()>& page,
             const std::function<void()>& print_tables) {
    if (json_) json_->write(json_text(json) + "\n");
    if (page_) page_->write(page());
    if (print_json_) {
      fmt::print("{}\n", json_text(json));
    } else {
      print_tables();
    }
  }

 private:
  bool print_json_;
  std::optional<OutputFile> json_, page_;
};

/// What every report of this command begins with.
nlohmann::json report_json(const Model& model, const EvalOptions& options,
                           const Conditions& conditions) {
  nlohmann::json json = machine_json(model.context());
  json["command"] = "eval";
  json["conditions"] = to_json(conditions);
  json["seed"] = options.seed;
  return json;
}

Conditions eval_conditions(const Model& model, const EvalOptions& options, const EvalPlan& plan,
                           const CLI::App& command) {
  Conditions conditions = model_conditions(model, command);
  conditions.prompt_length = fmt::format("{} tokens", fmt::join(plan.lengths, ", "));
  conditions.answer_length = options.generated ? "as generated" : "teacher-forced";
  conditions.tokens_counted = "prompt, for the prefill's time";
  return conditions;
}

void score(const std::shared_ptr<const Model>& model, const EvalOptions& options,
           const Conditions& conditions, Evaluation evaluation, EvalJournal* journal,
           EvalOutput* output) {
  run_evaluation(model, journal, &evaluation);
  const std::vector<EvalGroup> groups = summarize(evaluation, options.against, options.seed);
  const std::vector<std::string> notes = summary_notes(evaluation, groups);
  std::vector<std::vector<EqualTimeRow>> equal_time;  // a list a group
  for (const EvalGroup& group : groups) {
    equal_time.push_back(compare_at_equal_time(evaluation, group, options.against, options.seed));
  }
  nlohmann::json json = report_json(*model, options, conditions);
  json["finished"] = evaluation.finished;
  json["notes"] = notes;
  json["rows"] = rows_json(evaluation, groups, options.against);
  for (size_t i = 0; i < groups.size(); ++i) {
    for (nlohmann::json& row : equal_time_json(evaluation, groups[i], equal_time[i])) {
      json["equal_time"].push_back(std::move(row));
    }
  }
  for (const EvalVariant& variant : evaluation.variants) {
    json["selectors"][variant.name(true)] = to_json(variant.settings);
  }
  if (!groups.empty()) {
    output->write(
        json,
        [&] {
          return eval_page(evaluation, groups, equal_time, options.against, notes,
                           condition_entries(conditions));
        },
        [&] {
          for (size_t i = 0; i < groups.size(); ++i) {
            const EvalGroup& group = groups[i];
            print_table(group.title(), group_table(evaluation, group, options.against));
            if (equal_time[i].empty()) continue;
            print_table(group.title() + ": at the time of " + options.against,
                        equal_time_table(evaluation, equal_time[i]));
          }
          for (const std::string& note : notes) fmt::print("note: {}\n", note);
          fmt::print("{}\n", to_line(conditions));
        });
  }
  for (const std::string& note : journal->notes()) {
    print_aside(fmt::format("fovea: note: {}\n", note));
  }
  if (!evaluation.finished) {
    throw Interrupted(!options.journal.empty() ? "the same command goes on from " + options.journal
                      : groups.empty()         ? "no prompt was finished by every attention"
                                               : "the tables above are not complete");
  }
}

void diagnose(const std::shared_ptr<const Model>& model, const EvalOptions& options,
              const Conditions& conditions, const Evaluation& evaluation, int64_t num_prompts,
              EvalOutput* output) {
  const DiagnosisReport report =
      run_diagnosis(model, evaluation.subjects, evaluation.variants, num_prompts);
  nlohmann::json json = report_json(*model, options, conditions);
  json["diagnosis"] = to_json(report);
  output->write(
      json, [&] { return diagnosis_page(report, condition_entries(conditions)); },
      [&] {
        for (const auto& [title, table] : diagnosis_tables(report)) print_table(title, table);
        fmt::print("{}\n", to_line(conditions));
      });
}

void eval(const EvalOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  const EvalPlan plan = make_plan(options, command);
  EvalOutput output(options);
  const InputTexts input = read_texts(options, plan);
  const auto model = load_model(options.model);
  for (const int64_t length : plan.lengths) {
    check_argument(length <= model->config().context_length,
                   "--length {} is past this model's context of {}", length,
                   model->config().context_length);
  }
  const Conditions conditions = eval_conditions(*model, options, plan, command);
  Evaluation evaluation;
  evaluation.variants = plan.variants;
  if (options.diagnose) {
    constexpr int64_t kUsualPrompts = 2;
    const bool given = command.get_option("--questions")->count() > 0;
    evaluation.subjects = make_subjects(model, options, plan, input);
    diagnose(model, options, conditions, evaluation, given ? options.num_questions : kUsualPrompts,
             &output);
    return;
  }
  std::optional<EvalJournal> journal;
  if (options.journal.empty()) {
    journal.emplace();
  } else {
    journal.emplace(options.journal, journal_settings(*model, options, input.filler));
  }
  evaluation.subjects = make_subjects(model, options, plan, input);
  score(model, options, conditions, std::move(evaluation), &*journal, &output);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval", "Score attentions on long-context tasks and texts at one density, with intervals");
  add_eval_options(*command, *options);
  command->footer(
      "Every attention reads the same prompts. Scores have Wilson's intervals, differences those "
      "of "
      "a\n"
      "paired bootstrap over prompts, 95 %; docs/quality.md says how figures are made.\n"
      "Examples:\n"
      "  scripts/long_text.py -o build/long_text.txt\n"
      "  fovea eval -m models/needle_7m -f build/long_text.txt\n"
      "  fovea eval -m models/needle_7m -f build/long_text.txt --attention rescue,witness \\\n"
      "      --densities 3,5.34,10 --periphery off,on --against rescue -n 200 \\\n"
      "      --journal eval.jsonl -o eval.json --report eval.html\n"
      "  fovea eval -m models/needle_7m -f build/long_text.txt --attention centroid,witness \\\n"
      "      --length 8K --diagnose\n"
      "  fovea eval -m model.gguf --texts prose.txt,code.txt --length 8K -n 8 --against centroid");
  command->callback([options, command] { eval(*options, *command); });
}

}  // namespace fovea::cli
