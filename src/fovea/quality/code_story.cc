#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"
#include "fovea/quality/kinds.h"

namespace fovea::quality {
namespace {

struct Fact {
  std::string adjective, name, value;
  Hidden sentence;

  FormValues values() const {
    return {{"adj", adjective}, {"name", name}, {"value", value}, {"word", value}};
  }
};

// "apple river", "apple stone", "river apple" ...: pairs out of few words.
std::vector<std::string> pair_names(int64_t count, std::span<const std::string> words,
                                    Random& random) {
  const auto num_words = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count)))) + 1;
  check_argument(num_words <= static_cast<int64_t>(words.size()),
                 "{} names of two words need more words than the {} that the text gave", count,
                 words.size());
  std::vector<std::string> unused(words.begin(), words.end());
  std::vector<std::string> drawn;
  for (int64_t i = 0; i < num_words; ++i) drawn.push_back(draw_and_remove(unused, random));
  std::vector<std::string> names;
  for (const std::string& first : drawn) {
    for (const std::string& second : drawn) {
      if (first != second) names.push_back(first + " " + second);
    }
  }
  return names;
}

// Facts about pairs of an adjective and a name, each pair once, over few names when there are many
// facts. Values and places are not set.
std::vector<Fact> draw_subjects(int64_t num_facts, std::span<const std::string> words,
                                bool two_word_names, Random& random) {
  constexpr int64_t kFactsPerName = 4;
  const std::vector<std::string>& adjectives = task_forms().adjectives;
  const int64_t num_wanted = std::max<int64_t>(8, num_facts / kFactsPerName);
  std::vector<std::string> names(words.begin(), words.end());
  if (two_word_names) names = pair_names(num_wanted, words, random);
  const int64_t num_names = std::min(static_cast<int64_t>(names.size()), num_wanted);
  check_argument(num_facts <= num_names * static_cast<int64_t>(adjectives.size()),
                 "{} facts need more names than the {} that the text gave", num_facts,
                 words.size());
  std::vector<Fact> subjects;
  for (int64_t i = 0; i < num_names; ++i) {
    const std::string name = draw_and_remove(names, random);
    for (const std::string& adjective : adjectives) subjects.push_back({adjective, name, {}, {}});
  }
  std::vector<Fact> drawn;
  for (int64_t i = 0; i < num_facts; ++i) drawn.push_back(draw_and_remove(subjects, random));
  return drawn;
}

// "the red code of apple, the blue code of pear and the old code of apple"
std::string joined(std::span<const std::string> parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 < parts.size() ? ", " : " and ";
    text += parts[i];
  }
  return text;
}

// The gaps of one question about all `facts`, which share their key, in the order of the text.
Cloze list_cloze(std::string_view form, std::span<Fact> facts) {
  std::stable_sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) {
    return a.sentence.depth < b.sentence.depth;
  });
  FormValues values = facts.front().values();
  std::vector<std::string> gaps;
  std::vector<Hidden> sentences;
  for (const Fact& fact : facts) {
    gaps.push_back(fmt::format("value{}", gaps.size() + 1));
    values[gaps.back()] = fact.value;
    sentences.push_back(fact.sentence);
  }
  return make_cloze(form, values, gaps, sentences);
}

}  // namespace

Story code_story(const StorySource& source, const CodeSettings& settings) {
  const int64_t num_keys = checked_add(settings.num_questions, settings.num_distractors, "facts");
  check_argument(num_keys < source.length,
                 "a prompt of {} tokens has no room for {} facts and a question", source.length,
                 num_keys);
  std::vector<Fact> facts =
      draw_subjects(num_keys, source.names, settings.two_word_names, source.random);
  facts.insert(facts.begin(), static_cast<size_t>(settings.values_per_key - 1), Fact(facts[0]));

  Story story;
  for (Fact& fact : facts) {
    if (settings.words) {
      fact.value = source.names[static_cast<size_t>(
          source.random.below(static_cast<int64_t>(source.names.size())))];
    } else {
      fact.value = fmt::format("{:05}", source.random.below(100000));
    }
    const double position = facts.size() > 1
                                ? source.random.unit()
                                : (static_cast<double>(settings.index) + source.random.unit()) /
                                      static_cast<double>(settings.num_tasks);
    const std::string& form = source.forms.sentence(settings.words ? "soft_fact" : "fact");
    fact.sentence = {fill_form(form, fact.values()), 0.97 * position};
    story.hidden.push_back(fact.sentence);
  }

  const std::string& form = task_forms().forced.sentence(settings.form);
  if (settings.values_per_key > 1) {
    story.clozes.push_back(
        list_cloze(form, std::span(facts).first(static_cast<size_t>(settings.values_per_key))));
  } else {
    const std::vector<std::string> gap = {settings.words ? "word" : "value"};
    for (int64_t i = 0; i < settings.num_questions; ++i) {
      const Fact& fact = facts[static_cast<size_t>(i)];
      story.clozes.push_back(make_cloze(form, fact.values(), gap, std::span(&fact.sentence, 1)));
    }
  }
  const std::string& subject =
      task_forms().generated.sentence(settings.words ? "soft_subject" : "subject");
  std::vector<std::string> subjects;
  for (int64_t i = 0; i < settings.num_questions; ++i) {
    subjects.push_back(fill_form(subject, facts[static_cast<size_t>(i)].values()));
  }
  story.asked["subjects"] = joined(subjects);
  return story;
}

}  // namespace fovea::quality
