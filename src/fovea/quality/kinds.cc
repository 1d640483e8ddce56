#include "fovea/quality/kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

// Different words, drawn one by one; made up of letters when the text's run out or on request.
class WordPool {
 public:
  explicit WordPool(const StorySource& source)
      : source_(source), unused_(source.names.begin(), source.names.end()) {}

  std::string draw() {
    if (unused_.empty() && source_.generated) return coin();
    check_argument(!unused_.empty(), "a task of {} tokens needs more words than the {} of the text",
                   source_.length, source_.names.size());
    return draw_and_remove(unused_, source_.random);
  }
  /// A word that no text has by chance, where one may be made up.
  std::string draw_rare() { return source_.generated ? coin() : draw(); }
  bool empty() const { return unused_.empty() && !source_.generated; }

 private:
  std::string coin() {
    constexpr int kLetters = 6;
    std::string word;
    do {
      word.clear();
      for (int i = 0; i < kLetters; ++i) {
        word += static_cast<char>('a' + source_.random.below(26));
      }
    } while (!coined_.insert(word).second);
    return word;
  }

  const StorySource& source_;
  std::vector<std::string> unused_;
  std::set<std::string> coined_;
};

double random_depth(Random& random) { return 0.97 * random.unit(); }

// Facts that a prompt has room for and the text words for, of which each fact needs some.
int64_t num_facts(const StorySource& source, int64_t words_per_fact) {
  const int64_t wanted = std::max<int64_t>(8, source.length / task_forms().tokens_per_fact);
  if (source.generated) return wanted;
  const auto possible = static_cast<int64_t>(source.names.size()) / words_per_fact;
  check_argument(possible >= 4, "a task needs {} words, the text gave {}", 4 * words_per_fact,
                 source.names.size());
  return std::min(wanted, possible);
}

std::string capitalised(std::string word) {
  if (word[0] >= 'a' && word[0] <= 'z') word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return word;
}

}  // namespace

Story trace_story(const StorySource& source) {
  constexpr size_t kChain = 4;  // variables: the first gets the number, each other the one before
  WordPool words(source);
  Story story;
  const int64_t num_chains = std::max<int64_t>(1, num_facts(source, 1) / kChain);
  for (int64_t chain = 0; chain < num_chains; ++chain) {
    FormValues values = {{"value", fmt::format("{:05}", source.random.below(100000))}};
    std::vector<double> depths(kChain);
    for (double& depth : depths) depth = random_depth(source.random);
    std::sort(depths.begin(), depths.end());
    std::vector<Hidden> facts;
    std::string before;
    for (size_t i = 0; i < kChain; ++i) {
      const std::string name = words.draw_rare();
      values[fmt::format("name{}", i + 1)] = name;
      const std::string& form = source.forms.sentence(i == 0 ? "let_value" : "let_name");
      const FormValues parts = {{"name", name}, {"other", before}, {"value", values.at("value")}};
      facts.push_back({fill_form(form, parts), depths[i]});
      before = name;
    }
    story.hidden.insert(story.hidden.end(), facts.begin(), facts.end());
    if (chain > 0) continue;
    // The chain is asked for from its end, so its sentences answer from the last one back.
    std::reverse(facts.begin(), facts.end());
    std::vector<std::string> gaps = {"name3", "name2", "name1", "value"};
    story.clozes.push_back(make_cloze(task_forms().forced.sentence("trace"), values, gaps, facts));
    story.asked = values;
  }
  if (source.generated) {  // which variables have the value, rather than from which it came
    std::vector<Gap>& gaps = story.clozes[0].gaps;
    gaps.back().answer = story.asked.at("name4");
  }
  return story;
}

namespace {

struct CountedWord {
  std::string word;
  int64_t count;
};

double tokens_per_word(const StorySource& source, WordPool pool) {
  constexpr int kSample = 16;
  size_t num_tokens = 0;
  for (int i = 0; i < kSample; ++i) {
    const std::string word = pool.draw_rare();
    num_tokens += source.encode(" " + word).size();
  }
  return static_cast<double>(num_tokens) / kSample;
}

// Words and how often each occurs, the ones asked for first, within a budget of tokens.
std::vector<CountedWord> count_words(const StorySource& source, WordCounts counts) {
  const WordForms& forms = source.forms.words;
  WordPool pool(source);
  std::vector<CountedWord> words;
  auto tokens_left =
      static_cast<int64_t>(forms.share_of_prompt * static_cast<double>(source.length));
  const auto add = [&](const std::string& word, int64_t count) {
    tokens_left -= count * static_cast<int64_t>(source.encode(" " + word).size());
    if (tokens_left >= 0) words.push_back({word, count});
    return tokens_left >= 0;
  };
  int64_t num_asked = forms.num_common;
  if (counts == WordCounts::kCommon) {
    bool fits = true;
    for (int64_t i = 0; i < num_asked && fits; ++i) fits = add(pool.draw(), forms.common_count);
    while (fits && !pool.empty()) fits = add(pool.draw(), forms.rare_count);
  } else {
    num_asked = forms.num_frequent;
    double zeta = 0;
    for (int rank = 1; rank <= 10000; ++rank) zeta += std::pow(rank, -forms.zipf_exponent);
    const double num_words = static_cast<double>(tokens_left) / tokens_per_word(source, pool);
    for (int rank = 1; !pool.empty(); ++rank) {
      const auto count =
          static_cast<int64_t>(num_words / zeta * std::pow(rank, -forms.zipf_exponent));
      if (count == 0) break;
      words.push_back({pool.draw_rare(), count});
    }
  }
  check_argument(static_cast<int64_t>(words.size()) > num_asked,
                 "a prompt of {} tokens is too short for lists of words, or the text's {} words "
                 "too few",
                 source.length, source.names.size());
  return words;
}

}  // namespace

Story word_story(const StorySource& source, WordCounts counts) {
  const WordForms& forms = source.forms.words;
  const std::vector<CountedWord> counted = count_words(source, counts);
  std::vector<std::string> words;
  for (const CountedWord& word : counted) {
    words.insert(words.end(), static_cast<size_t>(word.count), word.word);
  }
  shuffle(words, source.random);

  Story story;
  std::map<std::string, size_t> first_line;  // of each word
  const auto per_line = static_cast<size_t>(forms.words_per_line);
  const size_t num_lines = (words.size() + per_line - 1) / per_line;
  for (size_t line = 0; line < num_lines; ++line) {
    std::string list;
    for (size_t i = line * per_line; i < std::min(words.size(), (line + 1) * per_line); ++i) {
      if (!list.empty()) list += ' ';
      list += words[i];
      first_line.emplace(words[i], line);
    }
    const double position =
        (static_cast<double>(line) + source.random.unit()) / static_cast<double>(num_lines);
    story.hidden.push_back(
        {fill_form(source.forms.sentence("words"), {{"words", list}}), 0.97 * position});
  }

  const bool common = counts == WordCounts::kCommon;
  std::vector<std::string> asked;
  for (int64_t i = 0; i < (common ? forms.num_common : forms.num_frequent); ++i) {
    asked.push_back(counted[static_cast<size_t>(i)].word);
  }
  if (common) {  // equally common ones have no order but that of the text
    const auto place = [&](const std::string& word) {
      return std::find(words.begin(), words.end(), word) - words.begin();
    };
    std::sort(asked.begin(), asked.end(),
              [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  }
  FormValues values;
  std::vector<std::string> gaps;
  std::vector<Hidden> facts;
  for (const std::string& word : asked) {
    gaps.push_back(fmt::format("word{}", gaps.size() + 1));
    values[gaps.back()] = word;
    facts.push_back(story.hidden[first_line.at(word)]);
  }
  if (source.generated) {  // the sentence with gaps has fewer than a chat model is asked for
    Cloze cloze;
    for (size_t i = 0; i < asked.size(); ++i) cloze.gaps.push_back({{}, asked[i], facts[i]});
    story.clozes.push_back(std::move(cloze));
  } else {
    story.clozes.push_back(
        make_cloze(source.forms.sentence(common ? "common" : "frequent"), values, gaps, facts));
    story.clozes.back().any_order = common;
  }
  return story;
}

namespace {

// Hides `form` filled with `values` somewhere, and returns it.
Hidden hide_somewhere(Story& story, const StorySource& source, std::string_view form,
                      const FormValues& values) {
  story.hidden.push_back(
      {fill_form(source.forms.sentence(form), values), random_depth(source.random)});
  return story.hidden.back();
}

FormValues person_and_place(const std::string& name, const std::string& place) {
  return {
      {"name", name}, {"Name", capitalised(name)}, {"word", place}, {"Word", capitalised(place)}};
}

void ask_for_place(Story& story, std::string_view form, const FormValues& values,
                   const Hidden& fact) {
  const std::vector<std::string> gap = {"word"};
  story.clozes.push_back(
      make_cloze(task_forms().forced.sentence(form), values, gap, std::span(&fact, 1)));
  story.asked = values;
}

}  // namespace

Story home_story(const StorySource& source) {
  WordPool words(source);
  Story story;
  const int64_t num_people = num_facts(source, 2);
  for (int64_t i = 0; i < num_people; ++i) {
    const std::string name = words.draw();
    const FormValues values = person_and_place(name, words.draw());
    const Hidden fact = hide_somewhere(story, source, "lives", values);
    if (i == 0) ask_for_place(story, "where_lives", values, fact);
  }
  return story;
}

Story office_story(const StorySource& source) {
  constexpr int64_t kPeoplePerOffice = 2;
  WordPool words(source);
  Story story;
  const int64_t num_offices = std::max<int64_t>(2, num_facts(source, 2) / (kPeoplePerOffice + 1));
  for (int64_t i = 0; i < num_offices; ++i) {
    const std::string office = words.draw();
    const std::string place = words.draw();
    Hidden fact;
    for (int64_t j = 0; j < kPeoplePerOffice; ++j) {
      FormValues values = person_and_place(words.draw(), place);
      values["office"] = office;
      if (j == 0) fact = hide_somewhere(story, source, "office", values);
      hide_somewhere(story, source, "works", values);
      if (i == 0 && j == 0) ask_for_place(story, "where_works", values, fact);
    }
  }
  return story;
}

}  // namespace fovea::quality
