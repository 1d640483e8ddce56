#include "fovea/quality/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "fovea/base/error.h"

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
};

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
  check_argument(settings.num_distractors >= 0, "num_distractors must not be negative, is {}",
                 settings.num_distractors);
  const int64_t num_facts = settings.num_distractors + 1;
  check_argument(static_cast<int64_t>(names.size()) >= num_facts,
                 "{} facts need as many names, the text gave {}", num_facts, names.size());

  Random random(settings.seed * 1000003u + static_cast<uint64_t>(index));
  std::vector<std::string> unused(names.begin(), names.end());
  std::vector<Fact> facts(static_cast<size_t>(num_facts));
  int64_t fact_tokens = 0;
  for (Fact& fact : facts) {
    const auto pick = static_cast<size_t>(random.below(static_cast<int64_t>(unused.size())));
    const auto adjective = static_cast<size_t>(random.below(kAdjectives.size()));
    fact.subject = fmt::format("{} code of {}", kAdjectives[adjective], unused[pick]);
    unused.erase(unused.begin() + static_cast<ptrdiff_t>(pick));
    fact.value = fmt::format("{:05}", random.below(100000));
    const bool asked = &fact == &facts.front();
    const double position =
        asked ? (static_cast<double>(index) + random.unit()) / static_cast<double>(num_tasks)
              : random.unit();
    fact.depth = 0.97 * position;
    fact.tokens = encode(fmt::format(" The {} is {}.", fact.subject, fact.value));
    fact_tokens += static_cast<int64_t>(fact.tokens.size());
  }

  NeedleTask task;
  task.fact = fmt::format(" The {} is {}.", facts[0].subject, facts[0].value);
  task.question = fmt::format(" Recall: the {} is", facts[0].subject);
  task.answer = facts[0].value;
  task.depth = facts[0].depth;
  const std::vector<int32_t> question = encode(task.question);

  const int64_t num_filler = settings.length - fact_tokens - static_cast<int64_t>(question.size()) -
                             (settings.bos_id ? 1 : 0);
  check_argument(num_filler > 0, "a prompt of {} tokens has no room for {} facts and a question",
                 settings.length, num_facts);
  const auto num_available = static_cast<int64_t>(filler.size());
  check_argument(num_filler <= num_available, "the text has {} tokens, a prompt of {} needs {}",
                 num_available, settings.length, num_filler);
  filler = filler.subspan(static_cast<size_t>(random.below(num_available - num_filler + 1)),
                          static_cast<size_t>(num_filler));

  std::sort(facts.begin(), facts.end(),
            [](const Fact& a, const Fact& b) { return a.depth < b.depth; });
  task.prompt.reserve(static_cast<size_t>(settings.length));
  if (settings.bos_id) task.prompt.push_back(*settings.bos_id);
  auto next = filler.begin();
  for (const Fact& fact : facts) {
    const auto cut =
        filler.begin() + static_cast<ptrdiff_t>(fact.depth * static_cast<double>(num_filler));
    task.prompt.insert(task.prompt.end(), next, cut);
    task.prompt.insert(task.prompt.end(), fact.tokens.begin(), fact.tokens.end());
    next = cut;
  }
  task.prompt.insert(task.prompt.end(), next, filler.end());
  task.prompt.insert(task.prompt.end(), question.begin(), question.end());
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
