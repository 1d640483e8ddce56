// What `fovea eval` can be told, and what that comes to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/attention_options.h"
#include "apps/cli/eval_plan.h"
#include "apps/cli/model_options.h"

namespace fovea::cli {

struct EvalOptions {
  ModelArguments model;
  std::string file;
  std::optional<std::string> tasks;  // none: the usual three, or nothing beside files
  bool generated = false;
  std::string task_files, texts;
  std::string tail = "1K";
  std::string lengths = "32K";
  EvalAxes axes;
  AttentionOptions knobs;
  std::string against;
  int64_t num_questions = 32;
  uint64_t seed = 1;
  bool diagnose = false;
  bool json = false;
  std::string output, report, journal;
};

/// What the options say, checked before anything is loaded.
struct EvalPlan {
  std::vector<EvalVariant> variants;
  std::vector<int64_t> lengths;
  std::vector<std::string> tasks, task_files, texts;
  int64_t tail = 0;
};

/// Adds every option to `command`. `options` must outlive the parse.
void add_eval_options(CLI::App& command, EvalOptions& options);

/// Throws kInvalidArgument naming the option that is wrong, before anything is read.
EvalPlan make_plan(const EvalOptions& options, const CLI::App& command);

}  // namespace fovea::cli
