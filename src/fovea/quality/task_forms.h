// The sentences that tasks are made of: data/task_forms.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::quality {

/// What stands for the names in braces of a form.
using FormValues = std::map<std::string, std::string, std::less<>>;

/// How lists of words are made, see word_story().
struct WordForms {
  double share_of_prompt = 0;  // of its tokens
  int64_t words_per_line = 0;
  int64_t num_common = 0;    // words that are asked for
  int64_t num_frequent = 0;  // the same where counts follow Zipf's law
  int64_t common_count = 0;  // times that a common word occurs
  int64_t rare_count = 0;    // and any other
  double zipf_exponent = 0;
};

/// How a chat model is asked.
struct GeneratedQuestion {
  std::string ask;
  std::string begin;  // what its answer begins with
  int64_t max_new_tokens = 0;
};

/// Sentences for one way of asking.
struct FormSet {
  std::map<std::string, std::string, std::less<>> sentences;
  WordForms words;

  const std::string& sentence(std::string_view name) const;
};

struct TaskForms {
  std::vector<std::string> adjectives;
  int64_t tokens_per_fact = 0;  // prompt tokens for each fact in it
  FormSet forced;               // gaps to fill
  FormSet generated;            // plain English, for chat models
  std::map<std::string, GeneratedQuestion, std::less<>> generated_questions;
};

/// Of the file that is compiled in.
const TaskForms& task_forms();

/// data/task_forms.json as text.
std::string_view embedded_task_forms();

/// `form` with each {name} replaced by its value. Throws kInvalidArgument on a name without one.
std::string fill_form(std::string_view form, const FormValues& values);

}  // namespace fovea::quality
