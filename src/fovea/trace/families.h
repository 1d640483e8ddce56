// Which family a kernel belongs to. The table is data: text that users read, and extend with a file
// of their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::trace {

/// What a rule looks at.
enum class RuleSubject {
  kBaseName,  // the function's own name (kernel_base_name)
  kFullName,  // written "full:", template arguments and parameters included
  kOperator,  // written "op:", the framework operator that launched the kernel
};

struct FamilyRule {
  std::string family;
  RuleSubject subject = RuleSubject::kBaseName;
  std::string pattern;  // '*' stands for any characters; case does not matter
};

/// Rules in order; the first that matches wins.
class FamilyTable {
 public:
  static constexpr std::string_view kUnknown = "unknown";
  static constexpr std::string_view kAttention = "attention";

  /// The rules that ship with the kit, in the format of parse().
  static std::string_view default_text();
  /// The default table.
  FamilyTable();

  /// Puts the rules of `text` before those there are. One rule a line: a family, then one pattern
  /// or more, all separated by white space; '#' begins a comment. New families need no declaration.
  /// Throws kInvalidArgument naming the line.
  void extend(std::string_view text);

  /// Family of a kernel, kUnknown when no rule matches. `launching_operator` may be empty. An
  /// inductor template
  /// (`triton_tem_fused_*`) can hold any operation, so only operator rules, and a user's own,
  /// decide on it.
  std::string_view family_of(std::string_view kernel_name,
                             std::string_view launching_operator = {}) const;

  /// Whether the kernel's launching operator is needed to know its family.
  static bool needs_operator(std::string_view kernel_name);

  const std::vector<FamilyRule>& rules() const { return rules_; }

 private:
  std::vector<FamilyRule> rules_;
  size_t num_user_rules_ = 0;
};

}  // namespace fovea::trace
