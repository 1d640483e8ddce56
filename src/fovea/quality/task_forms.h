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

struct TaskForms {
  std::vector<std::string> adjectives;
  int64_t tokens_per_fact = 0;                             // prompt tokens for each fact in it
  std::map<std::string, std::string, std::less<>> forced;  // sentences by name

  const std::string& sentence(std::string_view name) const;
};

/// Of the file that is compiled in.
const TaskForms& task_forms();

/// data/task_forms.json as text.
std::string_view embedded_task_forms();

/// `form` with each {name} replaced by its value. Throws kInvalidArgument on a name without one.
std::string fill_form(std::string_view form, const FormValues& values);

}  // namespace fovea::quality
