// Runs the built `fovea` as a user would, and keeps what it said.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace fovea::cli {

struct ProcessResult {
  int exit_code = -1;  // minus the signal's number when one ended it
  std::string out;
  std::string err;
};

class Process {
 public:
  /// Starts fovea with `arguments` and `input` as its standard input. Throws std::runtime_error.
  explicit Process(const std::vector<std::string>& arguments, const std::string& input = "");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Presses Ctrl-C, once the process handles it and has read its whole input.
  void interrupt();
  /// Presses Ctrl-C, once the process has written something to its standard output.
  void interrupt_after_output();
  /// Presses Ctrl-C, once `is_ready` or after a minute.
  void interrupt_when(const std::function<bool()>& is_ready);
  ProcessResult wait();

 private:
  test::TempDir folder_;  // files that stand for its standard streams
  size_t input_size_;
  int pid_ = -1;
};

inline ProcessResult run_fovea(const std::vector<std::string>& arguments,
                               const std::string& input = "") {
  return Process(arguments, input).wait();
}

}  // namespace fovea::cli
