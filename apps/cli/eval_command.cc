#include "apps/cli/eval_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/conditions.h"
#include "apps/cli/eval_page.h"
#include "apps/cli/eval_plan.h"
#include "apps/cli/eval_runner.h"
#include "apps/cli/eval_summary.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/model_options.h"
#include "apps/cli/parse_values.h"
#include "apps/cli/report_json.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

constexpr double kUsualDensity = 5.34;  // percent: the published comparison's
constexpr const char* kUsualTasks = "single,lookalike,eight";

struct EvalOptions {
  ModelArguments model;
  std::string file;
  std::optional<std::string> tasks;  // none: kUsualTasks, or nothing beside texts
  bool generated = false;
  std::string texts;
  std::string tail = "1K";
  std::string lengths = "32K";
  EvalAxes axes;
  AttentionOptions knobs;
  std::string against;
  int64_t num_questions = 32;
  uint64_t seed = 1;
  bool json = false;
  std::string output, report, journal;
};

/// What the options say, checked before anything is loaded.
struct EvalPlan {
  std::vector<EvalVariant> variants;
  std::vector<int64_t> lengths;
  std::vector<std::string> tasks, texts;
  int64_t tail = 0;
};

std::vector<std::string> distinct(std::vector<std::string> names, const char* option) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    check_argument(std::find(names.begin(), name, *name) == name, "{} names \"{}\" twice", option,
                   *name);
  }
  return names;
}

EvalPlan make_plan(const EvalOptions& options, const CLI::App& command) {
  EvalPlan plan;
  plan.lengths = parse_tokens_list(options.lengths, "--length");
  plan.texts = distinct(split_list(options.texts, "--texts"), "--texts");
  plan.tail = parse_tokens(options.tail, "--tail");
  plan.tasks =
      distinct(split_list(options.tasks.value_or(plan.texts.empty() ? kUsualTasks : ""), "--tasks"),
               "--tasks");
  for (const std::string& kind : plan.tasks) quality::task_description(kind);  // if there is one
  check_argument(!plan.tasks.empty() || !plan.texts.empty(), "--tasks names no task, known are {}",
                 fmt::join(quality::task_kinds(), ", "));
  check_argument(plan.tasks.empty() || !options.file.empty(),
                 "--file is required: a text to hide the facts of the tasks in");
  check_argument(options.num_questions > 0 && options.num_questions <= 1'000'000,
                 "--questions must be in 1 ... 1000000, is {}", options.num_questions);

  EvalAxes axes = options.axes;
  check_argument(axes.densities.empty() || !options.knobs.density,
                 "give --density, one share, or --densities, several percents");
  if (axes.densities.empty()) {
    const double percent = 100 * static_cast<double>(options.knobs.density.value_or(-1));
    axes.densities = !options.knobs.density ? fmt::format("{:g}", kUsualDensity)
                     : percent == 0         ? "own"
                                            : fmt::format("{:.6g}", percent);
  }
  check_selection_options(command, parse_attention_list(axes.attention));
  plan.variants = expand_variants(axes, options.knobs);
  const auto names_reference = [&](const EvalVariant& variant) {
    return variant.attention == options.against && !variant.is_dense();
  };
  check_argument(options.against.empty() ||
                     std::any_of(plan.variants.begin(), plan.variants.end(), names_reference),
                 "--against {} is none of --attention's methods", options.against);
  return plan;
}

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
  std::shared_ptr<const quality::TaskMaker> maker;
  if (!plan.tasks.empty()) {
    quality::PromptFrame frame;
    if (options.generated) frame = quality::chat_frame(model->tokenizer());
    maker = std::make_shared<const quality::TaskMaker>(
        input.filler,
        [model](std::string_view part) {
          return model->tokenizer().encode(part, {.add_bos = false});
        },
        frame);
  }
  std::vector<std::unique_ptr<EvalSubject>> subjects;
  for (const int64_t length : plan.lengths) {
    for (const std::string& kind : plan.tasks) {
      const quality::TaskSettings settings = {length, options.seed, model->config().bos_id,
                                              options.generated};
      subjects.push_back(
          std::make_unique<TaskSubject>(maker, kind, settings, options.num_questions));
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
  return {{"model", model_hash(model.path())},
          {"compute_dtype", dtype_name(model.compute_dtype())},
          {"weight_dtype", dtype_name(model.weight_dtype())},
          {"device", model.context().device.type == DeviceType::kCpu ? "cpu" : "cuda"},
          {"text", text_hash(filler_text)},
          {"questions", options.num_questions},
          {"seed", options.seed}};
}

std::string lengths_text(const std::vector<int64_t>& lengths) {
  return fmt::format("{} tokens", fmt::join(lengths, ", "));
}

void print_groups(const Evaluation& evaluation, const std::vector<EvalGroup>& groups,
                  const std::string& reference) {
  for (const EvalGroup& group : groups) {
    const worth::ReportTable content = group_table(evaluation, group, reference);
    Table table(content.header);
    for (const auto& row : content.rows) table.add_row(row);
    fmt::print("{}\n{}\n", group.title(), table.to_string());
  }
}

void eval(const EvalOptions& options, const CLI::App& command) {
  check_model_options(options.model);
  const EvalPlan plan = make_plan(options, command);
  std::optional<OutputFile> output, page;
  if (!options.output.empty()) output.emplace(options.output);
  if (!options.report.empty()) page.emplace(options.report);
  const InputTexts input = read_texts(options, plan);
  const auto model = load_model(options.model);
  for (const int64_t length : plan.lengths) {
    check_argument(length <= model->config().context_length,
                   "--length {} is past this model's context of {}", length,
                   model->config().context_length);
  }
  std::optional<EvalJournal> journal;
  if (options.journal.empty()) {
    journal.emplace();
  } else {
    journal.emplace(options.journal, journal_settings(*model, options, input.filler));
  }
  Evaluation evaluation;
  evaluation.variants = plan.variants;
  evaluation.subjects = make_subjects(model, options, plan, input);
  run_evaluation(model, &*journal, &evaluation);

  const std::vector<EvalGroup> groups = summarize(evaluation, options.against, options.seed);
  const std::vector<std::string> notes = summary_notes(evaluation, groups);
  Conditions conditions = model_conditions(*model, command);
  conditions.prompt_length = lengths_text(plan.lengths);
  conditions.answer_length = options.generated ? "as generated" : "teacher-forced";
  conditions.tokens_counted = "prompt, for the prefill's time";
  nlohmann::json json = machine_json(model->context());
  json["command"] = "eval";
  json["conditions"] = to_json(conditions);
  json["finished"] = evaluation.finished;
  json["seed"] = options.seed;
  json["notes"] = notes;
  json["rows"] = rows_json(evaluation, groups, options.against);
  for (const EvalVariant& variant : evaluation.variants) {
    json["selectors"][variant.name(true)] = to_json(variant.settings);
  }
  if (output && !groups.empty()) output->write(json.dump(2) + "\n");
  if (page && !groups.empty()) {
    page->write(
        eval_page(evaluation, groups, options.against, notes, condition_entries(conditions)));
  }
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
  } else if (!groups.empty()) {
    print_groups(evaluation, groups, options.against);
    for (const std::string& note : notes) fmt::print("note: {}\n", note);
    fmt::print("{}\n", to_line(conditions));
  }
  for (const std::string& note : journal->notes()) fmt::print(stderr, "fovea: note: {}\n", note);
  if (!evaluation.finished) {
    throw Interrupted(options.journal.empty() ? "the tables above are not complete"
                                              : "the same command goes on from " + options.journal);
  }
}

// Takes the place of an option that add_attention_options() added for one value.
CLI::Option* replace_option(CLI::App& command, const std::string& name, std::string& value,
                            const std::string& description) {
  command.remove_option(command.get_option(name));
  return command.add_option(name, value, description)->capture_default_str()->group("Selection");
}

void add_selection_axes(CLI::App& command, EvalOptions& options) {
  command
      .add_option("--attention", options.axes.attention,
                  "Any of " + attention_names() +
                      "; witness:2 keeps two witnesses; dense is always "
                      "a row")
      ->capture_default_str()
      ->type_name("NAME,NAME,...");
  command
      .add_option("--against", options.against,
                  "Compare with this one of them too, at the same density, blocks and periphery")
      ->type_name("NAME");
  add_attention_options(command, options.knobs);
  command
      .add_option(
          "--densities", options.axes.densities,
          fmt::format("Percents of the causal pairs to keep, measured within 0.1 points; own "
                      "is what a method keeps by itself [{:g}]",
                      kUsualDensity))
      ->group("Selection")
      ->type_name("P,P,...");
  replace_option(command, "--periphery", options.axes.periphery,
                 "Whether blocks that are not read are seen through their means")
      ->type_name("off,on");
  replace_option(command, "--block-size", options.axes.block_sizes,
                 "Tokens per block, which is a KV page")
      ->type_name("N,N,...");
}

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval", "Score attentions on long-context tasks and texts at one density, with intervals");
  add_model_options(*command, options->model);
  command->add_option("-f,--file", options->file, "Text to hide the facts in; - is standard input")
      ->type_name("FILE");
  std::string kinds;
  for (const std::string& kind : quality::task_kinds()) {
    kinds +=
        fmt::format("{}{}: {}", kinds.empty() ? "" : "; ", kind, quality::task_description(kind));
  }
  command->add_option("--tasks", options->tasks, kinds)
      ->default_str(kUsualTasks)
      ->type_name("NAME,NAME,...");
  command->add_flag("--generate", options->generated,
                    "Ask in plain English and let the model write, instead of counting whether an "
                    "answer's tokens are its first choices");
  command
      ->add_option("--texts", options->texts,
                   "Also judge by these: next-token agreement with dense, and nats above it")
      ->type_name("FILE,FILE,...");
  command->add_option("--tail", options->tail, "Tokens at the end of a text's stretch to judge by")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--length", options->lengths, "Tokens of a prompt; A..B doubles from A to B")
      ->capture_default_str()
      ->type_name("N,N,...");
  command
      ->add_option("-n,--questions", options->num_questions,
                   "Questions per task, or stretches per text")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed asks the same questions")
      ->capture_default_str();
  add_selection_axes(*command, *options);
  command
      ->add_option("--journal", options->journal,
                   "Keep each finished prompt in this file; the same command goes on from there")
      ->type_name("FILE");
  command->add_option("--report", options->report, "Write an HTML page with charts")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("-o,--output", options->output, "Write the JSON to a file as well")
      ->type_name("FILE");
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
      "  fovea eval -m model.gguf --texts prose.txt,code.txt --length 8K -n 8 --against centroid");
  command->callback([options, command] { eval(*options, *command); });
}

}  // namespace fovea::cli
