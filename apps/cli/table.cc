#include "apps/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

bool looks_like_figure(std::string_view cell) {
  if (cell.empty() || cell == "-") return true;
  if (cell.front() == '+' || cell.front() == '-') cell.remove_prefix(1);
  return !cell.empty() && cell.front() >= '0' && cell.front() <= '9';
}

std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  check_argument(cells.size() == header_.size(), "a table row has {} cells, the header has {}",
                 cells.size(), header_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
  std::vector<size_t> width(header_.size());
  std::vector<char> right(header_.size(), 1);
  for (size_t column = 0; column < header_.size(); ++column) {
    width[column] = display_width(header_[column]);
    for (const auto& row : rows_) {
      width[column] = std::max(width[column], display_width(row[column]));
      right[column] = right[column] && looks_like_figure(row[column]);
    }
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      if (column > 0) line += "  ";
      const std::string padding(width[column] - display_width(cells[column]), ' ');
      line += right[column] ? padding + cells[column] : cells[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  append(header_);
  std::vector<std::string> rule;
  for (const size_t columns : width) rule.emplace_back(columns, '-');
  append(rule);
  for (const auto& row : rows_) append(row);
  return text;
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size >= 0.9995) return three_digits(seconds) + " s";
  if (size >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string format_bytes(double bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{:.0f} B", bytes);
  size_t unit = 0;
  bytes /= 1000;
  for (; bytes >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  return three_digits(bytes) + " " + kUnits[unit];
}

std::string format_count(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 999.5e3) return three_digits(count / 1e3) + " K";
  if (count < 999.5e6) return three_digits(count / 1e6) + " M";
  return three_digits(count / 1e9) + " B";
}

std::string format_percent(double share) { return three_digits(share * 100) + " %"; }

}  // namespace fovea::cli
