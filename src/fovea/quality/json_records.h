// Cuts JSON files of many records into single ones, without reading the whole into a tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fovea::quality {

/// One record as it stands in the file.
struct JsonRecord {
  std::string_view text;
  int64_t line = 0;  // where it begins, from 1
};

/// Gives the records of a JSON list, or of lines with one each, whichever `content` begins like.
class JsonRecords {
 public:
  /// `name` is the file's in messages; both must outlive this.
  JsonRecords(std::string_view content, const std::string& name);

  /// The next record; none at the end. Its text is not checked to be JSON. Throws kInvalidFile for
  /// a list that does not end or holds other things than objects, and for records over 64 MiB.
  std::optional<JsonRecord> next();

 private:
  void skip_blanks();
  std::optional<JsonRecord> next_line();
  std::optional<JsonRecord> next_element();

  std::string_view rest_;
  const std::string& name_;
  int64_t line_ = 1;
  bool is_list_ = false;
  bool is_first_ = true;
};

}  // namespace fovea::quality
