#include "apps/cli/fit_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "apps/cli/fit_text.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/text_io.h"

namespace fovea::cli {
namespace {

struct FitOptions {
  std::string file;
  FitQuestion question;
  std::string report;
  bool json = false;
};

void run(const FitOptions& options) {
  check_fit_question(options.question, "--lengths");
  std::optional<OutputFile> page;
  if (!options.report.empty()) page.emplace(options.report);
  const auto [table, fits] = naming_file(options.file, [&] {
    const worth::SweepTable read = worth::read_sweep_table(read_text(options.file));
    return std::pair(read, fit_all(read));
  });
  if (page) page->write(fit_page(table, fits));
  if (options.json) {
    fmt::print("{}\n", json_text(fits_json(fits, options.question)));
  } else {
    fmt::print("{}", fit_tables(table, fits, options.question));
  }
}

}  // namespace

void add_fit_command(CLI::App& app) {
  const auto options = std::make_shared<FitOptions>();
  CLI::App* command =
      app.add_subcommand("fit", "Fit ttft and itl against length, from a table of measurements");
  command
      ->add_option(
          "file", options->file,
          "CSV: a length in tokens, then columns such as FLASH_ttft_s and FLASH_itl_ms; - is "
          "standard input")
      ->required()
      ->type_name("FILE");
  add_fit_options(*command, options->question, "--lengths");
  command->add_option("--report", options->report, "Write an HTML page with charts")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->footer(
      "Examples:\n"
      "  fovea fit sweep.csv\n"
      "  fovea fit sweep.csv --kv-bytes 57344 --copy-gbps 483 --residuals\n"
      "  printf 'n,ttft_s\\n1024,.28\\n4096,.99\\n8192,2.07\\n16384,4.59\\n' | fovea fit -");
  command->callback([options] { run(*options); });
}

}  // namespace fovea::cli
