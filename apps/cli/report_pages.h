// The pages that `--report out.html` writes. Each ends with the ten conditions of its figures,
// those that are missing among them.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/fit_text.h"
#include "apps/cli/worth_models.h"
#include "apps/cli/worth_text.h"
#include "fovea/trace/trace_report.h"
#include "fovea/worth/conditions.h"
#include "fovea/worth/fit.h"
#include "fovea/worth/report_page.h"
#include "fovea/worth/sweep_table.h"

namespace fovea::cli {

/// "Written by fovea 0.1.0 (commit ...)."
std::string written_by();

/// Families by phase as stacked bars, findings, and the request's dilution when one was described.
std::string trace_page(const std::vector<trace::TraceReport>& reports, const WinOptions& win);

/// What a report states and what it leaves out.
std::string conditions_page(const std::string& file, const worth::ConditionsAudit& audit);

/// Share, return and ceiling against length, one line a model; the request's dilution when
/// `request` was described.
std::string model_page(const ModelQuestion& question, double speedup,
                       const std::optional<RequestWin>& request);
/// The first two charts of that page, prefill's and decode's share, as a picture of its own.
std::string model_picture(const ModelQuestion& question);

/// What shares of a step are worth, by the kernel's speed-up, with their ceilings.
std::string shares_page(const Shares& shares, double prefill_speedup, double decode_speedup,
                        const std::optional<RequestWin>& request);

/// The two-point law: share, return and ceiling against length.
std::string points_page(const std::vector<worth::SharePoint>& points, const worth::TwoPointLaw& law,
                        const std::vector<int64_t>& contexts, double speedup);

/// The shares that a claim needs.
std::string claim_page(const std::vector<worth::ImpliedShare>& implied,
                       const worth::ReportTable& table);

/// ttft and itl against length: measured points and their fits. The table is somebody else's.
std::string fit_page(const worth::SweepTable& table, const Fits& fits);
/// The same of our own measurements.
std::string sweep_page(const worth::SweepTable& table, const Fits& fits,
                       const std::vector<std::string>& notes,
                       const std::vector<worth::ConditionEntry>& conditions);

}  // namespace fovea::cli
