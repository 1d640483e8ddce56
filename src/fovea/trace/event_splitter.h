// Cuts a Chrome trace into its events without holding it: the outer JSON is walked byte by byte,
// and each event comes out as a piece of text that a JSON parser reads on its own. One bad event
// spoils only itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/trace/byte_source.h"

namespace fovea::trace {

/// Follows one JSON value through any number of buffers: strings, escapes, nesting. Control
/// characters inside strings, which Kineto writes and JSON forbids, are overwritten with spaces and
/// counted.
class ValueScanner {
 public:
  /// Starts on a value whose first byte is next.
  void start() { *this = ValueScanner(); }
  /// Consumes [begin, end); returns one past the value's last byte, or nullptr when it goes on past
  /// `end`. A scalar ends before the byte that follows it.
  char* scan(char* begin, char* end);

  int64_t num_control_characters() const { return num_control_characters_; }

 private:
  char* scan_string(char* p, char* end);
  char* scan_bytes(char* p, char* end);
  char* scan_blocks(char* p, char* end, char** value_end);

  int64_t num_control_characters_ = 0;
  int32_t depth_ = 0;
  bool started_ = false;
  bool scalar_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

/// What the walk found beside the events.
struct SplitCounts {
  int64_t num_control_characters = 0;  // inside strings, replaced
  int64_t num_not_objects = 0;         // elements of traceEvents that are not objects, or oversized
  bool truncated = false;              // the file ends inside the list of events
};

/// Iterates over the events of one trace, either `[event, ...]` or `{"traceEvents": [event, ...],
/// ...}`.
class EventSplitter {
 public:
  /// `source` outlives the splitter. Throws kInvalidFile when the text is not a Chrome trace,
  /// saying what it looks like instead.
  explicit EventSplitter(ByteSource* source);

  /// The next event's text, or an empty view at the end. It stays valid until the next call, and is
  /// followed by kPadding readable bytes. Throws kInvalidFile when the text outside events is not
  /// JSON.
  std::string_view next_event();

  /// A top-level member other than the events, as JSON text; empty when absent or longer than 64
  /// KiB. Members after the events are known once next_event() returned an empty view.
  std::string_view member(std::string_view key) const;

  const SplitCounts& counts() const { return counts_; }

  static constexpr size_t kPadding = 64;
  static constexpr size_t kLongestEvent = 16 << 20;

 private:
  enum class Place { kStart, kInObject, kInEvents, kDone };

  bool fill();  // more bytes behind end_; false at the end of the file
  int peek();   // next byte that is not white space, or -1
  std::string_view take_value(size_t longest);  // empty when longer; kept from value_begin
  void begin();
  bool enter_events();  // walks an object's members up to its events
  void expect(char c);
  [[noreturn]] void refuse(std::string_view why) const;

  ByteSource* source_;
  std::vector<char> buffer_;
  size_t position_ = 0;  // next byte to look at
  size_t end_ = 0;       // of the valid bytes
  size_t keep_ = 0;      // first byte that fill() must not drop
  bool keeping_ = false;
  Place place_ = Place::kStart;
  bool is_object_ = false;
  bool saw_events_ = false;
  SplitCounts counts_;
  std::vector<std::pair<std::string, std::string>> members_;
};

}  // namespace fovea::trace
