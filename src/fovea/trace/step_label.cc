#include "fovea/trace/step_label.h"

#include <algorithm>
#include <string>

namespace fovea::trace {
namespace {

// The number at the front of `text`, or -1.
int64_t leading_number(std::string_view text) {
  int64_t number = -1;
  for (const char c : text) {
    if (c < '0' || c > '9' || number > (int64_t{1} << 52)) break;
    number = (number < 0 ? 0 : number) * 10 + (c - '0');
  }
  return number;
}

// The number right behind `key`, or -1.
int64_t number_after(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  return at == std::string_view::npos ? -1 : leading_number(text.substr(at + key.size()));
}

// The number right before `key`, or -1: "3 ctx reqs".
int64_t number_before(std::string_view text, std::string_view key) {
  size_t end = text.find(key);
  if (end == std::string_view::npos) return -1;
  while (end > 0 && text[end - 1] == ' ') --end;
  size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  return leading_number(text.substr(begin, end - begin));
}

// Tokens in the parentheses behind a count: "(512)" or "(sq512sk512...)".
int64_t tokens_in_parentheses(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return -1;
  std::string_view rest = text.substr(at + key.size());
  const size_t open = rest.find_first_not_of("0123456789");
  if (open == std::string_view::npos || rest[open] != '(') return -1;
  rest = rest.substr(open + 1);
  if (rest.starts_with("sq")) rest = rest.substr(2);
  return leading_number(rest);
}

Phase phase_of(int64_t context_requests, int64_t generation_requests) {
  if (context_requests > 0) return generation_requests > 0 ? Phase::kMixed : Phase::kPrefill;
  return generation_requests > 0 ? Phase::kDecode : Phase::kUnlabelled;
}

// "step[decode bs=8]", and "decode[bs=8]".
std::optional<StepLabel> bracketed_label(std::string_view lowered) {
  const size_t open = lowered.find('[');
  if (open == std::string_view::npos) return {};
  const std::string_view body = lowered.substr(open + 1);
  const bool is_step = lowered.substr(0, open).ends_with("step");
  if (!is_step && !body.starts_with("bs=")) return {};
  const std::string_view mode =
      is_step ? body.substr(0, body.find_first_of(" ]")) : lowered.substr(0, open);
  const int64_t requests = number_after(body, "bs=");
  const int64_t tokens = number_after(body, "toks=");
  StepLabel label;
  if (mode.find("mixed") != std::string_view::npos) {
    label.phase = Phase::kMixed;
    label.context_tokens = tokens;
  } else if (mode == "decode" || mode == "target_verify") {
    label.phase = Phase::kDecode;
    label.context_requests = label.context_tokens = 0;
    label.generation_requests = requests;
  } else if (mode == "extend" || mode == "prefill" || mode == "split_prefill") {
    label.phase = Phase::kPrefill;
    label.context_requests = requests;
    label.context_tokens = tokens;
    label.generation_requests = 0;
  }
  return label;  // idle, draft_extend ...: a step, of no phase that counts here
}

}  // namespace

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
    case Phase::kMixed:
      return "mixed";
    case Phase::kUnlabelled:
      return "unlabelled";
  }
  return "unlabelled";
}

std::optional<StepLabel> parse_step_label(std::string_view name) {
  if (name.size() > 1024) return {};
  std::string lowered(name);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });

  StepLabel label;
  label.context_requests = number_after(lowered, "context_");
  label.generation_requests = number_after(lowered, "generation_");
  if (lowered.starts_with("execute_") && label.context_requests >= 0 &&
      label.generation_requests >= 0) {
    label.context_tokens = tokens_in_parentheses(lowered, "context_");
    label.phase = phase_of(label.context_requests, label.generation_requests);
    return label;
  }
  label.context_requests = number_before(lowered, "ctx reqs");
  label.generation_requests = number_before(lowered, "gen reqs");
  if (label.context_requests >= 0 && label.generation_requests >= 0) {
    label.context_tokens = number_before(lowered, "ctx tokens");
    label.phase = phase_of(label.context_requests, label.generation_requests);
    return label;
  }
  // vLLM before 0.11: "new" requests are in prefill, but a "cached" one may be in decode or in a
  // later chunk of its prompt, so a step without new requests stays unlabelled.
  const int64_t new_requests = number_after(lowered, "execute_new_");
  const int64_t cached_requests = number_after(lowered, "_cached_");
  if (new_requests >= 0 && cached_requests >= 0) {
    StepLabel old_label;
    if (new_requests > 0) {
      old_label.phase = cached_requests > 0 ? Phase::kMixed : Phase::kPrefill;
      old_label.context_requests = new_requests;
    }
    return old_label;
  }
  if (auto bracketed = bracketed_label(lowered)) return bracketed;
  if (lowered.starts_with("profilerstep#")) return StepLabel{};
  return {};
}

}  // namespace fovea::trace
