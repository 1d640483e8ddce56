// What a sweep measures and keeps, whoever answers: our engine (sweep_engine.h) or a server
// (sweep_server.h).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/worth/sweep_table.h"

namespace fovea::cli {

struct SweepPlan {
  std::vector<int64_t> lengths;  // tokens of the prompts, ascending, each once
  int64_t repetitions = 3;       // timed prompts per length and backend
  int64_t warmups = 1;           // untimed ones before them
  int64_t decode_tokens = 32;    // tokens after the first one, for itl; 0: prefill only
  uint64_t seed = 0;             // of the random prompts
};

/// One timed request.
struct SweepSample {
  int64_t prompt_tokens = 0;             // as who answered counts them
  std::optional<int64_t> cached_tokens;  // of these, not computed; empty when not said
  double ttft_ms = 0;
  std::vector<double> itl_ms;     // every gap between tokens, or one mean where they come bundled
  std::optional<double> density;  // of the attention, where it is ours

  /// Whether a cache answered a part of the prompt that changes ttft: 5 % and more.
  bool is_cached() const;
};

/// The requests of one length and backend.
struct SweepRow {
  int64_t length = 0;  // that was asked for
  std::string backend;
  std::vector<SweepSample> samples;

  /// Medians over the samples that no cache helped; empty without any.
  std::optional<double> prompt_tokens() const;
  std::vector<double> ttft_ms() const;
  std::vector<double> itl_ms() const;
};

/// Grows sample by sample, so that what was measured is there whenever the sweep ends.
class SweepRecord {
 public:
  void add(int64_t length, const std::string& backend, SweepSample sample);
  const std::vector<SweepRow>& rows() const { return rows_; }
  int64_t num_samples() const;

  /// Medians by backend, for fits and CSV.
  worth::SweepTable table() const;
  /// What a reader must know: prompts that were cached, ttfts far below the fit.
  std::vector<std::string> notes() const;
  nlohmann::json to_json() const;
  /// Aligned columns for people.
  std::string to_text() const;

 private:
  std::vector<SweepRow> rows_;
};

/// Called before each request with what comes and the share of the sweep done.
using SweepProgress = std::function<void(const std::string& what, double share)>;

/// Runs `request(length, backend, timed)` for every length, repetition and backend of the plan:
/// backends in turn, each repetition beginning with another. The first `warmups` are not timed.
/// `request` gets the place of the backend in `backends`.
void run_sweep(const SweepPlan& plan, const std::vector<std::string>& backends,
               const SweepProgress& progress,
               const std::function<void(int64_t length, size_t backend, bool timed)>& request);

}  // namespace fovea::cli
