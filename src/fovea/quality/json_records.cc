#include "fovea/quality/json_records.h"

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

constexpr size_t kLargest = size_t{64} << 20;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Bytes of the object that `text` begins with, braces of strings not counted; 0 when it does not
// end.
size_t object_size(std::string_view text) {
  int64_t depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return at + 1;
    }
  }
  return 0;
}

}  // namespace

JsonRecords::JsonRecords(std::string_view content, const std::string& name)
    : rest_(content), name_(name) {
  if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);  // a byte order mark
  skip_blanks();
  is_list_ = rest_.starts_with('[');
  if (is_list_) rest_.remove_prefix(1);
}

std::optional<JsonRecord> JsonRecords::next() {
  skip_blanks();
  const std::optional<JsonRecord> record = is_list_ ? next_element() : next_line();
  if (record && record->text.size() > kLargest) {
    fail(ErrorCode::kInvalidFile, "'{}, line {}': a record must have at most {} MiB, has {}", name_,
         record->line, kLargest >> 20, record->text.size() >> 20);
  }
  return record;
}

void JsonRecords::skip_blanks() {
  while (!rest_.empty() && is_blank(rest_.front())) {
    if (rest_.front() == '\n') ++line_;
    rest_.remove_prefix(1);
  }
}

std::optional<JsonRecord> JsonRecords::next_line() {
  if (rest_.empty()) return std::nullopt;
  const JsonRecord record = {rest_.substr(0, rest_.find('\n')), line_};
  rest_.remove_prefix(record.text.size());
  return record;
}

std::optional<JsonRecord> JsonRecords::next_element() {
  const auto expect = [&](bool is_right, std::string_view what) {
    if (!is_right) fail(ErrorCode::kInvalidFile, "'{}, line {}': {}", name_, line_, what);
  };
  expect(!rest_.empty(), "the list does not end");
  if (rest_.front() == ']') {
    rest_.remove_prefix(1);
    skip_blanks();
    expect(rest_.empty(), "something follows the list");
    is_list_ = false;  // and nothing is left: no more lines
    return std::nullopt;
  }
  if (!is_first_) {
    expect(rest_.front() == ',', "a comma must part the list's records");
    rest_.remove_prefix(1);
    skip_blanks();
  }
  is_first_ = false;
  expect(rest_.starts_with('{'), "the list must hold objects");
  const size_t size = object_size(rest_);
  expect(size > 0, "the record does not end");
  const JsonRecord record = {rest_.substr(0, size), line_};
  line_ += std::count(record.text.begin(), record.text.end(), '\n');
  rest_.remove_prefix(size);
  return record;
}

}  // namespace fovea::quality
