#include "fovea/quality/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "fovea/base/checked_math.h"

namespace fovea::quality {
namespace {

// Kinds of code that a fact can be about, together with a name.
constexpr std::array<std::string_view, 24> kAdjectives = {
    "red",    "blue",    "green", "dark",  "light", "small",  "large", "main",
    "local",  "remote",  "first", "last",  "new",   "old",    "open",  "hidden",
    "secret", "special", "short", "empty", "safe",  "active", "upper", "normal"};

// splitmix64: the same numbers on every machine and compiler, which std's distributions do not
// promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, bound), for bounds far below 2^64.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

struct Fact {
  std::string subject;  // "red code of apple"
  std::string value;
  double depth = 0;
  std::vector<int32_t> tokens;

  std::string text() const { return fmt::format(" The {} is {}.", subject, value); }
};

template <typename T>
T draw_and_remove(std::vector<T>& from, Random& random) {
  const auto pick = from.begin() + random.below(static_cast<int64_t>(from.size()));
  T drawn = *pick;
  from.erase(pick);
  return drawn;
}

// Pairs of an adjective and a name, each pair once, over few names when there are many facts.
std::vector<std::string> draw_subjects(int64_t num_facts, std::span<const std::string> names,
                                       Random& random) {
  constexpr int64_t kFactsPerName = 4;
  const int64_t num_names = std::min<int64_t>(static_cast<int64_t>(names.size()),
                                              std::max<int64_t>(8, num_facts / kFactsPerName));
  check_argument(num_facts <= num_names * static_cast<int64_t>(kAdjectives.size()),
                 "{} facts need more names than the {} that the text gave", num_facts,
                 names.size());
  std::vector<std::string> unused(names.begin(), names.end());
  std::vector<std::string> subjects;
  for (int64_t i = 0; i < num_names; ++i) {
    const std::string name = draw_and_remove(unused, random);
    for (const std::string_view adjective : kAdjectives) {
      subjects.push_back(fmt::format("{} code of {}", adjective, name));
    }
  }
  std::vector<std::string> drawn;
  for (int64_t i = 0; i < num_facts; ++i) drawn.push_back(draw_and_remove(subjects, random));
  return drawn;
}

void append(std::vector<int32_t>& to, std::span<const int32_t> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// The questions as they will stand at the end of the text, answer_begin counted from the first.
std::vector<int32_t> ask(std::span<const Fact> facts, const EncodeFunction& encode,
                         std::vector<NeedleQuestion>& questions) {
  std::vector<int32_t> tokens;
  const std::vector<int32_t> blank = encode(" ");
  const std::vector<int32_t> stop = encode(".");
  for (const Fact& fact : facts) {
    NeedleQuestion question;
    question.fact = fact.text();
    question.text = fmt::format(" Recall: the {} is", fact.subject);
    question.answer = fact.value;
    question.depth = fact.depth;
    question.answer_tokens = encode(fact.value);
    if (!questions.empty()) append(tokens, stop);
    append(tokens, encode(question.text));
    append(tokens, blank);
    question.answer_begin = static_cast<int64_t>(tokens.size());
    append(tokens, question.answer_tokens);
    questions.push_back(std::move(question));
  }
  return tokens;
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
  for (const std::string_view adjective : kAdjectives) words.erase(std::string(adjective));
  std::vector<std::string> names;
  for (const std::string& word : words) {
    if (encode(" " + word).size() == 1) names.push_back(word);
  }
  return names;
}

NeedleTask make_needle_task(const NeedleSettings& settings, int64_t index, int64_t num_tasks,
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
  std::vector<Fact> facts(static_cast<size_t>(num_facts));
  const std::vector<std::string> subjects = draw_subjects(num_facts, names, random);
  int64_t fact_tokens = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    facts[i].subject = subjects[i];
    facts[i].value = fmt::format("{:05}", random.below(100000));
    const double position = num_facts > 1 ? random.unit()
                                          : (static_cast<double>(index) + random.unit()) /
                                                static_cast<double>(num_tasks);
    facts[i].depth = 0.97 * position;
    facts[i].tokens = encode(facts[i].text());
    fact_tokens += static_cast<int64_t>(facts[i].tokens.size());
  }

  NeedleTask task;
  const std::vector<int32_t> asked = ask(
      std::span(facts).first(static_cast<size_t>(settings.num_questions)), encode, task.questions);
  const int64_t num_filler = settings.length - fact_tokens - static_cast<int64_t>(asked.size()) -
                             (settings.bos_id ? 1 : 0);
  check_argument(num_filler > 0, "a prompt of {} tokens has no room for {} facts and a question",
                 settings.length, num_facts);
  const auto num_available = static_cast<int64_t>(filler.size());
  check_argument(num_filler <= num_available, "the text has {} tokens, a prompt of {} needs {}",
                 num_available, settings.length, num_filler);
  filler = filler.subspan(static_cast<size_t>(random.below(num_available - num_filler + 1)),
                          static_cast<size_t>(num_filler));

  std::stable_sort(facts.begin(), facts.end(),
                   [](const Fact& a, const Fact& b) { return a.depth < b.depth; });
  task.tokens.reserve(static_cast<size_t>(settings.length));
  if (settings.bos_id) task.tokens.push_back(*settings.bos_id);
  size_t next = 0;
  for (const Fact& fact : facts) {
    const auto cut = static_cast<size_t>(fact.depth * static_cast<double>(num_filler));
    append(task.tokens, filler.subspan(next, cut - next));
    append(task.tokens, fact.tokens);
    next = cut;
  }
  append(task.tokens, filler.subspan(next));
  for (NeedleQuestion& question : task.questions) {
    question.answer_begin += static_cast<int64_t>(task.tokens.size());
  }
  append(task.tokens, asked);
  return task;
}

bool is_needle_answer(std::string_view continuation, std::string_view answer) {
  const size_t first = continuation.find_first_not_of(" \n\t");
  if (first == std::string_view::npos) return false;
  continuation.remove_prefix(first);
  if (continuation.substr(0, answer.size()) != answer) return false;
  return continuation.size() == answer.size() || !is_digit(continuation[answer.size()]);
}

}  // namespace fovea::quality
