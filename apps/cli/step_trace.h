// `fovea run --trace`: the engine's steps and their pieces as a Chrome trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fovea/engine/step_observer.h"
#include "fovea/trace/trace_writer.h"

namespace fovea::cli {

/// Writes what a session does to a trace file, all on one track: steps labelled for `fovea trace`,
/// their pieces as kernels. Pieces are kept in memory and written between steps.
class StepTrace final : public StepObserver {
 public:
  /// Throws kInvalidFile when `path` cannot be written. `title` names the track.
  StepTrace(const std::string& path, const std::string& title);
  /// Writes what is left; errors are lost then.
  ~StepTrace() override;

  void begin_step(const StepStart& step) override;
  void record(const OpTiming& timing) override;
  /// Ends the file. Throws kInvalidFile when anything could not be written.
  void finish();

 private:
  struct Event {
    std::string_view name;
    double ts_us = 0;
    double dur_us = 0;
    int64_t layer = -1;
  };

  double since_start_us(StepClock::time_point time) const;
  void end_step();
  void write_pieces();

  trace::TraceWriter writer_;
  StepClock::time_point start_ = StepClock::now();
  StepStart step_;             // the one in progress, when num_tokens > 0
  double end_us_ = 0;          // of its last piece
  std::vector<Event> pieces_;  // not yet written
  bool finished_ = false;
};

}  // namespace fovea::cli
