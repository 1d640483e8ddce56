#include "fovea/trace/families.h"

#include "fovea/base/error.h"
#include "fovea/trace/kernel_name.h"

namespace fovea::trace {
namespace {

constexpr size_t kMostRules = 100'000;

// Takes the next word off the front of `line`; empty at its end.
std::string_view take_word(std::string_view* line) {
  const size_t begin = line->find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  line->remove_prefix(begin);
  const size_t end = line->find_first_of(" \t\r");
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(word.size());
  return word;
}

std::vector<FamilyRule> parse(std::string_view text) {
  std::vector<FamilyRule> rules;
  int64_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    line = line.substr(0, line.find('#'));
    const std::string_view family = take_word(&line);
    if (family.empty()) continue;
    std::string_view word = take_word(&line);
    check_argument(!word.empty(), "line {} of the family table names '{}' without a pattern",
                   line_number, family);
    for (; !word.empty(); word = take_word(&line)) {
      FamilyRule rule;
      rule.family = family;
      if (word.starts_with("full:")) {
        rule.subject = RuleSubject::kFullName;
        word.remove_prefix(5);
      } else if (word.starts_with("op:")) {
        rule.subject = RuleSubject::kOperator;
        word.remove_prefix(3);
      }
      check_argument(!word.empty(), "line {} of the family table has an empty pattern",
                     line_number);
      check_argument(rules.size() < kMostRules, "the family table has more than {} rules",
                     kMostRules);
      rule.pattern = word;
      rules.push_back(rule);
    }
  }
  return rules;
}

}  // namespace

FamilyTable::FamilyTable() : rules_(parse(default_text())) {}

void FamilyTable::extend(std::string_view text) {
  std::vector<FamilyRule> added = parse(text);
  num_user_rules_ += added.size();
  rules_.insert(rules_.begin(), added.begin(), added.end());
}

bool FamilyTable::needs_operator(std::string_view kernel_name) {
  return kernel_name.starts_with("triton_tem_");
}

std::string_view FamilyTable::family_of(std::string_view kernel_name,
                                        std::string_view launching_operator) const {
  const std::string base = kernel_base_name(kernel_name);
  const bool only_operator = needs_operator(kernel_name);
  for (size_t i = 0; i < rules_.size(); ++i) {
    const FamilyRule& rule = rules_[i];
    if (rule.subject == RuleSubject::kOperator) {
      if (!launching_operator.empty() && glob_match(rule.pattern, launching_operator)) {
        return rule.family;
      }
    } else if (!only_operator || i < num_user_rules_) {
      const std::string_view subject =
          rule.subject == RuleSubject::kBaseName ? std::string_view(base) : kernel_name;
      if (glob_match(rule.pattern, subject)) return rule.family;
    }
  }
  return kUnknown;
}

}  // namespace fovea::trace
