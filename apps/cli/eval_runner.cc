#include "apps/cli/eval_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_json.h"
#include "apps/cli/text_io.h"

namespace fovea::cli {
namespace {

// Prompts that a budget is matched on.
constexpr int64_t kMatchedPrompts = 4;

/// Reads the prompts of one subject under one variant.
class CellRunner {
 public:
  CellRunner(const std::shared_ptr<const Model>& model, EvalJournal* journal,
             const EvalSubject& subject, const EvalVariant& variant, const EvalCell* dense,
             std::function<void(int64_t prompt, double share)> progress)
      : model_(model),
        journal_(journal),
        subject_(subject),
        variant_(variant),
        dense_(dense),
        progress_(std::move(progress)) {}

  void run(EvalCell* cell) {
    use(variant_.settings);
    if (variant_.density) {
      const auto plan = [this](double setting) {
        return quality::planned_density(variant_.with_budget(setting), model_->config(),
                                        subject_.length());
      };
      cell->budget = quality::match_density(*variant_.density, plan, [this](double setting) {
        use(variant_.with_budget(setting));
        return density_of_first_prompts();
      });
      use(variant_.with_budget(cell->budget.setting));
    }
    for (int64_t prompt = 0; prompt < subject_.num_prompts(); ++prompt) {
      cell->records.push_back(read(prompt));
    }
  }

 private:
  void use(const AttentionSettings& settings) {
    settings_ = settings;
    key_ = text_hash(subject_.key() + json_text(to_json(settings), -1));
    session_.reset();
  }

  double density_of_first_prompts() {
    const int64_t count = std::min(kMatchedPrompts, subject_.num_prompts());
    double sum = 0;
    for (int64_t prompt = 0; prompt < count; ++prompt) sum += read(prompt).density;
    return sum / static_cast<double>(count);
  }

  // The journal's record, or a new one.
  const PromptRecord& read(int64_t prompt) {
    if (const PromptRecord* done = journal_->find(key_, prompt)) return *done;
    if (interrupted()) throw Cancelled();
    if (!session_) {
      SessionOptions options;
      options.attention = settings_;
      options.max_len = subject_.length();
      session_.emplace(model_, options);
    }
    PrefillOptions prefill;
    prefill.cancel = &interrupt_flag();
    prefill.progress = [&](double share) { progress_(prompt, share); };
    const PromptRecord* dense =
        dense_ != nullptr ? &dense_->records.at(static_cast<size_t>(prompt)) : nullptr;
    journal_->append(key_, prompt, labels(), subject_.ask(*session_, prompt, prefill, dense));
    return *journal_->find(key_, prompt);
  }

  nlohmann::json labels() const {
    nlohmann::json labels = {{"subject", subject_.name()},
                             {"length", subject_.length()},
                             {"attention", variant_.name(true)}};
    if (settings_.selector) labels["density_setting"] = settings_.selector->density;
    return labels;
  }

  const std::shared_ptr<const Model>& model_;
  EvalJournal* journal_;
  const EvalSubject& subject_;
  const EvalVariant& variant_;
  const EvalCell* dense_;  // of the same subject
  std::function<void(int64_t, double)> progress_;
  AttentionSettings settings_;
  std::string key_;
  std::optional<Session> session_;
};

}  // namespace

const EvalCell* Evaluation::find(size_t subject, size_t variant) const {
  for (const EvalCell& cell : cells) {
    if (cell.subject == subject && cell.variant == variant) return &cell;
  }
  return nullptr;
}

void run_evaluation(const std::shared_ptr<const Model>& model, EvalJournal* journal,
                    Evaluation* evaluation) {
  const std::vector<EvalVariant>& variants = evaluation->variants;
  int64_t num_prompts = 0;
  for (const auto& subject : evaluation->subjects) {
    num_prompts += subject->num_prompts() * static_cast<int64_t>(variants.size());
  }
  evaluation->cells.reserve(evaluation->subjects.size() * variants.size());  // cells do not move
  const bool with_block_size = block_sizes_differ(variants);
  int64_t num_done = 0;
  ProgressBar bar;
  try {
    for (size_t s = 0; s < evaluation->subjects.size(); ++s) {
      const EvalSubject& subject = *evaluation->subjects[s];
      const EvalCell* dense = nullptr;
      for (size_t v = 0; v < variants.size(); ++v) {
        EvalCell& cell = evaluation->cells.emplace_back();
        cell.subject = s;
        cell.variant = v;
        const std::string label =
            fmt::format("{}, {}, {} tokens", variants[v].name(with_block_size), subject.name(),
                        subject.length());
        CellRunner runner(
            model, journal, subject, variants[v], dense, [&](int64_t prompt, double share) {
              const double done = static_cast<double>(num_done + prompt) + share;
              bar.update(label, static_cast<int64_t>(done * 1000), num_prompts * 1000);
            });
        runner.run(&cell);
        if (v == 0) dense = &cell;
        num_done += subject.num_prompts();
      }
    }
    evaluation->finished = true;
  } catch (const Cancelled&) {
    // What is whole is reported; the caller says that it is not all.
  }
}

}  // namespace fovea::cli
