#include "fovea/quality/task_forms.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"

namespace fovea::quality {

const std::string& TaskForms::sentence(std::string_view name) const {
  const auto found = forced.find(name);
  check_argument(found != forced.end(), "there is no task form \"{}\"", name);
  return found->second;
}

const TaskForms& task_forms() {
  static const TaskForms forms = [] {
    const auto json = nlohmann::json::parse(embedded_task_forms());
    TaskForms read;
    json.at("adjectives").get_to(read.adjectives);
    json.at("tokens_per_fact").get_to(read.tokens_per_fact);
    for (const auto& [name, text] : json.at("forced").items()) {
      read.forced.emplace(name, text.get<std::string>());
    }
    return read;
  }();
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
