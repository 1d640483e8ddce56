#include "fovea/trace/kernel_name.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace fovea::trace {
namespace {

constexpr int kDeepestWrapping = 8;

// Functions that only call the class they are instantiated with.
bool is_wrapper(std::string_view name) {
  constexpr std::array<std::string_view, 14> kWrappers = {"device_kernel",
                                                          "Kernel",
                                                          "Kernel2",
                                                          "kentry",
                                                          "kernel_entry",
                                                          "enable_sm80",
                                                          "enable_sm90",
                                                          "enable_sm90a",
                                                          "enable_sm100",
                                                          "enable_sm120",
                                                          "enable_2x_kernel_for_sm89",
                                                          "enable_3x_kernel_for_sm9x",
                                                          "enable_3x_kernel_for_sm10",
                                                          "cutlass_kernel"};
  return std::find(kWrappers.begin(), kWrappers.end(), name) != kWrappers.end() ||
         name.starts_with("enable_sm") || name.starts_with("enable_3x_kernel");
}

bool is_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Reads "<length><identifier>" at `position` of a mangled name; empty when there is none.
std::string_view source_name(std::string_view text, size_t position, size_t* after) {
  size_t length = 0;
  size_t digits = position;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && length < 100'000) {
    length = length * 10 + static_cast<size_t>(text[digits] - '0');
    ++digits;
  }
  if (digits == position || length == 0 || length > text.size() - digits) return {};
  *after = digits + length;
  return text.substr(digits, length);
}

// Itanium names, as ROCm writes them. Only nested names are followed, which is all that a base name
// needs.
std::string mangled_base_name(std::string_view name) {
  size_t position = 2;  // behind "_Z"
  std::string_view base;
  while (position < name.size()) {
    const char c = name[position];
    if (c >= '0' && c <= '9') {
      size_t after = position;
      const std::string_view part = source_name(name, position, &after);
      if (part.empty()) break;
      if (part != "_GLOBAL__N_1") base = part;
      position = after;
    } else if (c == 'I') {  // template arguments
      if (!is_wrapper(base)) break;
      base = {};
      // The wrapped class is the first length-prefixed name behind literals such as Li2E.
      ++position;
      while (position < name.size() && name[position] == 'L') {
        const size_t literal_end = name.find('E', position);
        if (literal_end == std::string_view::npos) return std::string(name);
        position = literal_end + 1;
      }
    } else if (c == 'E' && !base.empty()) {
      break;
    } else if (c == 'S' && position + 1 < name.size()) {  // S_, S1_, St: a substitution
      const size_t end = name.find('_', position);
      position =
          name[position + 1] == 't' || end == std::string_view::npos ? position + 2 : end + 1;
    } else if (c == 'N' || c == 'K' || c == 'L' || c == 'E') {
      ++position;
    } else {
      break;
    }
  }
  return std::string(base.empty() ? name : base);
}

// The text between the '<' at `open` and its '>', or up to the end when the name was cut.
std::string_view template_arguments(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>' && --depth == 0) return text.substr(open + 1, i - open - 1);
  }
  return text.substr(open + 1);
}

std::string plain_base_name(std::string_view name, int depth) {
  // "(anonymous namespace)" and "{lambda()#1}" are parts of a qualified name, not its parameters.
  size_t end = 0;
  size_t begin = 0;  // of the last component
  while (end < name.size()) {
    constexpr std::string_view kAnonymous = "(anonymous namespace)";
    if (name.substr(end).starts_with(kAnonymous)) {
      end += kAnonymous.size();
    } else if (name[end] == '<' && end > begin) {
      break;
    } else if (name[end] == '(') {
      break;
    } else if (name[end] == ':' || name[end] == ' ') {
      begin = ++end;
    } else {
      ++end;
    }
  }
  const std::string_view base = name.substr(begin, end - begin);
  if (end < name.size() && name[end] == '<' && is_wrapper(base) && depth < kDeepestWrapping) {
    std::string_view inner = template_arguments(name, end);
    while (!inner.empty() && !is_identifier(inner.front())) inner.remove_prefix(1);
    // A leading number or flag is not the wrapped class: "kentry<2, Fmha...>".
    while (!inner.empty() && inner.front() >= '0' && inner.front() <= '9') {
      const size_t comma = inner.find(',');
      if (comma == std::string_view::npos) break;
      inner.remove_prefix(comma + 1);
      while (!inner.empty() && inner.front() == ' ') inner.remove_prefix(1);
    }
    if (!inner.empty()) return plain_base_name(inner, depth + 1);
  }
  return std::string(base.empty() ? name : base);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

}  // namespace

std::string kernel_base_name(std::string_view name) {
  if (name.starts_with("_Z")) return mangled_base_name(name);
  for (const std::string_view prefix : {"void ", "static ", "__global__ "}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return plain_base_name(name, 0);
}

bool glob_match(std::string_view pattern, std::string_view text) {
  // On a mismatch, the last '*' takes one character more.
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && lower(pattern[p]) == lower(text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace fovea::trace
