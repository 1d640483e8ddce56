#include "fovea/quality/story.h"

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

void append(std::vector<int32_t>& to, std::span<const int32_t> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The clozes as they will stand at the end of the text, answer_begin counted from the first. Parts
// are encoded one by one, so that an answer's tokens do not depend on what stands around it. Digits
// follow a blank of their own, as tokenizers that split digits have it; words bring theirs.
std::vector<int32_t> encode_clozes(std::span<const Cloze> clozes, const EncodeFunction& encode,
                                   std::vector<Question>& questions) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < clozes.size(); ++i) {
    for (const Gap& gap : clozes[i].gaps) {
      Question question;
      question.fact = gap.fact;
      question.text = gap.before;
      question.answers = {gap.answer};
      question.depth = gap.depth;
      append(tokens, encode(gap.before));
      const bool is_number = is_digit(gap.answer.front());
      if (is_number) append(tokens, encode(" "));
      question.answer_tokens = encode(is_number ? gap.answer : " " + gap.answer);
      question.answer_begin = static_cast<int64_t>(tokens.size());
      append(tokens, question.answer_tokens);
      questions.push_back(std::move(question));
    }
    if (i + 1 < clozes.size()) append(tokens, encode(clozes[i].end));
  }
  return tokens;
}

}  // namespace

Cloze make_cloze(std::string_view form, const FormValues& values,
                 std::span<const std::string> gap_names) {
  Cloze cloze;
  for (const std::string& name : gap_names) {
    const std::string braced = "{" + name + "}";
    const size_t at = form.find(braced);
    check_argument(at != std::string_view::npos, "a task form lacks its gap {}", braced);
    std::string before = fill_form(form.substr(0, at), values);
    if (before.ends_with(' ')) before.pop_back();
    cloze.gaps.push_back({std::move(before), values.at(name), {}, 0});
    form.remove_prefix(at + braced.size());
  }
  cloze.end = fill_form(form, values);
  return cloze;
}

Task lay_out(Story story, const TaskSettings& settings, std::span<const int32_t> filler,
             const EncodeFunction& encode, Random& random) {
  std::stable_sort(story.hidden.begin(), story.hidden.end(),
                   [](const Hidden& a, const Hidden& b) { return a.depth < b.depth; });
  std::vector<std::vector<int32_t>> hidden;
  int64_t num_hidden_tokens = 0;
  for (const Hidden& sentence : story.hidden) {
    hidden.push_back(encode(sentence.text));
    num_hidden_tokens += static_cast<int64_t>(hidden.back().size());
  }

  Task task;
  const std::vector<int32_t> end = encode_clozes(story.clozes, encode, task.questions);
  const int64_t num_filler = settings.length - num_hidden_tokens -
                             static_cast<int64_t>(end.size()) - (settings.bos_id ? 1 : 0);
  check_argument(num_filler > 0, "a prompt of {} tokens has no room for {} facts and a question",
                 settings.length, hidden.size());
  const auto num_available = static_cast<int64_t>(filler.size());
  check_argument(num_filler <= num_available, "the text has {} tokens, a prompt of {} needs {}",
                 num_available, settings.length, num_filler);
  filler = filler.subspan(static_cast<size_t>(random.below(num_available - num_filler + 1)),
                          static_cast<size_t>(num_filler));

  task.tokens.reserve(static_cast<size_t>(settings.length));
  if (settings.bos_id) task.tokens.push_back(*settings.bos_id);
  size_t next = 0;
  for (size_t i = 0; i < hidden.size(); ++i) {
    const auto cut = static_cast<size_t>(story.hidden[i].depth * static_cast<double>(num_filler));
    append(task.tokens, filler.subspan(next, cut - next));
    append(task.tokens, hidden[i]);
    next = cut;
  }
  append(task.tokens, filler.subspan(next));
  for (Question& question : task.questions) {
    question.answer_begin += static_cast<int64_t>(task.tokens.size());
  }
  append(task.tokens, end);
  return task;
}

}  // namespace fovea::quality
