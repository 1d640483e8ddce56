// Writes Chrome traces that Perfetto, chrome://tracing and `fovea trace` open.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/trace/families.h"

namespace fovea::trace {

/// One event to write. Times in microseconds; categories as EventKind reads them: "kernel",
/// "user_annotation", "cuda_runtime" ...
struct WrittenEvent {
  std::string_view name;
  std::string_view category;
  double ts_us = 0;
  double dur_us = 0;
  int64_t pid = 0;
  int64_t tid = 0;
  int64_t correlation = -1;                                 // left out when negative
  std::vector<std::pair<std::string, std::string>> args{};  // shown beside the event
};

/// A trace file being written, one event after another; gzip when its name ends in ".gz". Label
/// steps with annotations such as "step[prefill bs=1 toks=512]" on the thread that does or launches
/// the work, so that the reader knows their phase.
class TraceWriter {
 public:
  /// Throws kInvalidFile when `path` cannot be written.
  explicit TraceWriter(const std::string& path);
  /// Closes the file if finish() was not called; errors are lost then.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void write(const WrittenEvent& event);
  /// An arrow from a launch to its kernel. `is_end` at the kernel.
  void write_flow(int64_t id, bool is_end, double ts_us, int64_t pid, int64_t tid);
  void name_process(int64_t pid, std::string_view name);
  void name_thread(int64_t pid, int64_t tid, std::string_view name);
  /// Ends the JSON. Throws kInvalidFile when anything could not be written (a full disk, say).
  void finish();

  int64_t num_events() const { return num_events_; }

 private:
  struct File;

  void put(std::string_view text);
  void write_line(const std::string& json);
  void name(std::string_view what, int64_t pid, int64_t tid, std::string_view name);

  std::string path_;
  std::unique_ptr<File> file_;  // null once closed
  int error_ = 0;               // errno of the first write that failed
  int64_t num_events_ = 0;
};

/// Which part of a trace a cut keeps. Times on the trace's own clock.
struct CutOptions {
  double from_us = -std::numeric_limits<double>::infinity();
  double to_us = std::numeric_limits<double>::infinity();
  int64_t most_events = 500'000;  // Perfetto stays quick
};

struct CutSummary {
  int64_t num_written = 0;
  int64_t num_left_out = 0;  // inside the window, but beyond most_events
};

/// Copies a trace's kernels, copies, launches and annotations that overlap the window to
/// `out_path`, each kernel with its family, launches joined to kernels by arrows; operators and
/// Python frames are left out. What comes out is valid JSON, whatever went in. Throws as
/// read_trace() and TraceWriter do.
CutSummary write_cut(const std::string& in_path, const std::string& out_path,
                     const FamilyTable& families, const CutOptions& options);

}  // namespace fovea::trace
