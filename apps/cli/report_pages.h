// The pages that `--report out.html` writes.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/worth_models.h"
#include "apps/cli/worth_text.h"
#include "fovea/trace/trace_report.h"
#include "fovea/worth/fit.h"
#include "fovea/worth/sweep_table.h"

namespace fovea::cli {

/// Families by phase as stacked bars, findings, and the request's dilution when one was described.
std::string trace_page(const std::vector<trace::TraceReport>& reports, const WinOptions& win);

/// Share and ceiling against length, one line a model.
std::string model_page(const ModelQuestion& question, double speedup);

/// ttft and itl against length: measured points and their fits.
std::string fit_page(const worth::SweepTable& table, const std::vector<worth::PrefillFit>& prefill,
                     const std::vector<worth::DecodeFit>& decode);

}  // namespace fovea::cli
