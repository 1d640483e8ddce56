#include "fovea/trace/event_splitter.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <array>
#include <bit>
#include <cstring>

#include "fovea/base/error.h"

namespace fovea::trace {
namespace {

constexpr size_t kReadSize = 1 << 18;  // fits the second-level cache
constexpr size_t kLongestMember = 64 << 10;
constexpr size_t kMostMembers = 256;

// Bytes that end a run: in a string the quote, the backslash and control characters; outside, what
// opens or closes something.
constexpr std::array<bool, 256> string_stops() {
  std::array<bool, 256> stops{};
  for (size_t c = 0; c < 0x20; ++c) stops[c] = true;
  stops['"'] = stops['\\'] = true;
  return stops;
}
constexpr std::array<bool, 256> value_stops() {
  std::array<bool, 256> stops{};
  stops['"'] = stops['{'] = stops['}'] = stops['['] = stops[']'] = true;
  return stops;
}
constexpr std::array<bool, 256> kStringStops = string_stops();
constexpr std::array<bool, 256> kValueStops = value_stops();

bool stops_string(char c) { return kStringStops[static_cast<unsigned char>(c)]; }
bool stops_value(char c) { return kValueStops[static_cast<unsigned char>(c)]; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool ends_scalar(char c) { return c == ',' || c == '}' || c == ']' || is_space(c); }

#ifdef __SSE2__
constexpr int64_t kBlockBytes = 64;

/// One bit for each of 64 bytes that is of a kind.
struct Block {
  uint64_t quotes = 0, backslashes = 0, controls = 0, opening = 0, closing = 0;

  explicit Block(const char* bytes) {
    const auto is = [](__m128i values, char c) { return _mm_cmpeq_epi8(values, _mm_set1_epi8(c)); };
    const auto bits = [](__m128i matches, int shift) {
      return static_cast<uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(matches))) << shift;
    };
    const __m128i last_control = _mm_set1_epi8(0x1f);
    const __m128i bracket_bit = _mm_set1_epi8('{' ^ '[');  // the same between '}' and ']'
    for (int at = 0; at < kBlockBytes; at += 16) {
      const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + at));
      const __m128i as_brace = _mm_or_si128(v, bracket_bit);
      quotes |= bits(is(v, '"'), at);
      backslashes |= bits(is(v, '\\'), at);
      controls |= bits(_mm_cmpeq_epi8(_mm_min_epu8(v, last_control), v), at);
      opening |= bits(is(as_brace, '{'), at);
      closing |= bits(is(as_brace, '}'), at);
    }
  }

  /// Bytes inside strings, opening quotes included: each bit is the parity of the quotes up to it.
  uint64_t inside(bool starts_inside) const {
    uint64_t parity = quotes;
    for (int shift = 1; shift < 64; shift *= 2) parity ^= parity << shift;
    return starts_inside ? ~parity : parity;
  }
};
#endif

std::string describe_start(std::string_view text) {
  if (text.empty()) return "it is empty";
  if (text.starts_with("PK")) return "it is a zip archive: unpack it first";
  if (text.starts_with("SQLite format 3")) {
    return "it is an SQLite file (Nsight Systems?): export it as a Chrome trace first";
  }
  if (text.starts_with("\x28\xb5\x2f\xfd")) return "it is zstd: unpack it first";
  if (text.starts_with("NSYS")) return "it is an Nsight Systems report: export it first";
  if (text.starts_with("\x0a"))
    return "it looks like a Perfetto protobuf: convert it to JSON first";
  return "JSON begins with '{' or '['";
}

}  // namespace

// Returns one past the closing quote, or nullptr when the string goes on.
char* ValueScanner::scan_string(char* p, char* end) {
  if (escaped_ && p < end) {
    ++p;
    escaped_ = false;
  }
  while (p < end) {
    while (p < end && !stops_string(*p)) ++p;
    if (p == end) return nullptr;
    if (*p == '"') {
      in_string_ = false;
      return p + 1;
    }
    if (*p == '\\') {
      if (p + 1 == end) {
        escaped_ = true;
        return nullptr;
      }
      p += 2;
    } else {
      *p++ = ' ';
      ++num_control_characters_;
    }
  }
  return nullptr;
}

char* ValueScanner::scan(char* p, char* end) {
  if (!started_ && p < end) {
    started_ = true;
    scalar_ = *p != '"' && *p != '{' && *p != '[';
  }
  if (scalar_) {
    while (p < end && !ends_scalar(*p)) ++p;
    return p < end ? p : nullptr;
  }
  if (depth_ == 0 && !in_string_ && p < end && *p != '"') {
    depth_ = 1;
    ++p;
  }
  char* value_end = nullptr;
  p = scan_blocks(p, end, &value_end);
  return value_end != nullptr ? value_end : scan_bytes(p, end);
}

// Takes whole blocks while it can; returns where it stopped, or sets `value_end`. Most blocks have
// neither escapes nor control characters in strings: only brackets outside strings are looked at.
char* ValueScanner::scan_blocks(char* p, char* end, char** value_end) {
#ifdef __SSE2__
  if (depth_ == 0) return p;  // a string: it ends with its quote
  for (; end - p >= kBlockBytes; p += kBlockBytes) {
    const Block block(p);
    const uint64_t inside = block.inside(in_string_);
    if (escaped_ || block.backslashes != 0 || (block.controls & inside) != 0) {
      *value_end = scan_bytes(p, p + kBlockBytes);
      if (*value_end != nullptr) return p;
      continue;
    }
    for (uint64_t brackets = (block.opening | block.closing) & ~inside; brackets != 0;
         brackets &= brackets - 1) {
      const int at = std::countr_zero(brackets);
      depth_ += (block.opening >> at & 1) != 0 ? 1 : -1;
      if (depth_ == 0) {
        *value_end = p + at + 1;
        return p;
      }
    }
    in_string_ = inside >> 63 != 0;
  }
#else
  static_cast<void>(end);
  static_cast<void>(value_end);
#endif
  return p;
}

char* ValueScanner::scan_bytes(char* p, char* end) {
  while (p < end) {
    if (in_string_) {
      p = scan_string(p, end);
      if (p == nullptr) return nullptr;
      if (depth_ == 0) return p;
    }
    while (p < end && !stops_value(*p)) ++p;
    if (p == end) return nullptr;
    const char c = *p++;
    if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (--depth_ <= 0) {
      return p;
    }
  }
  return nullptr;
}

EventSplitter::EventSplitter(ByteSource* source) : source_(source) { begin(); }

bool EventSplitter::fill() {
  const size_t first = keeping_ ? keep_ : position_;
  if (first > 0) {
    std::memmove(buffer_.data(), buffer_.data() + first, end_ - first);
    position_ -= first;
    end_ -= first;
    keep_ = 0;
  }
  if (buffer_.size() < end_ + kReadSize + kPadding) {
    // Doubling while a long value is held; the first call makes the buffer.
    buffer_.resize(std::max(buffer_.size() * 2, end_ + kReadSize + kPadding));
  }
  const size_t got = source_->read(buffer_.data() + end_, kReadSize);
  end_ += got;
  return got > 0;
}

int EventSplitter::peek() {
  for (;;) {
    while (position_ < end_) {
      if (!is_space(buffer_[position_])) return static_cast<unsigned char>(buffer_[position_]);
      ++position_;
    }
    if (!fill()) return -1;
  }
}

// Consumes one value at position_. A value longer than `longest` is walked but not kept.
std::string_view EventSplitter::take_value(size_t longest) {
  ValueScanner scanner;
  keeping_ = true;
  keep_ = position_;
  const auto finish = [&] {
    counts_.num_control_characters += scanner.num_control_characters();
    const bool kept = keeping_;
    keeping_ = false;
    return kept ? std::string_view(buffer_.data() + keep_, position_ - keep_) : std::string_view();
  };
  for (;;) {
    char* value_end = scanner.scan(buffer_.data() + position_, buffer_.data() + end_);
    if (value_end != nullptr) {
      position_ = static_cast<size_t>(value_end - buffer_.data());
      if (keeping_ && position_ - keep_ > longest) keeping_ = false;
      return finish();
    }
    position_ = end_;
    if (keeping_ && position_ - keep_ > longest) keeping_ = false;
    if (!fill()) {
      counts_.truncated = true;
      place_ = Place::kDone;
      keeping_ = false;
      return finish();
    }
  }
}

void EventSplitter::refuse(std::string_view why) const {
  fail(ErrorCode::kInvalidFile, "not a Chrome trace: {}", why);
}

void EventSplitter::expect(char c) {
  const int next = peek();
  if (next == -1) {
    counts_.truncated = true;
    place_ = Place::kDone;
  } else if (next != c) {
    fail(ErrorCode::kInvalidFile, "not a Chrome trace: expected '{}' near byte {}, found '{}'", c,
         source_->bytes() - static_cast<int64_t>(end_ - position_),
         next >= 0x20 && next < 0x7f ? static_cast<char>(next) : '?');
  } else {
    ++position_;
  }
}

void EventSplitter::begin() {
  fill();
  const std::string_view start(buffer_.data(), end_);
  if (start.starts_with("\xef\xbb\xbf")) position_ = 3;
  const int first = peek();
  if (first == '[') {
    ++position_;
    place_ = Place::kInEvents;
    saw_events_ = true;
  } else if (first == '{') {
    ++position_;
    is_object_ = true;
    place_ = Place::kInObject;
  } else {
    refuse(describe_start(start));
  }
}

// Returns whether the list of events has begun; false at the end of the object.
bool EventSplitter::enter_events() {
  while (place_ == Place::kInObject) {
    const int next = peek();
    if (next == '}' || next == -1) {
      counts_.truncated = counts_.truncated || next == -1;
      place_ = Place::kDone;
      break;
    }
    if (next == ',') {
      ++position_;
      continue;
    }
    if (next != '"') expect('"');
    const std::string key(take_value(kLongestMember));
    expect(':');
    if (place_ == Place::kDone) break;
    const int value = peek();
    if (key == "\"traceEvents\"" && value == '[' && !saw_events_) {
      ++position_;
      saw_events_ = true;
      place_ = Place::kInEvents;
      return true;
    }
    if (value == ',' || value == '}' || value == ':') expect('"');  // a member without a value
    const std::string_view text = take_value(kLongestMember);
    if (key.size() > 2 && !text.empty() && members_.size() < kMostMembers) {
      members_.emplace_back(key.substr(1, key.size() - 2), text);
    }
  }
  if (!saw_events_) {
    refuse(counts_.truncated ? "the JSON ends before any \"traceEvents\""
                             : "the JSON object has no \"traceEvents\" list");
  }
  return false;
}

std::string_view EventSplitter::next_event() {
  for (;;) {
    if (place_ == Place::kInObject && !enter_events()) return {};
    if (place_ == Place::kDone) return {};
    const int next = peek();
    if (next == -1) {
      counts_.truncated = true;
      place_ = Place::kDone;
    } else if (next == ',') {
      ++position_;
    } else if (next == ']') {
      ++position_;
      place_ = is_object_ ? Place::kInObject : Place::kDone;
    } else if (next == '{') {
      const std::string_view event = take_value(kLongestEvent);
      if (!event.empty()) return event;
      if (place_ != Place::kDone) ++counts_.num_not_objects;
    } else {
      if (next == '}' || next == ':') expect(',');
      take_value(kLongestEvent);
      ++counts_.num_not_objects;
    }
  }
}

std::string_view EventSplitter::member(std::string_view key) const {
  for (const auto& [name, text] : members_) {
    if (name == key) return text;
  }
  return {};
}

}  // namespace fovea::trace
