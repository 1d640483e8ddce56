#include "fovea/quality/score_text.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using Words = std::vector<std::string>;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

// Words between blanks and the characters of `separators`, in lower case.
Words words_of(std::string_view text, std::string_view separators) {
  std::string spaced = lowered(text);
  for (char& c : spaced) {
    if (separators.find(c) != std::string_view::npos) c = ' ';
  }
  std::istringstream stream(spaced);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Digits, with a fraction if there is one: "12.5".
std::string first_number(std::string_view text) {
  const auto begin = std::find_if(text.begin(), text.end(), is_digit);
  auto end = std::find_if_not(begin, text.end(), is_digit);
  if (end != text.end() && *end == '.' && end + 1 != text.end() && is_digit(end[1])) {
    end = std::find_if_not(end + 1, text.end(), is_digit);
  }
  return std::string(begin, end);
}

// Words without punctuation and articles.
Words plain_words(std::string_view text) {
  std::string kept;
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept),
               [](char c) { return !is_punctuation(c); });
  Words words = words_of(kept, "");
  std::erase_if(
      words, [](const std::string& word) { return word == "a" || word == "an" || word == "the"; });
  return words;
}

double word_f1(const Words& said, const Words& answer) {
  std::map<std::string, int64_t> counts;
  for (const std::string& word : answer) ++counts[word];
  double num_same = 0;
  for (const std::string& word : said) {
    if (counts[word]-- > 0) ++num_same;
  }
  // 2 p r / (p + r) with p = same / said, r = same / answer
  return num_same > 0 ? 2 * num_same / static_cast<double>(said.size() + answer.size()) : 0;
}

double score_one(Scoring scoring, std::string_view text, const std::string& answer) {
  constexpr std::string_view kSentenceMarks = "\n:\"'.,?!{}";
  switch (scoring) {
    case Scoring::kAllFound:
    case Scoring::kAnyFound:
      return lowered(text).find(lowered(answer)) != std::string::npos ? 1 : 0;
    case Scoring::kFirstNumber:
      return first_number(text) == answer ? 1 : 0;
    case Scoring::kLastNumber: {
      const Words words = words_of(text, "\n.`'\":");
      return !words.empty() && words.back() == answer ? 1 : 0;
    }
    case Scoring::kWordFound: {
      const Words words = words_of(text, kSentenceMarks);
      return std::find(words.begin(), words.end(), lowered(answer)) != words.end() ? 1 : 0;
    }
    case Scoring::kWordF1:
      return word_f1(plain_words(text), plain_words(answer));
    case Scoring::kForced:
    case Scoring::kChoice:
      break;
  }
  fail(ErrorCode::kInvalidArgument, "answers of this kind are not scored by their text");
}

}  // namespace

double score_text(Scoring scoring, std::string_view text, std::span<const std::string> answers) {
  check_argument(!answers.empty(), "a question without answers cannot be scored");
  double best = 0;
  double sum = 0;
  for (const std::string& answer : answers) {
    const double score = score_one(scoring, text, answer);
    best = std::max(best, score);
    sum += score;
  }
  return scoring == Scoring::kAllFound ? sum / static_cast<double>(answers.size()) : best;
}

}  // namespace fovea::quality
