#include "apps/cli/eval_equal_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "apps/cli/report_json.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

using quality::PairedValues;

const char* clock_name(EvalClock clock) {
  return clock == EvalClock::kPrefill ? "prefill" : "attention and selection";
}

double time_of(const EvalRow& row, EvalClock clock) {
  return median(clock == EvalClock::kPrefill ? row.prefill_ms : row.attention_ms);
}

double mean_score(const PromptRecord& record) {
  return std::accumulate(record.scores.begin(), record.scores.end(), 0.0) /
         static_cast<double>(record.scores.size());
}

// A point between two rows of one method: `weight` of `slower`, the rest of `faster`.
struct Mixture {
  const EvalRow* faster;
  const EvalRow* slower;
  double weight;

  double of(double at_faster, double at_slower) const {
    return at_faster + weight * (at_slower - at_faster);
  }
};

// Where a method, its rows in order of time, takes `time_ms`, or the row that keeps most where none
// takes longer; null when all its rows take longer.
std::optional<Mixture> at_time(const std::vector<const EvalRow*>& rows, EvalClock clock,
                               double time_ms) {
  const auto slower = std::find_if(
      rows.begin(), rows.end(), [&](const EvalRow* row) { return time_of(*row, clock) > time_ms; });
  if (slower == rows.begin()) return std::nullopt;
  if (slower == rows.end()) {
    const EvalRow* densest = *std::max_element(
        rows.begin(), rows.end(),
        [](const EvalRow* a, const EvalRow* b) { return a->mean_density() < b->mean_density(); });
    return Mixture{densest, densest, 0};
  }
  const EvalRow* faster = *(slower - 1);
  const double begin = time_of(*faster, clock);
  return Mixture{faster, *slower, (time_ms - begin) / (time_of(**slower, clock) - begin)};
}

quality::Difference difference_at(const Evaluation& evaluation, const EvalGroup& group,
                                  const Mixture& mixture, const EvalRow& reference, uint64_t seed) {
  std::vector<PairedValues> pairs;
  for (const size_t subject : group.subjects) {
    const auto& faster = evaluation.find(subject, mixture.faster->variant)->records;
    const auto& slower = evaluation.find(subject, mixture.slower->variant)->records;
    const auto& other = evaluation.find(subject, reference.variant)->records;
    PairedValues& values = pairs.emplace_back();
    const size_t count = std::min({faster.size(), slower.size(), other.size()});
    for (size_t i = 0; i < count; ++i) {
      values.a.push_back(mixture.of(mean_score(faster[i]), mean_score(slower[i])));
      values.b.push_back(mean_score(other[i]));
    }
  }
  return quality::paired_difference(pairs, {.seed = seed});
}

}  // namespace

std::vector<EqualTimeRow> compare_at_equal_time(const Evaluation& evaluation,
                                                const EvalGroup& group,
                                                const std::string& reference, uint64_t seed) {
  const auto variant_of = [&](const EvalRow& row) -> const EvalVariant& {
    return evaluation.variants[row.variant];
  };
  // By blocks, periphery and method.
  std::map<std::tuple<int64_t, bool, std::string>, std::vector<const EvalRow*>> methods;
  for (const EvalRow& row : group.rows) {
    const EvalVariant& variant = variant_of(row);
    if (!variant.density) continue;
    methods[{variant.settings.selector->block_size, variant.settings.periphery, variant.attention}]
        .push_back(&row);
  }
  std::vector<EqualTimeRow> result;
  for (const EvalClock clock : {EvalClock::kPrefill, EvalClock::kAttention}) {
    const bool has_clock =
        std::all_of(group.rows.begin(), group.rows.end(), [&](const EvalRow& row) {
          return clock == EvalClock::kPrefill || !row.attention_ms.empty();
        });
    if (!has_clock) continue;
    for (auto& [name, rows] : methods) {
      const auto& [block_size, periphery, attention] = name;
      const auto references = methods.find({block_size, periphery, reference});
      if (attention == reference || references == methods.end()) continue;
      std::sort(rows.begin(), rows.end(), [&](const EvalRow* a, const EvalRow* b) {
        return time_of(*a, clock) < time_of(*b, clock);
      });
      for (const EvalRow* other : references->second) {
        const double time_ms = time_of(*other, clock);
        const std::optional<Mixture> mixture = at_time(rows, clock, time_ms);
        if (!mixture) continue;
        EqualTimeRow row;
        row.reference = other->variant;
        row.attention = attention;
        row.clock = clock;
        row.time_ms = time_ms;
        row.density = mixture->of(mixture->faster->mean_density(), mixture->slower->mean_density());
        row.is_densest = mixture->faster == mixture->slower;
        row.difference = difference_at(evaluation, group, *mixture, *other, seed);
        result.push_back(row);
      }
    }
  }
  return result;
}

worth::ReportTable equal_time_table(const Evaluation& evaluation,
                                    const std::vector<EqualTimeRow>& rows) {
  const bool with_block_size = block_sizes_differ(evaluation.variants);
  worth::ReportTable table;
  table.header = {"attention", "at the time of", "counted",
                  "time",      "keeps",          "score above it, significant"};
  for (const EqualTimeRow& row : rows) {
    table.rows.push_back({row.attention, evaluation.variants[row.reference].name(with_block_size),
                          clock_name(row.clock), format_seconds(row.time_ms / 1e3),
                          fmt::format("{:.2f} %{}", 100 * row.density,
                                      row.is_densest ? ", its most, and is faster" : ""),
                          difference_text(row.difference)});
  }
  return table;
}

nlohmann::json equal_time_json(const Evaluation& evaluation, const EvalGroup& group,
                               const std::vector<EqualTimeRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const EqualTimeRow& row : rows) {
    list.push_back({{group.is_text ? "text" : "task", group.name},
                    {"length", group.length},
                    {"is_average", group.is_average},
                    {"attention", row.attention},
                    {"at_the_time_of", evaluation.variants[row.reference].name(true)},
                    {"counted", clock_name(row.clock)},
                    {"time_ms", row.time_ms},
                    {"density", row.density},
                    {"is_densest", row.is_densest},
                    {"difference", difference_json(row.difference)}});
  }
  return list;
}

}  // namespace fovea::cli
