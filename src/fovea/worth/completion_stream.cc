#include "fovea/worth/completion_stream.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/worth/untrusted_json.h"

namespace fovea::worth {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestEvent = size_t{1} << 20;
constexpr size_t kLongestMessage = 200;
constexpr int64_t kMostCounted = 1'000'000'000'000;
// Pieces of text beyond the tokens asked for: a server may part a token, none sends twice as many.
constexpr int64_t kSparePieces = 64;

const Json* member(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) ? &json.at(key) : nullptr;
}

bool has_text(const Json& json, const char* key) {
  const Json* text = member(json, key);
  return text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty();
}

void take_count(const Json& json, const char* key, std::optional<int64_t>* count) {
  const Json* value = member(json, key);
  if (value == nullptr || !value->is_number_integer()) return;
  const auto number = value->get<int64_t>();
  if (number >= 0 && number <= kMostCounted) *count = number;
}

std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kLongestMessage));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.size() > kLongestMessage ? line + "..." : line;
}

}  // namespace

void CompletionStream::feed(std::string_view bytes, double now_s) {
  for (const char c : bytes) {
    // Lines end with CR, LF, or both.
    if (c == '\n' && after_carriage_return_) {
      after_carriage_return_ = false;
      continue;
    }
    after_carriage_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      end_line(now_s);
      continue;
    }
    line_ += c;
    if (line_.size() > kLongestEvent) {
      fail(ErrorCode::kInvalidFile, "a line of the stream is longer than {} MiB",
           kLongestEvent >> 20);
    }
  }
}

void CompletionStream::end_line(double now_s) {
  std::string line;
  line.swap(line_);
  if (line.empty()) return end_event(now_s);
  if (line.front() == ':') return;  // a comment, which keeps connections alive
  const size_t colon = std::min(line.find(':'), line.size());
  const std::string_view field = std::string_view(line).substr(0, colon);
  std::string_view value = std::string_view(line).substr(std::min(colon + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event" || field == "id" || field == "retry") return;
  if (field != "data") {
    fail(ErrorCode::kInvalidFile, "the stream is not server-sent events: it has the line \"{}\"",
         shown(line));
  }
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
  if (data_.size() > kLongestEvent) {
    fail(ErrorCode::kInvalidFile, "an event of the stream is longer than {} MiB",
         kLongestEvent >> 20);
  }
}

void CompletionStream::end_event(double now_s) {
  if (!has_data_) return;
  std::string data;
  data.swap(data_);
  has_data_ = false;
  if (done_) return;
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  ++num_events_;
  if (num_events_ > 2 * most_tokens_ + kSparePieces) {
    fail(ErrorCode::kInvalidFile, "the server sends more than the {} tokens asked for",
         most_tokens_);
  }
  const Json event = parse_untrusted_json(data);
  if (event.is_discarded() || !event.is_object()) {
    fail(ErrorCode::kInvalidFile, "event {} of the stream is not a JSON object: \"{}\"",
         num_events_, shown(data));
  }
  if (const Json* error = member(event, "error"); error != nullptr && !error->is_null()) {
    fail(ErrorCode::kInvalidFile, "the server broke off: {}", server_error_text(data));
  }
  if (const Json* choices = member(event, "choices");
      choices != nullptr && choices->is_array() && !choices->empty()) {
    const Json& choice = choices->front();
    const Json* delta = member(choice, "delta");
    const bool text = has_text(choice, "text") ||
                      (delta != nullptr &&
                       (has_text(*delta, "content") || has_text(*delta, "reasoning_content") ||
                        has_text(*delta, "reasoning")));
    if (text) arrivals_s_.push_back(now_s);
    finished_ = finished_ || has_text(choice, "finish_reason");
  }
  if (const Json* usage = member(event, "usage"); usage != nullptr) {
    take_count(*usage, "prompt_tokens", &prompt_tokens_);
    take_count(*usage, "completion_tokens", &output_tokens_);
    if (const Json* details = member(*usage, "prompt_tokens_details"); details != nullptr) {
      take_count(*details, "cached_tokens", &cached_tokens_);
    }
  }
  // llama.cpp's server says here what its cache gave.
  if (const Json* timings = member(event, "timings"); timings != nullptr) {
    take_count(*timings, "cache_n", &cached_tokens_);
  }
}

void CompletionStream::finish() {
  if (done_ || finished_) return;
  if (num_events_ == 0) fail(ErrorCode::kInvalidFile, "the server's answer is empty");
  fail(ErrorCode::kInvalidFile, "the server stopped in mid-stream, after {} pieces of text",
       arrivals_s_.size());
}

std::string server_error_text(std::string_view body) {
  const Json json = parse_untrusted_json(body);
  const Json* at = json.is_discarded() ? nullptr : &json;
  if (at != nullptr && at->is_array() && !at->empty()) at = &at->front();
  if (const Json* error = at == nullptr ? nullptr : member(*at, "error"); error != nullptr) {
    at = error;
  }
  if (at != nullptr && at->is_string()) return one_line(at->get_ref<const std::string&>());
  for (const char* key : {"message", "detail"}) {
    const Json* text = at == nullptr ? nullptr : member(*at, key);
    if (text != nullptr && text->is_string()) {
      return one_line(text->get_ref<const std::string&>());
    }
  }
  return one_line(body);
}

}  // namespace fovea::worth
