// Somebody's sweep as a CSV table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/worth/fit.h"

namespace fovea::worth {

/// The sweeps of one table. Times are in the units of Sweep: ttft in seconds, itl in milliseconds.
struct SweepTable {
  std::vector<Sweep> prefill;
  std::vector<Sweep> decode;
};

/// Reads a CSV whose first column is a length in tokens ("n", "tokens", "context" ...) and whose
/// other columns are named `<backend>_ttft_s`, `<backend>_ttft_ms`, `<backend>_itl_ms`,
/// `<backend>_itl_s` or `<backend>_itl_us`; blanks and '_' are equal, case does not matter, and the
/// backend may be left out. Commas, semicolons or tabs part the cells; an empty cell leaves a
/// length out; '#' begins a comment line. Throws kInvalidFile naming line and column.
SweepTable read_sweep_table(std::string_view csv);

/// The table in the form that read_sweep_table() reads, lengths ascending; characters that would
/// part cells become '_' in the backends' names.
std::string write_sweep_table(const SweepTable& table);

}  // namespace fovea::worth
