// `fovea eval --diagnose`: why selectors miss, as JSON, tables and a page.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/eval_plan.h"
#include "apps/cli/eval_subject.h"
#include "fovea/engine/model.h"
#include "fovea/quality/diagnose.h"
#include "fovea/worth/conditions.h"
#include "fovea/worth/report_page.h"

namespace fovea::cli {

/// A diagnosis with the prompts that its cases point into.
struct DiagnosisReport {
  quality::Diagnosis diagnosis;
  quality::DiagnoseSettings settings;
  std::vector<std::string> prompt_names;  // "lookalike, 8192 tokens, prompt 0"
  std::vector<std::string> case_texts;    // of each case: the token in brackets amid its neighbours
};

/// Reads the first `num_prompts` prompts of every subject and judges the sparse variants by them,
/// those with a periphery once. Throws as quality::Diagnoser does, Interrupted at Ctrl-C.
DiagnosisReport run_diagnosis(const std::shared_ptr<const Model>& model,
                              const std::vector<std::unique_ptr<EvalSubject>>& subjects,
                              const std::vector<EvalVariant>& variants, int64_t num_prompts);

nlohmann::json to_json(const DiagnosisReport& report);

/// Titles and tables: recall of mass, ranks of the true top blocks, radius quintiles, diluted
/// blocks.
std::vector<std::pair<std::string, worth::ReportTable>> diagnosis_tables(
    const DiagnosisReport& report);

/// The tables, and a map of each selector's density by layer and head.
std::string diagnosis_page(const DiagnosisReport& report,
                           const std::vector<worth::ConditionEntry>& conditions);

}  // namespace fovea::cli
