// One error type for the whole library. Public functions throw it; nothing prints, aborts or exits.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace fovea {

enum class ErrorCode {
  kInvalidArgument,  // the caller broke a rule of the function
  kUnsupported,      // valid, but no code of ours does it
  kInvalidFile,      // a file's content breaks its format, or the file cannot be read or written
  kOutOfMemory,      // an allocation that the message sizes failed
  kDevice,           // a GPU or its driver failed or is missing
};

/// Name of a code as it appears in JSON, for example "invalid_argument".
std::string_view error_code_name(ErrorCode code);

/// The only exception that crosses a public border. `what()` is one line: the rule, then the value.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws kInvalidArgument unless `condition` holds; for checks of a public function's arguments.
template <typename... Args>
void check_argument(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

}  // namespace fovea
