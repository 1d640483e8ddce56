#include "apps/cli/strict_numbers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

namespace fovea::cli {
namespace {

template <typename Number>
std::string complaint(const std::string& text, const char* expected) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end) return "";
  return fmt::format("\"{}\" is not {}", text, expected);
}

std::string check_int(const std::string& text) {
  return complaint<int64_t>(text, "a whole number below 2^63");
}
std::string check_unsigned(const std::string& text) {
  return complaint<uint64_t>(text, "a whole number from 0 to 2^64 - 1");
}
std::string check_float(const std::string& text) { return complaint<double>(text, "a number"); }

}  // namespace

void refuse_odd_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "INT") option->check(check_int);
    if (type == "UINT") option->check(check_unsigned);
    if (type == "FLOAT") option->check(check_float);
  }
  for (CLI::App* command : app.get_subcommands({})) refuse_odd_numbers(*command);
}

}  // namespace fovea::cli
