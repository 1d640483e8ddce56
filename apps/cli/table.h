// Aligned columns for people to read; --json is for programs.
#pragma once

#include <string>
#include <vector>

namespace fovea::cli {

/// Collects rows of text and prints them with every column as wide as its widest cell.
///
/// A column is right-aligned when all its cells below the header look like figures ("1.25x", "87
/// %",
/// "-"), else left-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  /// Throws kInvalidArgument when the row has not as many cells as the header.
  void add_row(std::vector<std::string> cells);
  /// The table, each line ended; widths are counted in code points.
  std::string to_string() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// "3.21 s", "842 ms", "15.0 us": three significant digits and the unit that fits.
std::string format_seconds(double seconds);
/// "13.9 MB": decimal units, as file sizes are given.
std::string format_bytes(double bytes);
/// "135 M", "7.0 M", "1.54 B".
std::string format_count(double count);
/// "5.34 %" of a share in 0 ... 1.
std::string format_percent(double share);

}  // namespace fovea::cli
