// A streamed answer of an OpenAI-compatible server, read from its bytes as they arrive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::worth {

/// Reads the server-sent events of one completion or chat completion and notes when text came.
///
/// Feed it bytes in pieces of any size, then call finish(). Both throw kInvalidFile with one line
/// when the stream is not what the protocol says; the object is then not to be used again. Memory
/// is bounded: lines, events and their number are.
class CompletionStream {
 public:
  /// `most_tokens`: the answer's tokens that were asked for. A server that sends many more pieces
  /// of text is refused.
  explicit CompletionStream(int64_t most_tokens) : most_tokens_(most_tokens) {}

  /// `now_s`: when the bytes arrived, seconds of any steady clock.
  void feed(std::string_view bytes, double now_s);
  /// The connection has ended. Throws when the answer had not.
  void finish();

  /// Whether the server said that the stream is over.
  bool done() const { return done_; }
  /// When each piece of text arrived: one a token, unless the server bundles them.
  const std::vector<double>& arrivals_s() const { return arrivals_s_; }
  // As the server counts; empty when it does not say.
  const std::optional<int64_t>& prompt_tokens() const { return prompt_tokens_; }
  const std::optional<int64_t>& cached_tokens() const { return cached_tokens_; }
  const std::optional<int64_t>& output_tokens() const { return output_tokens_; }

 private:
  void end_line(double now_s);
  void end_event(double now_s);

  int64_t most_tokens_ = 0;
  std::string line_;
  bool after_carriage_return_ = false;
  std::string data_;  // of the event in progress
  bool has_data_ = false;
  int64_t num_events_ = 0;
  bool done_ = false;
  bool finished_ = false;  // a reason for the end was given
  std::vector<double> arrivals_s_;
  std::optional<int64_t> prompt_tokens_, cached_tokens_, output_tokens_;
};

/// What an error answer says: the "message" or "detail" of its JSON, else its text; one line of at
/// most 200 characters.
std::string server_error_text(std::string_view body);

}  // namespace fovea::worth
