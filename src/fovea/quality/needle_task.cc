#include "fovea/quality/needle_task.h"

#include <set>

#include "fovea/base/error.h"
#include "fovea/quality/kinds.h"

namespace fovea::quality {
namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_word(char c) {
  return is_lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::vector<std::string> needle_names(std::string_view text, const EncodeFunction& encode) {
  std::set<std::string, std::less<>> words;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at == 0 || text[at - 1] != ' ' || !is_lower(text[at])) continue;
    size_t end = at;
    while (end < text.size() && is_lower(text[end])) ++end;
    const bool ends = end == text.size() || !is_word(text[end]);
    if (ends && end - at >= 4) words.emplace(text.substr(at, end - at));
    at = end;
  }
  for (const std::string& adjective : task_forms().adjectives) words.erase(adjective);
  std::vector<std::string> names;
  for (const std::string& word : words) {
    if (encode(" " + word).size() == 1) names.push_back(word);
  }
  return names;
}

Task make_needle_task(const NeedleSettings& settings, int64_t index, int64_t num_tasks,
                      std::span<const int32_t> filler, std::span<const std::string> names,
                      const EncodeFunction& encode) {
  check_argument(num_tasks > 0 && index >= 0 && index < num_tasks,
                 "needle task {} is not one of {}", index, num_tasks);
  check_argument(settings.num_questions > 0, "num_questions must be positive, is {}",
                 settings.num_questions);
  check_argument(settings.num_distractors >= 0, "num_distractors must not be negative, is {}",
                 settings.num_distractors);
  Random random = task_random(settings.seed, index);
  const StorySource source = {task_forms().forced, false, settings.length, names, encode, random};
  const Story story = code_story(source, {.num_questions = settings.num_questions,
                                          .num_distractors = settings.num_distractors,
                                          .index = index,
                                          .num_tasks = num_tasks});
  return lay_out_forced(
      story, {.length = settings.length, .seed = settings.seed, .bos_id = settings.bos_id},
      {filler, encode}, random);
}

bool is_needle_answer(std::string_view continuation, std::string_view answer) {
  const size_t first = continuation.find_first_not_of(" \n\t");
  if (first == std::string_view::npos) return false;
  continuation.remove_prefix(first);
  if (continuation.substr(0, answer.size()) != answer) return false;
  return continuation.size() == answer.size() || !is_digit(continuation[answer.size()]);
}

}  // namespace fovea::quality
