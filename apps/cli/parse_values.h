// Values of options that are more than one number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::cli {

/// Parts between commas, blanks around them removed; none in an empty text.
/// Throws kInvalidArgument naming `option` and the text when a part is empty.
std::vector<std::string> split_list(std::string_view text, std::string_view option);

/// A positive number of tokens; "8K" is 8,192 and "1M" is 1,048,576.
/// Throws kInvalidArgument naming `option` and the text.
int64_t parse_tokens(std::string_view text, std::string_view option);

/// "1K,2048" -> {1024, 2048}, in the order given; "1K..6K" is 1K, 2K, 4K and 6K: doublings, and the
/// end. Throws as above, and when the list is empty.
std::vector<int64_t> parse_tokens_list(std::string_view text, std::string_view option);

/// "1.5,0.25" -> {1.5, 0.25}. Throws as above unless each is a positive, finite number.
std::vector<float> parse_positive_numbers(std::string_view text, std::string_view option);

}  // namespace fovea::cli
