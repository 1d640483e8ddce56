#include "fovea/quality/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "fovea/base/checked_math.h"
#include "fovea/quality/story.h"

namespace fovea::quality {
namespace {

struct Fact {
  std::string adjective, name, value;
  double depth = 0;

  FormValues values() const { return {{"adj", adjective}, {"name", name}, {"value", value}}; }
};

// Facts about pairs of an adjective and a name, each pair once, over few names when there are many
// facts. Values and depths are not set.
std::vector<Fact> draw_subjects(int64_t num_facts, std::span<const std::string> names,
                                Random& random) {
  constexpr int64_t kFactsPerName = 4;
  const std::vector<std::string>& adjectives = task_forms().adjectives;
  const int64_t num_names = std::min<int64_t>(static_cast<int64_t>(names.size()),
                                              std::max<int64_t>(8, num_facts / kFactsPerName));
  check_argument(num_facts <= num_names * static_cast<int64_t>(adjectives.size()),
                 "{} facts need more names than the {} that the text gave", num_facts,
                 names.size());
  std::vector<std::string> unused(names.begin(), names.end());
  std::vector<Fact> subjects;
  for (int64_t i = 0; i < num_names; ++i) {
    const std::string name = draw_and_remove(unused, random);
    for (const std::string& adjective : adjectives) subjects.push_back({adjective, name, {}, 0});
  }
  std::vector<Fact> drawn;
  for (int64_t i = 0; i < num_facts; ++i) drawn.push_back(draw_and_remove(subjects, random));
  return drawn;
}

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
  const int64_t num_facts = checked_add(settings.num_questions, settings.num_distractors, "facts");
  check_argument(num_facts < settings.length,
                 "a prompt of {} tokens has no room for {} facts and a question", settings.length,
                 num_facts);

  Random random(settings.seed * 1000003u + static_cast<uint64_t>(index));
  std::vector<Fact> facts = draw_subjects(num_facts, names, random);
  Story story;
  for (Fact& fact : facts) {
    fact.value = fmt::format("{:05}", random.below(100000));
    const double position = num_facts > 1 ? random.unit()
                                          : (static_cast<double>(index) + random.unit()) /
                                                static_cast<double>(num_tasks);
    fact.depth = 0.97 * position;
    story.hidden.push_back({fill_form(task_forms().sentence("fact"), fact.values()), fact.depth});
  }
  const std::vector<std::string> gap = {"value"};
  for (int64_t i = 0; i < settings.num_questions; ++i) {
    const auto at = static_cast<size_t>(i);
    Cloze cloze = make_cloze(task_forms().sentence("recall"), facts[at].values(), gap);
    cloze.gaps[0].fact = story.hidden[at].text;
    cloze.gaps[0].depth = story.hidden[at].depth;
    story.clozes.push_back(std::move(cloze));
  }
  return lay_out(std::move(story),
                 {.length = settings.length, .seed = settings.seed, .bos_id = settings.bos_id},
                 filler, encode, random);
}

bool is_needle_answer(std::string_view continuation, std::string_view answer) {
  const size_t first = continuation.find_first_not_of(" \n\t");
  if (first == std::string_view::npos) return false;
  continuation.remove_prefix(first);
  if (continuation.substr(0, answer.size()) != answer) return false;
  return continuation.size() == answer.size() || !is_digit(continuation[answer.size()]);
}

}  // namespace fovea::quality
