#include "apps/cli/eval_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/cli/report_json.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

using quality::BootstrapSettings;
using quality::Difference;
using quality::PairedValues;

// Rows of which forced blocks are a larger share say little about their method.
constexpr double kMostlyForced = 0.75;

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Means of the prompts that both cells have.
PairedValues paired_scores(const EvalCell& a, const EvalCell& b) {
  PairedValues pairs;
  const size_t count = std::min(a.records.size(), b.records.size());
  for (size_t i = 0; i < count; ++i) {
    pairs.a.push_back(mean_of(a.records[i].scores));
    pairs.b.push_back(mean_of(b.records[i].scores));
  }
  return pairs;
}

// Nats above dense, which is at zero.
PairedValues nll_above_dense(const EvalCell& cell) {
  PairedValues pairs;
  for (const PromptRecord& record : cell.records) {
    pairs.a.push_back(mean_of(record.nll_difference));
    pairs.b.push_back(0);
  }
  return pairs;
}

/// Makes rows; holds what they all need.
class Summarizer {
 public:
  Summarizer(const Evaluation& evaluation, const std::string& reference, uint64_t seed)
      : evaluation_(evaluation), bootstrap_{.seed = seed} {
    for (size_t v = 0; v < evaluation.variants.size(); ++v) {
      references_.push_back(reference_of(v, reference));
    }
  }

  EvalRow row_of(size_t subject, size_t variant) const {
    const EvalCell& cell = *cell_of(subject, variant);
    EvalRow row = row_of_densities({&cell}, variant);
    std::vector<quality::PromptScores> scores;
    for (const PromptRecord& record : cell.records) scores.push_back(record.scores);
    row.score = quality::mean_score(scores);
    compare(&row, {subject});
    if (evaluation_.subjects[subject]->is_text() && variant > 0) {
      row.nll = quality::paired_difference(std::vector{nll_above_dense(cell)}, bootstrap_);
    }
    return row;
  }

  /// The average over subjects that all have a cell of this variant.
  EvalRow average_of(const std::vector<size_t>& subjects, size_t variant) const {
    std::vector<const EvalCell*> cells;
    std::vector<PairedValues> above_zero;  // a mean is a difference from zero
    double largest_loss = 0;
    size_t worst = subjects.front();
    for (const size_t subject : subjects) {
      const EvalCell* cell = cells.emplace_back(cell_of(subject, variant));
      PairedValues& values = above_zero.emplace_back(paired_scores(*cell, *cell));
      const double loss = mean_of(paired_scores(*cell_of(subject, 0), *cell).a) - mean_of(values.a);
      if (loss > largest_loss) {
        largest_loss = loss;
        worst = subject;
      }
      std::fill(values.b.begin(), values.b.end(), 0.0);
    }
    EvalRow row = row_of_densities(cells, variant);
    const Difference mean = quality::paired_difference(above_zero, bootstrap_);
    row.score = {mean.mean, mean.interval, mean.num_prompts, 0};
    for (const EvalCell* cell : cells) {
      for (const PromptRecord& record : cell->records) {
        row.score.num_questions += static_cast<int64_t>(record.scores.size());
      }
    }
    compare(&row, subjects);
    if (largest_loss > 0) row.worst_subject = evaluation_.subjects[worst]->name();
    row.worst_score = mean_of(paired_scores(*cell_of(worst, variant), *cell_of(worst, variant)).a);
    return row;
  }

  /// The cell when it has records.
  const EvalCell* cell_of(size_t subject, size_t variant) const {
    const EvalCell* cell = evaluation_.find(subject, variant);
    return cell != nullptr && !cell->records.empty() ? cell : nullptr;
  }

 private:
  // The variant that `variant` is compared with: of the reference's method and else the same.
  std::optional<size_t> reference_of(size_t variant, const std::string& reference) const {
    const EvalVariant& own = evaluation_.variants[variant];
    if (own.is_dense() || own.attention == reference) return std::nullopt;
    for (size_t v = 1; v < evaluation_.variants.size(); ++v) {
      const EvalVariant& other = evaluation_.variants[v];
      if (other.attention == reference && other.density == own.density &&
          other.settings.periphery == own.settings.periphery &&
          other.settings.selector->block_size == own.settings.selector->block_size) {
        return v;
      }
    }
    return std::nullopt;
  }

  static EvalRow row_of_densities(const std::vector<const EvalCell*>& cells, size_t variant) {
    EvalRow row;
    row.variant = variant;
    for (const EvalCell* cell : cells) {
      for (const PromptRecord& record : cell->records) {
        row.density.push_back(record.density);
        row.prefill_ms.push_back(record.prefill_ms);
        if (record.attention_ms) row.attention_ms.push_back(*record.attention_ms);
      }
      if (row.attention_ms.size() < row.prefill_ms.size()) row.attention_ms.clear();
      if (cell->budget.setting > 0) {
        row.matched = row.matched && cell->budget.matched;
        if (cells.size() == 1) row.density_setting = cell->budget.setting;
      }
    }
    return row;
  }

  void compare(EvalRow* row, const std::vector<size_t>& subjects) const {
    if (row->variant == 0) return;
    row->against_dense = difference_from(row->variant, 0, subjects);
    if (const std::optional<size_t> reference = references_[row->variant]) {
      row->against_reference = difference_from(row->variant, *reference, subjects);
    }
  }

  std::optional<Difference> difference_from(size_t variant, size_t other,
                                            const std::vector<size_t>& subjects) const {
    std::vector<PairedValues> groups;
    for (const size_t subject : subjects) {
      const EvalCell* cell = cell_of(subject, other);
      if (cell == nullptr) return std::nullopt;
      groups.push_back(paired_scores(*cell_of(subject, variant), *cell));
    }
    return quality::paired_difference(groups, bootstrap_);
  }

  const Evaluation& evaluation_;
  BootstrapSettings bootstrap_;
  std::vector<std::optional<size_t>> references_;  // by variant
};

// The subjects of one length that are averaged: all tasks, or all texts.
std::vector<size_t> subjects_like(const Evaluation& evaluation, size_t subject) {
  std::vector<size_t> alike;
  const EvalSubject& first = *evaluation.subjects[subject];
  for (size_t s = 0; s < evaluation.subjects.size(); ++s) {
    const EvalSubject& other = *evaluation.subjects[s];
    if (other.length() == first.length() && other.is_text() == first.is_text()) alike.push_back(s);
  }
  return alike;
}

// "0.812 (0.700-0.891)"
std::string score_text(const quality::MeanScore& score) {
  const std::string value = fmt::format("{:.3f}", score.value);
  if (std::isnan(score.interval.low)) return value;
  return fmt::format("{} ({:.3f}-{:.3f})", value, score.interval.low, score.interval.high);
}

}  // namespace

double EvalRow::mean_density() const { return mean_of(density); }

std::string EvalGroup::title() const { return fmt::format("{}, {} tokens", name, length); }

std::string difference_text(const std::optional<Difference>& difference) {
  if (!difference) return "-";
  if (std::isnan(difference->interval.low)) return fmt::format("{:+.3f}", difference->mean);
  return fmt::format("{:+.3f} ({:+.3f} to {:+.3f}) {}", difference->mean, difference->interval.low,
                     difference->interval.high, difference->significant ? "yes" : "no");
}

nlohmann::json difference_json(const std::optional<Difference>& difference) {
  if (!difference) return nullptr;
  return {{"difference", difference->mean},
          {"low", difference->interval.low},
          {"high", difference->interval.high},
          {"num_prompts", difference->num_prompts},
          {"num_differing", difference->num_differing},
          {"significant", difference->significant}};
}

std::vector<EvalGroup> summarize(const Evaluation& evaluation, const std::string& reference,
                                 uint64_t seed) {
  const Summarizer summarizer(evaluation, reference, seed);
  std::vector<EvalGroup> groups;
  for (size_t s = 0; s < evaluation.subjects.size(); ++s) {
    const EvalSubject& subject = *evaluation.subjects[s];
    const std::vector<size_t> alike = subjects_like(evaluation, s);
    if (alike.size() > 1 && alike.front() == s) {
      EvalGroup average{
          fmt::format("average of {} {}", alike.size(), subject.is_text() ? "texts" : "tasks"),
          subject.length(),
          subject.is_text(),
          true,
          alike,
          {}};
      for (size_t v = 0; v < evaluation.variants.size(); ++v) {
        const bool measured = std::all_of(alike.begin(), alike.end(), [&](size_t other) {
          return summarizer.cell_of(other, v) != nullptr;
        });
        if (measured) average.rows.push_back(summarizer.average_of(alike, v));
      }
      if (!average.rows.empty()) groups.push_back(std::move(average));
    }
    EvalGroup group{subject.name(), subject.length(), subject.is_text(), false, {s}, {}};
    for (size_t v = 0; v < evaluation.variants.size(); ++v) {
      if (summarizer.cell_of(s, v) != nullptr) group.rows.push_back(summarizer.row_of(s, v));
    }
    if (!group.rows.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

nlohmann::json rows_json(const Evaluation& evaluation, const std::vector<EvalGroup>& groups,
                         const std::string& reference) {
  nlohmann::json rows = nlohmann::json::array();
  for (const EvalGroup& group : groups) {
    for (const EvalRow& row : group.rows) {
      const EvalVariant& variant = evaluation.variants[row.variant];
      nlohmann::json json = {{group.is_text ? "text" : "task", group.name},
                             {"length", group.length},
                             {"is_average", group.is_average},
                             {"attention", variant.attention},
                             {"periphery", variant.settings.periphery ? "mean" : "none"},
                             {"num_prompts", row.score.num_prompts},
                             {"num_questions", row.score.num_questions},
                             {"score", row.score.value},
                             {"score_low", row.score.interval.low},
                             {"score_high", row.score.interval.high},
                             {"density", summary_json(row.density)},
                             {"density_matched", row.matched},
                             {"against_dense", difference_json(row.against_dense)},
                             {"prefill_ms", summary_json(row.prefill_ms)},
                             {"attention_and_selection_ms", summary_json(row.attention_ms)}};
      json["density_asked"] = variant.density ? nlohmann::json(*variant.density) : nullptr;
      json["density_setting"] =
          row.density_setting ? nlohmann::json(*row.density_setting) : nullptr;
      json["block_size"] =
          variant.is_dense() ? nullptr : nlohmann::json(variant.settings.selector->block_size);
      if (!reference.empty()) json["against_" + reference] = difference_json(row.against_reference);
      if (group.is_text && !group.is_average) json["nll_above_dense"] = difference_json(row.nll);
      if (group.is_average) {
        json["worst"] = row.worst_subject;
        json["worst_score"] = row.worst_score;
      }
      rows.push_back(std::move(json));
    }
  }
  return rows;
}

worth::ReportTable group_table(const Evaluation& evaluation, const EvalGroup& group,
                               const std::string& reference) {
  const bool with_block_size = block_sizes_differ(evaluation.variants);
  worth::ReportTable table;
  table.header = {"attention", group.is_text ? "agrees with dense (95 %)" : "score (95 %)"};
  if (group.is_average) table.header.emplace_back("worst");
  table.header.emplace_back("against dense, significant");
  if (!reference.empty()) table.header.push_back("against " + reference);
  const bool has_nll = group.is_text && !group.is_average;
  if (has_nll) table.header.emplace_back("nats above dense");
  table.header.insert(table.header.end(), {"density", "n", "prefill"});
  for (const EvalRow& row : group.rows) {
    const EvalVariant& variant = evaluation.variants[row.variant];
    std::vector<std::string> cells = {variant.name(with_block_size), score_text(row.score)};
    if (group.is_average) {
      cells.push_back(row.worst_subject.empty()
                          ? "-"
                          : fmt::format("{:.3f} {}", row.worst_score, row.worst_subject));
    }
    cells.push_back(difference_text(row.against_dense));
    if (!reference.empty()) cells.push_back(difference_text(row.against_reference));
    if (has_nll) cells.push_back(difference_text(row.nll));
    cells.push_back(
        fmt::format("{:.2f} %{}", 100 * row.mean_density(), row.matched ? "" : " (missed)"));
    cells.push_back(fmt::format("{}", row.score.num_questions));
    cells.push_back(format_seconds(median(row.prefill_ms) / 1e3));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

namespace {

// A method that could leave blocks out and kept all, as it does below the break-even length.
bool was_read_densely(const EvalVariant& variant, const EvalRow& row, double forced) {
  return variant.settings.min_sparse_len != 0 && forced < 1 && row.mean_density() >= 1;
}

}  // namespace

std::vector<std::string> summary_notes(const Evaluation& evaluation,
                                       const std::vector<EvalGroup>& groups) {
  int64_t num_missed = 0, num_forced = 0, num_dense = 0;
  double largest = 0;
  for (const EvalGroup& group : groups) {
    for (const EvalRow& row : group.rows) {
      const EvalVariant& variant = evaluation.variants[row.variant];
      if (group.is_average || !variant.density) continue;
      const double forced = quality::forced_density(*variant.settings.selector, group.length);
      if (was_read_densely(variant, row, forced)) {
        ++num_dense;
        continue;
      }
      if (forced > row.mean_density() * kMostlyForced) ++num_forced;
      if (row.matched) continue;
      ++num_missed;
      largest = std::max(largest, std::abs(row.mean_density() - *variant.density));
    }
  }
  std::vector<std::string> notes;
  if (num_dense > 0) {
    notes.push_back(fmt::format(
        "{} row{} read densely: the prompts are below the length at which sparse attention is "
        "faster; --min-sparse-len 0 reads them sparsely all the same",
        num_dense, num_dense == 1 ? " was" : "s were"));
  }
  if (num_missed > 0) {
    notes.push_back(fmt::format(
        "{} row{} marked \"missed\": no budget comes within 0.1 points of the density asked for, "
        "off "
        "by up to {:.2f} points (forced blocks keep more, or blocks are too few to hit it)",
        num_missed, num_missed == 1 ? " is" : "s are", 100 * largest));
  }
  if (num_forced > 0) {
    notes.push_back(fmt::format(
        "{} row{} more than {:.0f} % forced blocks, the same for every method: fewer --sink-blocks "
        "and --local-blocks leave more to choose",
        num_forced, num_forced == 1 ? " is" : "s are", 100 * kMostlyForced));
  }
  return notes;
}

}  // namespace fovea::cli
