#include "apps/cli/step_trace.h"

#include <fmt/format.h>

#include <algorithm>

namespace fovea::cli {
namespace {

constexpr int64_t kProcess = 1;
constexpr int64_t kTrack = 1;

// Written only now and then: making JSON costs as much as a piece of a small model's decode step.
constexpr size_t kMostKept = 1 << 18;

}  // namespace

StepTrace::StepTrace(const std::string& path, const std::string& title) : writer_(path) {
  writer_.name_process(kProcess, title);
  writer_.name_thread(kProcess, kTrack, "steps");
}

StepTrace::~StepTrace() {
  if (!finished_) end_step();
  if (!finished_) write_pieces();
}

double StepTrace::since_start_us(StepClock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - start_).count();
}

void StepTrace::begin_step(const StepStart& step) {
  end_step();
  if (pieces_.size() >= kMostKept) write_pieces();
  step_ = step;
  end_us_ = since_start_us(step.start);
}

void StepTrace::record(const OpTiming& timing) {
  const double ts_us = since_start_us(timing.start);
  pieces_.push_back({step_op_name(timing.op), ts_us, timing.seconds * 1e6, timing.layer});
  end_us_ = std::max(end_us_, ts_us + timing.seconds * 1e6);
}

// A step's label says how far it reaches, so it is written when the next one begins.
void StepTrace::end_step() {
  if (step_.num_tokens == 0) return;
  const double ts_us = since_start_us(step_.start);
  const std::string name = fmt::format("step[{} bs=1 toks={}]",
                                       step_.is_decode ? "decode" : "prefill", step_.num_tokens);
  writer_.write({.name = name,
                 .category = "user_annotation",
                 .ts_us = ts_us,
                 .dur_us = end_us_ - ts_us,
                 .pid = kProcess,
                 .tid = kTrack,
                 .args = {{"position", fmt::format("{}", step_.position)}}});
  step_.num_tokens = 0;
}

void StepTrace::write_pieces() {
  for (const Event& piece : pieces_) {
    trace::WrittenEvent event{.name = piece.name,
                              .category = "kernel",
                              .ts_us = piece.ts_us,
                              .dur_us = piece.dur_us,
                              .pid = kProcess,
                              .tid = kTrack};
    if (piece.layer >= 0) event.args.emplace_back("layer", fmt::format("{}", piece.layer));
    writer_.write(event);
  }
  pieces_.clear();
}

void StepTrace::finish() {
  finished_ = true;
  end_step();
  write_pieces();
  writer_.finish();
}

}  // namespace fovea::cli
