#include "apps/cli/parse_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"

namespace fovea::cli {

std::vector<std::string> split_list(std::string_view text, std::string_view option) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t first = part.find_first_not_of(' ');
    check_argument(first != std::string_view::npos, "{} has an empty entry in \"{}\"", option,
                   text);
    parts.emplace_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
    begin = end + 1;
  }
  return parts;
}

int64_t parse_tokens(std::string_view text, std::string_view option) {
  std::string_view digits = text;
  int64_t unit = 1;
  if (!digits.empty() && (digits.back() == 'K' || digits.back() == 'k')) unit = 1 << 10;
  if (!digits.empty() && (digits.back() == 'M' || digits.back() == 'm')) unit = 1 << 20;
  if (unit > 1) digits.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  check_argument(whole && value > 0 && value <= std::numeric_limits<int64_t>::max() / unit,
                 "{} must be a positive number of tokens such as 4096 or 4K, not \"{}\"", option,
                 text);
  return value * unit;
}

std::vector<int64_t> parse_tokens_list(std::string_view text, std::string_view option) {
  std::vector<int64_t> values;
  for (const std::string& part : split_list(text, option)) {
    const size_t dots = part.find("..");
    if (dots == std::string::npos) {
      values.push_back(parse_tokens(part, option));
      continue;
    }
    const int64_t first = parse_tokens(part.substr(0, dots), option);
    const int64_t last = parse_tokens(part.substr(dots + 2), option);
    check_argument(first < last, "{}: the range \"{}\" must go upwards", option, part);
    for (int64_t value = first; value < last; value *= 2) {
      values.push_back(value);
      if (value > last / 2) break;  // doubling could pass the end of the type
    }
    values.push_back(last);
  }
  check_argument(!values.empty(), "{} is empty", option);
  return values;
}

std::vector<float> parse_positive_numbers(std::string_view text, std::string_view option) {
  std::vector<float> numbers;
  for (const std::string& part : split_list(text, option)) {
    float number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool whole = error == std::errc() && end == part.data() + part.size();
    check_argument(whole && std::isfinite(number) && number > 0,
                   "{} must be positive numbers, not \"{}\"", option, part);
    numbers.push_back(number);
  }
  check_argument(!numbers.empty(), "{} is empty", option);
  return numbers;
}

}  // namespace fovea::cli
