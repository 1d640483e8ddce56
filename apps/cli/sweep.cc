#include "apps/cli/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/cli/report_json.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

constexpr double kCachedShare = 0.05;

// "312 ms (305 ms - 330 ms)"
std::string spread_text(const std::vector<double>& samples_ms) {
  if (samples_ms.empty()) return "-";
  const auto [low, high] = std::minmax_element(samples_ms.begin(), samples_ms.end());
  return format_seconds(*low / 1e3) + " - " + format_seconds(*high / 1e3);
}

std::string median_text(const std::vector<double>& samples_ms) {
  return samples_ms.empty() ? "-" : format_seconds(median(samples_ms) / 1e3);
}

worth::Sweep& sweep_of(std::vector<worth::Sweep>& sweeps, const std::string& backend) {
  for (worth::Sweep& sweep : sweeps) {
    if (sweep.backend == backend) return sweep;
  }
  sweeps.push_back({backend, {}, {}});
  return sweeps.back();
}

}  // namespace

bool SweepSample::is_cached() const {
  return static_cast<double>(cached_tokens.value_or(0)) >=
             kCachedShare * static_cast<double>(prompt_tokens) &&
         cached_tokens.value_or(0) > 0;
}

std::optional<double> SweepRow::prompt_tokens() const {
  std::vector<double> tokens;
  for (const SweepSample& sample : samples) {
    if (!sample.is_cached()) tokens.push_back(static_cast<double>(sample.prompt_tokens));
  }
  return tokens.empty() ? std::nullopt : std::optional(median(tokens));
}

std::vector<double> SweepRow::ttft_ms() const {
  std::vector<double> values;
  for (const SweepSample& sample : samples) {
    if (!sample.is_cached()) values.push_back(sample.ttft_ms);
  }
  return values;
}

std::vector<double> SweepRow::itl_ms() const {
  std::vector<double> values;
  for (const SweepSample& sample : samples) {
    values.insert(values.end(), sample.itl_ms.begin(), sample.itl_ms.end());
  }
  return values;
}

void SweepRecord::add(int64_t length, const std::string& backend, SweepSample sample) {
  for (SweepRow& row : rows_) {
    if (row.length == length && row.backend == backend) {
      row.samples.push_back(std::move(sample));
      return;
    }
  }
  rows_.push_back({length, backend, {std::move(sample)}});
}

int64_t SweepRecord::num_samples() const {
  int64_t count = 0;
  for (const SweepRow& row : rows_) count += static_cast<int64_t>(row.samples.size());
  return count;
}

worth::SweepTable SweepRecord::table() const {
  worth::SweepTable table;
  for (const SweepRow& row : rows_) {
    const std::optional<double> tokens = row.prompt_tokens();
    if (!tokens) continue;
    const auto add_median = [&](std::vector<worth::Sweep>& sweeps,
                                const std::vector<double>& samples, double unit) {
      if (samples.empty()) return;
      worth::Sweep& sweep = sweep_of(sweeps, row.backend);
      sweep.tokens.push_back(*tokens);
      sweep.values.push_back(median(samples) * unit);
    };
    add_median(table.prefill, row.ttft_ms(), 1e-3);
    add_median(table.decode, row.itl_ms(), 1);
  }
  return table;
}

std::vector<std::string> SweepRecord::notes() const {
  std::vector<std::string> notes;
  int64_t num_cached = 0, num_hits = 0, most_cached = 0;
  for (const SweepRow& row : rows_) {
    for (const SweepSample& sample : row.samples) {
      num_hits += sample.cached_tokens.value_or(0) > 0 ? 1 : 0;
      num_cached += sample.is_cached() ? 1 : 0;
      most_cached = std::max(most_cached, sample.cached_tokens.value_or(0));
    }
  }
  if (num_hits > 0) {
    notes.push_back(fmt::format(
        "cache hits: {} of {} prompts, up to {} tokens; {} of them had 5 % or more in the cache "
        "and are left out of ttft and fits",
        num_hits, num_samples(), most_cached, num_cached));
  }
  for (const worth::Sweep& sweep : table().prefill) {
    for (const size_t i : worth::far_below_fit(sweep)) {
      notes.push_back(fmt::format(
          "{}: ttft at {:.0f} tokens is less than half of what the other lengths predict: "
          "probably cached, although the server does not say so",
          sweep.backend, sweep.tokens[i]));
    }
  }
  return notes;
}

nlohmann::json SweepRecord::to_json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const SweepRow& row : rows_) {
    nlohmann::json samples = nlohmann::json::array();
    std::vector<double> densities;
    for (const SweepSample& sample : row.samples) {
      nlohmann::json cached;
      if (sample.cached_tokens) cached = *sample.cached_tokens;
      samples.push_back({{"prompt_tokens", sample.prompt_tokens},
                         {"cached_tokens", cached},
                         {"ttft_ms", sample.ttft_ms},
                         {"itl_ms", sample.itl_ms}});
      if (sample.density) densities.push_back(*sample.density);
    }
    rows.push_back({{"length", row.length},
                    {"backend", row.backend},
                    {"ttft_ms", summary_json(row.ttft_ms())},
                    {"itl_ms", summary_json(row.itl_ms())},
                    {"density", summary_json(densities)},
                    {"samples", samples}});
  }
  return rows;
}

std::string SweepRecord::to_text() const {
  bool any_density = false;
  for (const SweepRow& row : rows_) {
    any_density = any_density || row.samples.front().density.has_value();
  }
  std::vector<std::string> header = {"prompt", "backend",   "ttft",    "min - max",
                                     "itl",    "min - max", "requests"};
  if (any_density) header.emplace_back("density");
  Table table(header);
  for (const SweepRow& row : rows_) {
    const double tokens =
        row.prompt_tokens().value_or(static_cast<double>(row.samples.front().prompt_tokens));
    std::vector<std::string> cells = {fmt::format("{:.0f}", tokens),
                                      row.backend,
                                      median_text(row.ttft_ms()),
                                      spread_text(row.ttft_ms()),
                                      median_text(row.itl_ms()),
                                      spread_text(row.itl_ms()),
                                      fmt::format("{}", row.samples.size())};
    if (any_density) cells.push_back(format_percent(row.samples.front().density.value_or(1)));
    table.add_row(cells);
  }
  return table.to_string();
}

void run_sweep(const SweepPlan& plan, const std::vector<std::string>& backends,
               const SweepProgress& progress,
               const std::function<void(int64_t length, size_t backend, bool timed)>& request) {
  const int64_t rounds = plan.warmups + plan.repetitions;
  double total = 0;  // in tokens: long prompts take most of the time
  for (const int64_t length : plan.lengths) total += static_cast<double>(length * rounds);
  total *= static_cast<double>(backends.size());
  double done = 0;
  for (const int64_t length : plan.lengths) {
    for (int64_t round = 0; round < rounds; ++round) {
      const bool timed = round >= plan.warmups;
      for (size_t i = 0; i < backends.size(); ++i) {
        const auto turn = static_cast<size_t>(std::max<int64_t>(0, round - plan.warmups));
        const size_t backend = (i + turn) % backends.size();
        progress(fmt::format("{} at {} tokens: {}", backends[backend], length,
                             timed ? "timing" : "warm-up"),
                 done / total);
        request(length, backend, timed);
        done += static_cast<double>(length);
      }
    }
  }
}

}  // namespace fovea::cli
