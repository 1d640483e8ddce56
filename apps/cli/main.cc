// The `fovea` command: what each subcommand does is in the file of its name.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/cli/bench_command.h"
#include "apps/cli/calibrate_command.h"
#include "apps/cli/conditions.h"
#include "apps/cli/conditions_command.h"
#include "apps/cli/eval_command.h"
#include "apps/cli/exit_codes.h"
#include "apps/cli/fit_command.h"
#include "apps/cli/help_formatter.h"
#include "apps/cli/inspect_command.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/kernels_command.h"
#include "apps/cli/named_files.h"
#include "apps/cli/needle_command.h"
#include "apps/cli/run_command.h"
#include "apps/cli/strict_numbers.h"
#include "apps/cli/sweep_command.h"
#include "apps/cli/trace_command.h"
#include "apps/cli/worth_command.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Fovea reads a long prompt by looking hard only where it must: dense and block-sparse\n"
      "attention, an engine that serves models with it, and measurements of what it is worth.\n",
      "fovea");
  app.formatter(std::make_shared<fovea::cli::HelpFormatter>());
  app.footer("Each command teaches by example: fovea run --help");
  app.set_version_flag("--version", "fovea " + fovea::cli::version_text(),
                       "Print version and commit");
  app.require_subcommand(1);
  fovea::cli::add_run_command(app);
  fovea::cli::add_bench_command(app);
  fovea::cli::add_needle_command(app);
  fovea::cli::add_eval_command(app);
  fovea::cli::add_calibrate_command(app);
  fovea::cli::add_inspect_command(app);
  fovea::cli::add_kernels_command(app);
  fovea::cli::add_trace_command(app);
  fovea::cli::add_worth_command(app);
  fovea::cli::add_sweep_command(app);
  fovea::cli::add_fit_command(app);
  fovea::cli::add_conditions_command(app);
  fovea::cli::refuse_odd_numbers(app);
  fovea::cli::refuse_odd_files(app);
  fovea::cli::install_interrupt_handler();
  return fovea::cli::parse_and_run(app, argc, argv);
}
