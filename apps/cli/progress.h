// A progress bar on standard error, shown only when a person is watching.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fovea::cli {

/// Whether standard error is a terminal.
bool stderr_is_terminal();

/// One line that redraws itself at most ten times a second; prints nothing unless on a terminal.
class ProgressBar {
 public:
  ProgressBar() : enabled_(stderr_is_terminal()) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Shows `label` and how much of `total` is done.
  void update(const std::string& label, int64_t done, int64_t total);
  /// Wipes the line, so that other output can follow.
  void clear();

 private:
  bool enabled_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace fovea::cli
