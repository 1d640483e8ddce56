#include "apps/cli/eval_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/cli/parse_values.h"
#include "fovea/base/error.h"
#include "fovea/quality/task.h"

namespace fovea::cli {
namespace {

constexpr double kUsualDensity = 5.34;  // percent: the published comparison's
constexpr const char* kUsualTasks = "single,lookalike,eight";

std::vector<std::string> distinct(std::vector<std::string> names, const char* option) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    check_argument(std::find(names.begin(), name, *name) == name, "{} names \"{}\" twice", option,
                   *name);
  }
  return names;
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
                      "; witness:2:f8 keeps two witnesses in E4M3 (docs/selection.md has all "
                      "words); dense is always a row")
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

EvalPlan make_plan(const EvalOptions& options, const CLI::App& command) {
  EvalPlan plan;
  plan.lengths = parse_tokens_list(options.lengths, "--length");
  plan.task_files = distinct(split_list(options.task_files, "--task-files"), "--task-files");
  plan.texts = distinct(split_list(options.texts, "--texts"), "--texts");
  plan.tail = parse_tokens(options.tail, "--tail");
  plan.tasks = distinct(
      split_list(
          options.tasks.value_or(plan.texts.empty() && plan.task_files.empty() ? kUsualTasks : ""),
          "--tasks"),
      "--tasks");
  for (const std::string& kind : plan.tasks) quality::task_description(kind);  // if there is one
  check_argument(!plan.tasks.empty() || !plan.texts.empty() || !plan.task_files.empty(),
                 "--tasks names no task, known are {}", fmt::join(quality::task_kinds(), ", "));
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
  check_argument(!options.diagnose || options.journal.empty(),
                 "--journal keeps scores, which --diagnose does not make");
  return plan;
}

void add_eval_options(CLI::App& command, EvalOptions& options) {
  add_model_options(command, options.model);
  command.add_option("-f,--file", options.file, "Text to hide the facts in; - is standard input")
      ->type_name("FILE");
  std::string kinds;
  for (const std::string& kind : quality::task_kinds()) {
    kinds +=
        fmt::format("{}{}: {}", kinds.empty() ? "" : "; ", kind, quality::task_description(kind));
  }
  command.add_option("--tasks", options.tasks, kinds)
      ->default_str(kUsualTasks)
      ->type_name("NAME,NAME,...");
  command.add_flag("--generate", options.generated,
                   "Ask in plain English and let the model write, instead of counting whether an "
                   "answer's tokens are its first choices");
  command
      .add_option("--task-files", options.task_files,
                  "Tasks of LongBench-v2 or InfiniteBench: JSON files that you bring, the first "
                  "--questions of each")
      ->type_name("FILE,FILE,...");
  command
      .add_option("--texts", options.texts,
                  "Also judge by these: next-token agreement with dense, and nats above it")
      ->type_name("FILE,FILE,...");
  command.add_option("--tail", options.tail, "Tokens at the end of a text's stretch to judge by")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--length", options.lengths, "Tokens of a prompt; A..B doubles from A to B")
      ->capture_default_str()
      ->type_name("N,N,...");
  command
      .add_option("-n,--questions", options.num_questions,
                  "Questions per task, or stretches per text")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "The same seed asks the same questions")
      ->capture_default_str();
  add_selection_axes(command, options);
  command
      .add_option("--journal", options.journal,
                  "Keep each finished prompt in this file; the same command goes on from there")
      ->type_name("OUT");
  command.add_option("--report", options.report, "Write an HTML page with charts")
      ->type_name("OUT");
  command.add_flag("--diagnose", options.diagnose,
                   "Instead of scores: what of the attention's mass each method keeps, how scores "
                   "rank the blocks that matter, and which tokens a mean hides; on the CPU, two "
                   "prompts a task unless --questions is given");
  command.add_flag("--json", options.json, "Print JSON instead of tables");
  command.add_option("-o,--output", options.output, "Write the JSON to a file as well")
      ->type_name("OUT");
}

}  // namespace fovea::cli
