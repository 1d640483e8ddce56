#include "apps/cli/conditions_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/worth/conditions.h"

namespace fovea::cli {
namespace {

struct ConditionsOptions {
  std::string file;
  std::string report;
  bool json = false;
};

nlohmann::json to_json(const worth::ConditionsAudit& audit) {
  nlohmann::json json = {{"format", audit.format},
                         {"num_missing", audit.num_missing()},
                         {"conditions", nlohmann::json::array()},
                         {"remarks", audit.remarks}};
  for (const worth::ConditionEntry& entry : audit.entries) {
    json["conditions"].push_back(
        {{"name", entry.name},
         {"meaning", entry.meaning},
         {"value", entry.missing() ? nlohmann::json() : nlohmann::json(entry.value)},
         {"found_at", entry.missing() ? nlohmann::json() : nlohmann::json(entry.found_at)}});
  }
  return json;
}

void run(const ConditionsOptions& options) {
  const worth::ConditionsAudit audit =
      naming_file(options.file, [&] { return worth::audit_conditions(read_text(options.file)); });
  if (!options.report.empty()) {
    OutputFile(options.report).write(conditions_page(options.file, audit));
  }
  if (options.json) {
    fmt::print("{}\n", json_text(to_json(audit)));
    return;
  }
  fmt::print("{}: a report of {}, {} of 10 conditions missing\n\n", options.file, audit.format,
             audit.num_missing());
  Table table({"condition", "stated", "where"});
  for (const bool missing : {true, false}) {
    for (const worth::ConditionEntry& entry : audit.entries) {
      if (entry.missing() != missing) continue;
      table.add_row({entry.name, missing ? "MISSING: " + entry.meaning : entry.value,
                     missing ? "" : entry.found_at});
    }
  }
  fmt::print("{}", table.to_string());
  for (const std::string& remark : audit.remarks) fmt::print("\nnote: {}", remark);
  if (!audit.remarks.empty()) fmt::print("\n");
}

}  // namespace

void add_conditions_command(CLI::App& app) {
  const auto options = std::make_shared<ConditionsOptions>();
  CLI::App* command = app.add_subcommand(
      "conditions", "Say which of the ten conditions of a figure a benchmark's report states");
  command
      ->add_option("file", options->file,
                   "JSON of vLLM bench, AIPerf, GuideLLM or fovea; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--report", options->report, "Write an HTML page")->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->footer(
      "Examples:\n"
      "  fovea conditions openai-infqps-model-20250101.json\n"
      "  fovea conditions profile_export_aiperf.json --json");
  command->callback([options] { run(*options); });
}

}  // namespace fovea::cli
