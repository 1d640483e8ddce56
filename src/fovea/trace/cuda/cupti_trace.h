// Records what this process does on its GPUs, through CUPTI; includes no CUDA header. Built with
// FOVEA_CUDA where the toolkit has CUPTI.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace fovea::trace {

/// A recording: kernels, copies, the calls that launched them, and the steps named here, written
/// as a Chrome trace when it ends. CUPTI is loaded when one begins, so programs start without it.
/// One at a time in a process; a profiler that uses CUPTI as well cannot run beside it.
class CuptiTrace {
 public:
  /// Throws kUnsupported when CUPTI or a GPU is missing, kInvalidFile when `path` cannot be
  /// written; ".gz" is compressed.
  explicit CuptiTrace(const std::string& path);
  /// Ends the recording; without finish() nothing is written.
  ~CuptiTrace();
  CuptiTrace(const CuptiTrace&) = delete;
  CuptiTrace& operator=(const CuptiTrace&) = delete;

  /// Work that this thread launches from here on belongs to a step of this label, until the next
  /// one or end_step(). "step[prefill bs=1 toks=512]" and the like give it a phase.
  void begin_step(std::string_view label);
  void end_step();

  /// Writes the file. Precondition: the caller waited for its GPU work, else the last of it is
  /// missing. Throws kInvalidFile, and kDevice when CUPTI lost records.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea::trace
