#include "fovea/quality/story.h"

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using Tokens = std::vector<int32_t>;

void append(Tokens& to, std::span<const int32_t> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The clozes as they will stand at the end of the text, answer_begin counted from the first. Parts
// are encoded one by one, so that an answer's tokens do not depend on what stands around it. Digits
// follow a blank of their own, as tokenizers that split digits have it; words bring theirs.
Tokens encode_clozes(std::span<const Cloze> clozes, const EncodeFunction& encode,
                     std::vector<Question>& questions) {
  Tokens tokens;
  for (size_t i = 0; i < clozes.size(); ++i) {
    const size_t first = questions.size();
    for (const Gap& gap : clozes[i].gaps) {
      Question question;
      question.fact = gap.fact.text;
      question.text = gap.before;
      question.answers = {gap.answer};
      question.depth = gap.fact.depth;
      append(tokens, encode(gap.before));
      const bool is_number = is_digit(gap.answer.front());
      if (is_number) append(tokens, encode(" "));
      question.answer_tokens = encode(is_number ? gap.answer : " " + gap.answer);
      question.answer_begin = static_cast<int64_t>(tokens.size());
      append(tokens, question.answer_tokens);
      questions.push_back(std::move(question));
    }
    for (size_t at = first; clozes[i].any_order && at < questions.size(); ++at) {
      for (size_t later = at + 1; later < questions.size(); ++later) {
        questions[at].other_first_tokens.push_back(questions[later].answer_tokens.front());
      }
    }
    if (i + 1 < clozes.size()) append(tokens, encode(clozes[i].end));
  }
  return tokens;
}

// Where a sentence meant for `cut` goes so that it splits none of the filler's, if one ends soon.
size_t next_sentence_end(std::span<const int32_t> filler, size_t cut, int32_t full_stop) {
  constexpr size_t kSoon = 64;
  for (size_t at = std::max<size_t>(cut, 1); at < std::min(cut + kSoon, filler.size()); ++at) {
    if (filler[at - 1] == full_stop) return at;
  }
  return cut;
}

// `begin`, filler with the hidden sentences in it, `end`: `length` tokens together.
Tokens hide(std::vector<Hidden> sentences, const Tokens& begin, const Tokens& end, int64_t length,
            bool at_sentence_ends, const Ground& ground, Random& random) {
  std::stable_sort(sentences.begin(), sentences.end(),
                   [](const Hidden& a, const Hidden& b) { return a.depth < b.depth; });
  std::vector<Tokens> hidden;
  auto num_taken = static_cast<int64_t>(begin.size() + end.size());
  for (const Hidden& sentence : sentences) {
    hidden.push_back(ground.encode(sentence.text));
    num_taken += static_cast<int64_t>(hidden.back().size());
  }
  const int64_t num_filler = length - num_taken;
  check_argument(num_filler > 0, "a prompt of {} tokens has no room for {} facts and a question",
                 length, hidden.size());
  const auto num_available = static_cast<int64_t>(ground.filler.size());
  check_argument(num_filler <= num_available, "the text has {} tokens, a prompt of {} needs {}",
                 num_available, length, num_filler);
  const std::span<const int32_t> filler =
      ground.filler.subspan(static_cast<size_t>(random.below(num_available - num_filler + 1)),
                            static_cast<size_t>(num_filler));

  const int32_t full_stop = ground.encode(".").back();
  Tokens tokens = begin;
  tokens.reserve(static_cast<size_t>(length));
  size_t next = 0;
  for (size_t i = 0; i < hidden.size(); ++i) {
    auto cut = static_cast<size_t>(sentences[i].depth * static_cast<double>(num_filler));
    if (at_sentence_ends) cut = next_sentence_end(filler, std::max(cut, next), full_stop);
    append(tokens, filler.subspan(next, cut - next));
    append(tokens, hidden[i]);
    next = cut;
  }
  append(tokens, filler.subspan(next));
  append(tokens, end);
  return tokens;
}

}  // namespace

Cloze make_cloze(std::string_view form, const FormValues& values,
                 std::span<const std::string> gap_names, std::span<const Hidden> facts) {
  Cloze cloze;
  for (size_t i = 0; i < gap_names.size(); ++i) {
    const std::string braced = "{" + gap_names[i] + "}";
    const size_t at = form.find(braced);
    check_argument(at != std::string_view::npos, "a task form lacks its gap {}", braced);
    std::string before = fill_form(form.substr(0, at), values);
    if (before.ends_with(' ')) before.pop_back();
    cloze.gaps.push_back({std::move(before), values.at(gap_names[i]), facts[i]});
    form.remove_prefix(at + braced.size());
  }
  cloze.end = fill_form(form, values);
  return cloze;
}

Task lay_out_forced(const Story& story, const TaskSettings& settings, const Ground& ground,
                    Random& random) {
  Task task;
  const Tokens end = encode_clozes(story.clozes, ground.encode, task.questions);
  Tokens begin;
  if (settings.bos_id) begin.push_back(*settings.bos_id);
  task.tokens = hide(story.hidden, begin, end, settings.length, false, ground, random);
  for (Question& question : task.questions) {
    question.answer_begin += static_cast<int64_t>(task.tokens.size() - end.size());
  }
  return task;
}

Task lay_out_generated(const Story& story, const GeneratedQuestion& question,
                       const PromptFrame& frame, const TaskSettings& settings, const Ground& ground,
                       Random& random) {
  Task task;
  task.scoring = Scoring::kAllFound;
  task.max_new_tokens = question.max_new_tokens;
  Question asked;
  asked.text = fill_form(question.ask, story.asked);
  for (const Cloze& cloze : story.clozes) {
    for (const Gap& gap : cloze.gaps) asked.answers.push_back(gap.answer);
  }
  asked.fact = story.clozes.front().gaps.front().fact.text;
  asked.depth = story.clozes.front().gaps.front().fact.depth;

  Tokens begin = frame.before;
  if (begin.empty() && settings.bos_id) begin.push_back(*settings.bos_id);
  append(begin, ground.encode(task_forms().generated.sentence("intro")));
  Tokens end = ground.encode(asked.text);
  append(end, frame.after);
  append(end, ground.encode(fill_form(question.begin, story.asked)));
  task.tokens =
      hide(story.hidden, begin, end, settings.length - task.max_new_tokens, true, ground, random);
  task.questions.push_back(std::move(asked));
  return task;
}

}  // namespace fovea::quality
