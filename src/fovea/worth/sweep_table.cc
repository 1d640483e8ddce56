#include "fovea/worth/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"

namespace fovea::worth {
namespace {

constexpr size_t kMostCells = 1'000'000;
constexpr double kLargestNumber = 1e12;  // tokens, or microseconds: squares must stay finite

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\"");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\"") - first + 1);
}

std::vector<std::string_view> cells_of(std::string_view line, char separator) {
  std::vector<std::string_view> cells;
  for (;;) {
    const size_t end = line.find(separator);
    cells.push_back(trimmed(line.substr(0, end)));
    if (end == std::string_view::npos) return cells;
    line.remove_prefix(end + 1);
  }
}

// What a column measures, from the end of its name.
struct Column {
  bool is_decode = false;
  double to_unit = 1;  // times this gives seconds of ttft, or milliseconds of itl
  std::string backend;
};

Column column_of(std::string_view header) {
  std::string name(header);
  for (char& c : name) {
    if (c == ' ' || c == '-' || c == '/') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  struct Suffix {
    std::string_view text;
    bool is_decode;
    double to_unit;
  };
  constexpr Suffix kSuffixes[] = {{"ttft_s", false, 1},   {"ttft_ms", false, 1e-3},
                                  {"itl_ms", true, 1},    {"itl_s", true, 1e3},
                                  {"itl_us", true, 1e-3}, {"tpot_ms", true, 1}};
  for (const Suffix& suffix : kSuffixes) {
    if (!name.ends_with(suffix.text)) continue;
    Column column{suffix.is_decode, suffix.to_unit, {}};
    std::string_view backend = header.substr(0, header.size() - suffix.text.size());
    while (!backend.empty() && (backend.back() == '_' || backend.back() == ' '))
      backend.remove_suffix(1);
    column.backend = backend.empty() ? "sweep" : backend;
    return column;
  }
  fail(ErrorCode::kInvalidFile,
       "column '{}' must be named like FLASH_ttft_s, FLASH_ttft_ms, FLASH_itl_ms or FLASH_itl_us",
       shown(header));
}

double number_of(std::string_view cell, int64_t line, std::string_view header) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !(value > 0) ||
      value > kLargestNumber) {
    fail(ErrorCode::kInvalidFile,
         "line {}: '{}' in column '{}' is not a number above 0 and below {:g}", line, shown(cell),
         shown(header), kLargestNumber);
  }
  return value;
}

}  // namespace

SweepTable read_sweep_table(std::string_view csv) {
  std::vector<std::string> headers;
  std::vector<Column> columns;
  std::vector<Sweep> sweeps;
  char separator = ',';
  size_t num_cells = 0;
  int64_t line_number = 0;
  while (!csv.empty()) {
    ++line_number;
    const size_t end = csv.find('\n');
    const std::string_view line = csv.substr(0, end);
    csv.remove_prefix(end == std::string_view::npos ? csv.size() : end + 1);
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#') continue;
    if (headers.empty()) {
      if (line.find('\t') != std::string_view::npos) separator = '\t';
      if (line.find(';') != std::string_view::npos) separator = ';';
      for (const std::string_view cell : cells_of(line, separator)) headers.emplace_back(cell);
      if (headers.size() < 2) {
        fail(ErrorCode::kInvalidFile,
             "line {}: the header needs a length and a time, such as n,FLASH_ttft_s", line_number);
      }
      for (size_t i = 1; i < headers.size(); ++i) {
        columns.push_back(column_of(headers[i]));
        sweeps.push_back({columns.back().backend, {}, {}});
      }
      continue;
    }
    const std::vector<std::string_view> cells = cells_of(line, separator);
    num_cells += cells.size();
    if (cells.size() != headers.size() || num_cells > kMostCells) {
      fail(ErrorCode::kInvalidFile, "line {} has {} cells, the header has {}", line_number,
           cells.size(), headers.size());
    }
    const double tokens = number_of(cells[0], line_number, headers[0]);
    for (size_t i = 1; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      sweeps[i - 1].tokens.push_back(tokens);
      sweeps[i - 1].values.push_back(number_of(cells[i], line_number, headers[i]) *
                                     columns[i - 1].to_unit);
    }
  }
  if (headers.empty()) fail(ErrorCode::kInvalidFile, "the table is empty");
  SweepTable table;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    (columns[i].is_decode ? table.decode : table.prefill).push_back(std::move(sweeps[i]));
  }
  return table;
}

std::string write_sweep_table(const SweepTable& table) {
  struct NamedSweep {
    const Sweep* sweep;
    const char* suffix;
  };
  std::vector<NamedSweep> columns;
  std::set<double> lengths;
  for (const Sweep& sweep : table.prefill) columns.push_back({&sweep, "_ttft_s"});
  for (const Sweep& sweep : table.decode) columns.push_back({&sweep, "_itl_ms"});
  std::string csv = "n";
  for (const NamedSweep& column : columns) {
    std::string name = column.sweep->backend;
    std::replace_if(
        name.begin(), name.end(),
        [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == ',' || c == ';' || c == '"';
        },
        '_');
    csv += "," + name + column.suffix;
    lengths.insert(column.sweep->tokens.begin(), column.sweep->tokens.end());
  }
  csv += '\n';
  for (const double length : lengths) {
    csv += fmt::format("{:.10g}", length);
    for (const NamedSweep& column : columns) {
      const std::vector<double>& tokens = column.sweep->tokens;
      const auto found = std::find(tokens.begin(), tokens.end(), length);
      csv += ',';
      if (found == tokens.end()) continue;
      csv +=
          fmt::format("{:.10g}", column.sweep->values[static_cast<size_t>(found - tokens.begin())]);
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace fovea::worth
