// The stories behind the kinds of tasks. The sentences are those of data/task_forms.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/quality/story.h"

namespace fovea::quality {

/// What every story is made from.
struct StorySource {
  const FormSet& forms;
  bool generated;  // for a chat model: words need not be one token, so new ones may be made up
  int64_t length;  // of the prompt, in tokens
  std::span<const std::string> names;
  const EncodeFunction& encode;
  Random& random;
};

/// Facts about pairs of an adjective and a name, and questions about the first of them.
struct CodeSettings {
  int64_t num_questions = 1;
  int64_t num_distractors = 0;       // more facts, that nobody asks about
  bool two_word_names = false;       // of which look-alikes share one
  bool words = false;                // values are words, not numbers
  int64_t values_per_key = 1;        // more than 1: the one question is about all of them
  std::string_view form = "recall";  // of the question
  /// Where the only fact of a task without distractors stands: in the (index + random) / num_tasks
  /// part of the text.
  int64_t index = 0;
  int64_t num_tasks = 1;
};
Story code_story(const StorySource& source, const CodeSettings& settings);

/// Variables set to numbers and to other variables, four in a row; one row is asked for.
Story trace_story(const StorySource& source);

/// Lists of words, few of which occur often: all equally often (RULER's CWE), or by Zipf's law
/// (FWE).
enum class WordCounts { kCommon, kFrequent };
Story word_story(const StorySource& source, WordCounts counts);

/// Who lives where, one sentence each.
Story home_story(const StorySource& source);
/// Who works for which office, and where that is: two sentences to find.
Story office_story(const StorySource& source);

}  // namespace fovea::quality
