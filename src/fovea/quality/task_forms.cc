#include "fovea/quality/task_forms.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using nlohmann::json;

WordForms word_forms(const json& from) {
  WordForms words;
  from.at("share_of_prompt").get_to(words.share_of_prompt);
  from.at("words_per_line").get_to(words.words_per_line);
  from.at("num_common").get_to(words.num_common);
  from.at("num_frequent").get_to(words.num_frequent);
  from.at("common_count").get_to(words.common_count);
  from.at("rare_count").get_to(words.rare_count);
  from.at("zipf_exponent").get_to(words.zipf_exponent);
  return words;
}

FormSet form_set(const json& sentences, const json& words) {
  FormSet forms;
  for (const auto& [name, text] : sentences.items()) {
    forms.sentences.emplace(name, text.get<std::string>());
  }
  forms.words = word_forms(words);
  return forms;
}

TaskForms read_forms() {
  const json from = json::parse(embedded_task_forms());
  TaskForms forms;
  from.at("adjectives").get_to(forms.adjectives);
  from.at("tokens_per_fact").get_to(forms.tokens_per_fact);
  forms.forced = form_set(from.at("forced"), from.at("forced_words"));
  forms.generated = form_set(from.at("generated"), from.at("generated_words"));
  for (const auto& [name, question] : from.at("generated_questions").items()) {
    forms.generated_questions[name] = {question.at("ask"), question.at("begin"),
                                       question.at("max_new_tokens")};
  }
  return forms;
}

}  // namespace

const std::string& FormSet::sentence(std::string_view name) const {
  const auto found = sentences.find(name);
  check_argument(found != sentences.end(), "there is no task form \"{}\"", name);
  return found->second;
}

const TaskForms& task_forms() {
  static const TaskForms forms = read_forms();
  return forms;
}

std::string fill_form(std::string_view form, const FormValues& values) {
  std::string filled;
  while (true) {
    const size_t open = form.find('{');
    filled += form.substr(0, open);
    if (open == std::string_view::npos) return filled;
    const size_t close = form.find('}', open);
    const std::string_view name = form.substr(open + 1, close - open - 1);
    const auto value = values.find(name);
    check_argument(close != std::string_view::npos && value != values.end(),
                   "a task form asks for {{{}}}, which has no value", name);
    filled += value->second;
    form.remove_prefix(close + 1);
  }
}

}  // namespace fovea::quality
