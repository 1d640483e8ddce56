// Retrieval tasks: facts hidden in a long text, and a question about one of them or several.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/quality/task.h"

namespace fovea::quality {

struct NeedleSettings {
  int64_t length = 32768;                        // tokens of the whole prompt and its last answer
  std::optional<int32_t> bos_id = std::nullopt;  // first token of the prompt, if the model has one
  int64_t num_questions = 1;    // each about a fact of its own, all but the last one answered
  int64_t num_distractors = 0;  // more facts of the same form, that nobody asks about
  uint64_t seed = 1;
};

/// Words that `encode` makes one token of when they follow a space: names for facts to be about.
/// Drawn from `text`: lower-case ASCII words of four letters or more, sorted, each once.
std::vector<std::string> needle_names(std::string_view text, const EncodeFunction& encode);

/// Makes task `index` of `num_tasks`: the same arguments give the same task.
///
/// With one question and no distractor the facts of the tasks lie at depths spread evenly over them
/// (task `index` in (index + random) / num_tasks of the first 97 %); else depths are random. Facts
/// share names and adjectives, four facts a name or so, so that only the pair tells one from its
/// look-alikes. The text around them is a stretch of `filler` from a random place. Throws
/// kInvalidArgument when `filler` is shorter than the prompt, the prompt too short for its facts,
/// or the names too few for them.
Task make_needle_task(const NeedleSettings& settings, int64_t index, int64_t num_tasks,
                      std::span<const int32_t> filler, std::span<const std::string> names,
                      const EncodeFunction& encode);

/// Whether a model's continuation gives the answer: after blanks, exactly its digits and then no
/// digit.
bool is_needle_answer(std::string_view continuation, std::string_view answer);

}  // namespace fovea::quality
