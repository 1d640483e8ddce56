// Goes through an evaluation's cells, prompt by prompt, where the journal says it is not done.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/cli/eval_journal.h"
#include "apps/cli/eval_plan.h"
#include "apps/cli/eval_subject.h"
#include "fovea/engine/model.h"
#include "fovea/quality/match_density.h"

namespace fovea::cli {

/// One attention on one subject.
struct EvalCell {
  size_t subject = 0;  // of the evaluation's, like `variant`
  size_t variant = 0;
  quality::MatchedBudget budget;      // zeros where no density was asked for
  std::vector<PromptRecord> records;  // the first prompts, all of them unless interrupted
};

struct Evaluation {
  std::vector<std::unique_ptr<EvalSubject>> subjects;
  std::vector<EvalVariant> variants;  // the first is dense
  std::vector<EvalCell> cells;        // subject by subject, in the order of the variants
  bool finished = false;

  /// The cell of a subject under a variant; null where none was begun.
  const EvalCell* find(size_t subject, size_t variant) const;
};

/// Fills `evaluation->cells`; at Ctrl-C with what is there by then, `finished` left false.
///
/// One prompt is read at a time: a prefill keeps every core, or the GPU, busy by itself. Where a
/// density is asked for, the budget is set so that the first prompts are read at that density, see
/// quality/match_density.h. Throws as Session does and EvalJournal::append.
void run_evaluation(const std::shared_ptr<const Model>& model, EvalJournal* journal,
                    Evaluation* evaluation);

}  // namespace fovea::cli
