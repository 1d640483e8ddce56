#include "apps/cli/sweep_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/engine/session.h"
#include "fovea/worth/completion_stream.h"
#include "fovea/worth/untrusted_json.h"

namespace fovea::cli {
namespace {

using Clock = std::chrono::steady_clock;
using worth::CompletionStream;

constexpr size_t kLargestBody = size_t{4} << 20;  // of an answer that is no stream
constexpr int64_t kConnectTimeoutS = 10;

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

struct ServerAddress {
  std::string origin;  // "http://host:port"
  std::string base;    // path before /v1, without a slash at its end
};

ServerAddress parse_url(const std::string& url) {
  const size_t scheme_end = url.find("://");
  const std::string scheme = url.substr(0, std::min(scheme_end, url.size()));
  const bool printable =
      std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
  check_argument(
      scheme_end != std::string::npos && (scheme == "http" || scheme == "https") && printable,
      "--url must be like http://localhost:8000, not \"{}\"", url);
  const size_t path = std::min(url.find('/', scheme_end + 3), url.size());
  ServerAddress address{url.substr(0, path), url.substr(path)};
  const std::string host = address.origin.substr(scheme_end + 3);
  const size_t colon = host.find_last_of(":]");
  const bool has_port = colon != std::string::npos && host[colon] == ':';
  const std::string port = has_port ? host.substr(colon + 1) : "80";
  const bool digits =
      !port.empty() && port.size() <= 5 &&
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool has_host =
      !host.empty() && colon != 0 && host.find_first_of("@?#") == std::string::npos;
  check_argument(has_host && digits && std::stoi(port) >= 1 && std::stoi(port) <= 65535,
                 "--url must be like http://localhost:8000, not \"{}\"", url);
  while (address.base.ends_with('/')) address.base.pop_back();
  if (address.base.ends_with("/v1")) address.base.resize(address.base.size() - 3);
  return address;
}

std::string api_key(const std::string& variable) {
  if (variable.empty()) return "";
  const char* key = std::getenv(variable.c_str());
  check_argument(key != nullptr && *key != '\0', "--api-key-env: the variable {} is not set",
                 variable);
  for (const char* c = key; *c != '\0'; ++c) {
    check_argument(*c > ' ' && *c < 0x7f,
                   "--api-key-env: {} holds more than a key: blanks or line ends", variable);
  }
  return key;
}

/// Stops a client when a flag is raised, whatever it is waiting for.
class Watcher {
 public:
  Watcher(httplib::Client& client, const std::atomic<bool>* cancel)
      : thread_([&client, cancel](const std::stop_token& end) {
          while (!end.stop_requested()) {
            if (cancel != nullptr && cancel->load()) client.stop();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

struct CompletionClient::Impl {
  Impl(const ServerOptions& options_in, const std::atomic<bool>* cancel_in)
      : options(options_in),
        address(parse_url(options_in.url)),
        client(address.origin),
        cancel(cancel_in) {
    client.set_connection_timeout(kConnectTimeoutS);
    client.set_read_timeout(options.timeout_s);
    client.set_write_timeout(options.timeout_s);
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    const std::string key = api_key(options.api_key_env);
    if (!key.empty()) client.set_bearer_token_auth(key);
  }

  bool cancelled() const { return cancel != nullptr && cancel->load(); }
  std::string path(const char* end) const { return address.base + end; }
  [[noreturn]] void fail_to_connect(httplib::Error error, double waited_s,
                                    const std::string& asked) const;
  [[noreturn]] void refuse(const std::string& asked, int status, const std::string& body) const;
  nlohmann::json request_body(const std::string& prompt, int64_t max_tokens) const;
  bool drop_refused_field(int status, const std::string& body);
  std::optional<SweepSample> try_complete(const std::string& prompt, int64_t max_tokens);
  SweepSample to_sample(const CompletionStream& stream, double sent_s);
  void note(const std::string& text) {
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(text);
  }

  ServerOptions options;
  ServerAddress address;
  httplib::Client client;
  const std::atomic<bool>* cancel;
  std::string model;
  // Fields beyond the oldest protocol, which a server may refuse.
  std::vector<std::string> extra_fields = {"ignore_eos", "stream_options"};
  std::vector<std::string> notes;
};

void CompletionClient::Impl::fail_to_connect(httplib::Error error, double waited_s,
                                             const std::string& asked) const {
  if (cancelled()) throw Cancelled();
  if (error == httplib::Error::Connection) {
    fail(ErrorCode::kInvalidArgument, "cannot connect to {}: is a server running there?",
         address.origin);
  }
  if (error == httplib::Error::Read && waited_s >= static_cast<double>(options.timeout_s)) {
    fail(ErrorCode::kInvalidArgument, "{}: no byte for {} s (--timeout)", asked, options.timeout_s);
  }
  if (error == httplib::Error::Read) {
    fail(ErrorCode::kInvalidFile,
         "{}: the server closed the connection before its answer was whole", asked);
  }
  fail(ErrorCode::kInvalidArgument, "{}: {}", asked, httplib::to_string(error));
}

void CompletionClient::Impl::refuse(const std::string& asked, int status,
                                    const std::string& body) const {
  std::string hint;
  if (status == 401 || status == 403) {
    hint = options.api_key_env.empty() ? " (--api-key-env names a variable with the key)"
                                       : " (is the key in " + options.api_key_env + " right?)";
  }
  if (status == 404)
    hint = options.chat ? " (is --model right?)"
                        : " (is --model right? --chat asks the chat endpoint)";
  if (status == 429) hint = " (the server limits requests: measure it when it is idle)";
  const std::string text = worth::server_error_text(body);
  fail(ErrorCode::kInvalidArgument, "{}: HTTP {}{}{}{}", asked, status, text.empty() ? "" : ": ",
       text, hint);
}

nlohmann::json CompletionClient::Impl::request_body(const std::string& prompt,
                                                    int64_t max_tokens) const {
  nlohmann::json body = {
      {"model", model}, {"max_tokens", max_tokens}, {"temperature", 0}, {"stream", true}};
  if (options.chat) {
    body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  } else {
    body["prompt"] = prompt;
  }
  for (const std::string& field : extra_fields) {
    if (field == "ignore_eos") body[field] = true;
    if (field == "stream_options") body[field] = {{"include_usage", true}};
  }
  return body;
}

/// Whether the request was refused for a field that can be left out; it is from then on.
bool CompletionClient::Impl::drop_refused_field(int status, const std::string& body) {
  if (status != 400 && status != 422) return false;
  for (const std::string& field : extra_fields) {
    if (body.find(field) == std::string::npos) continue;
    note(fmt::format("the server does not know {}: {}", field,
                     field == "ignore_eos" ? "answers may be shorter than asked for"
                                           : "it may not count the prompt's tokens"));
    std::erase(extra_fields, std::string(field));
    return true;
  }
  return false;
}

/// Empty when a field was dropped and the request is to be sent again.
std::optional<SweepSample> CompletionClient::Impl::try_complete(const std::string& prompt,
                                                                int64_t max_tokens) {
  const std::string asked =
      "POST " + address.origin + path(options.chat ? "/v1/chat/completions" : "/v1/completions");
  httplib::Request request;
  request.method = "POST";
  request.path = path(options.chat ? "/v1/chat/completions" : "/v1/completions");
  request.set_header("Content-Type", "application/json");
  request.set_header("Accept", "text/event-stream");
  request.body = json_text(request_body(prompt, max_tokens), -1);

  CompletionStream stream(max_tokens);
  std::exception_ptr error;  // must not pass through the library
  int status = 0;
  bool is_stream = false;
  std::string body;
  double last_byte_s = now_s();
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    is_stream =
        status == 200 &&
        response.get_header_value("Content-Type").find("text/event-stream") != std::string::npos;
    return true;
  };
  request.content_receiver = [&](const char* bytes, size_t size, uint64_t, uint64_t) {
    last_byte_s = now_s();
    if (!is_stream) {
      body.append(bytes, std::min(size, kLargestBody - body.size()));
      return body.size() < kLargestBody;
    }
    try {
      stream.feed({bytes, size}, last_byte_s);
    } catch (...) {
      error = std::current_exception();
    }
    return error == nullptr;
  };
  const double sent_s = now_s();
  const httplib::Result result = client.send(request);
  if (cancelled()) throw Cancelled();
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& mistake) {
      throw Error(mistake.code(), asked + ": " + mistake.what());
    }
  }
  if (status == 0 ||
      (result.error() != httplib::Error::Success && status == 200 && !stream.done())) {
    if (result.error() == httplib::Error::Read && !stream.arrivals_s().empty() &&
        now_s() - last_byte_s < static_cast<double>(options.timeout_s)) {
      fail(ErrorCode::kInvalidFile, "{}: the server stopped in mid-stream, after {} pieces of text",
           asked, stream.arrivals_s().size());
    }
    fail_to_connect(result.error(), now_s() - last_byte_s, asked);
  }
  if (drop_refused_field(status, body)) return {};
  if (status != 200) refuse(asked, status, body);
  if (!is_stream) {
    fail(ErrorCode::kInvalidFile,
         "{}: the server answers without streaming, so tokens cannot be timed", asked);
  }
  try {
    stream.finish();
  } catch (const Error& mistake) {
    throw Error(mistake.code(), asked + ": " + mistake.what());
  }
  if (stream.arrivals_s().empty()) {
    fail(ErrorCode::kInvalidFile, "{}: the answer has no text, so there is no first token to time",
         asked);
  }
  return to_sample(stream, sent_s);
}

SweepSample CompletionClient::Impl::to_sample(const CompletionStream& stream, double sent_s) {
  const std::vector<double>& arrivals = stream.arrivals_s();
  SweepSample sample;
  sample.prompt_tokens = stream.prompt_tokens().value_or(0);
  sample.cached_tokens = stream.cached_tokens();
  if (!stream.prompt_tokens()) {
    note("the server does not count the prompt's tokens: lengths are words, about a token each");
  }
  if (!stream.cached_tokens()) {
    note(
        "the server does not say what its prefix cache gave (vLLM: "
        "--enable-prompt-tokens-details)");
  }
  sample.ttft_ms = 1e3 * (arrivals.front() - sent_s);
  int64_t num_together = 0;  // pieces that came in one read with the piece before
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap_ms = 1e3 * (arrivals[i] - arrivals[i - 1]);
    sample.itl_ms.push_back(gap_ms);
    num_together += gap_ms <= 0 ? 1 : 0;
  }
  // Where tokens come several at once, gaps are those of the network; the mean is still right.
  const auto num_pieces = static_cast<int64_t>(arrivals.size());
  const int64_t num_tokens = stream.output_tokens().value_or(num_pieces);
  if (num_tokens > 1 && (num_pieces * 10 < num_tokens * 9 || num_together * 10 > num_pieces)) {
    const double answer_ms = 1e3 * (arrivals.back() - arrivals.front());
    sample.itl_ms.clear();
    if (answer_ms > 0) sample.itl_ms.push_back(answer_ms / static_cast<double>(num_tokens - 1));
    note(
        "tokens arrive several at once: itl is each request's mean gap, none where all came at "
        "once");
  }
  return sample;
}

void check_server_options(const ServerOptions& options) {
  parse_url(options.url);
  api_key(options.api_key_env);
  check_argument(options.timeout_s >= 1 && options.timeout_s <= 86'400,
                 "--timeout must be in 1 ... 86400 seconds, is {}", options.timeout_s);
}

CompletionClient::CompletionClient(const ServerOptions& options, const std::atomic<bool>* cancel) {
  check_server_options(options);
  impl_ = std::make_unique<Impl>(options, cancel);
}
CompletionClient::~CompletionClient() = default;

const std::string& CompletionClient::model() {
  Impl& impl = *impl_;
  if (impl.model.empty()) impl.model = impl.options.model;
  if (!impl.model.empty()) return impl.model;
  const std::string asked = "GET " + impl.address.origin + impl.path("/v1/models");
  const Watcher watcher(impl.client, impl.cancel);
  const double sent_s = now_s();
  const httplib::Result result = impl.client.Get(impl.path("/v1/models"));
  if (!result) impl.fail_to_connect(result.error(), now_s() - sent_s, asked);
  if (result->status != 200) impl.refuse(asked, result->status, result->body);
  const nlohmann::ordered_json json = worth::parse_untrusted_json(result->body);
  std::vector<std::string> names;
  if (json.is_object() && json.contains("data") && json.at("data").is_array()) {
    for (const auto& entry : json.at("data")) {
      if (entry.is_object() && entry.contains("id") && entry.at("id").is_string()) {
        names.push_back(entry.at("id").get<std::string>());
      }
    }
  }
  check_argument(!names.empty(), "{}: no list of models: give --model NAME", asked);
  check_argument(
      names.size() == 1, "{} has {} models, give one with --model: {}", impl.address.origin,
      names.size(),
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(names.size(), 10)),
                ", "));
  impl.model = names.front();
  return impl.model;
}

SweepSample CompletionClient::complete(const std::string& prompt, int64_t max_tokens) {
  model();
  const Watcher watcher(impl_->client, impl_->cancel);
  for (;;) {
    if (auto sample = impl_->try_complete(prompt, max_tokens)) return *sample;
  }
}

const std::vector<std::string>& CompletionClient::notes() const { return impl_->notes; }

std::string random_words(int64_t count, std::mt19937_64& random) {
  static constexpr std::array<std::string_view, 64> kWords = {
      "time",    "year",     "people", "way",   "day",    "man",    "thing", "woman",
      "life",    "child",    "world",  "house", "state",  "family", "group", "country",
      "problem", "hand",     "part",   "place", "case",   "week",   "work",  "night",
      "point",   "home",     "water",  "room",  "mother", "area",   "money", "story",
      "fact",    "month",    "lot",    "right", "study",  "book",   "eye",   "job",
      "word",    "business", "issue",  "side",  "kind",   "head",   "black", "white",
      "long",    "high",     "small",  "large", "next",   "early",  "young", "few",
      "public",  "old",      "new",    "great", "big",    "power",  "line",  "end"};
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random() % kWords.size()];
  }
  return text;
}

void sweep_server(CompletionClient& client, const SweepPlan& plan, const SweepProgress& progress,
                  SweepRecord* record) {
  std::mt19937_64 random(plan.seed);
  double words_per_token = 1;
  run_sweep(plan, {client.model()}, progress, [&](int64_t length, size_t, bool timed) {
    const auto num_words =
        std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(length) * words_per_token));
    SweepSample sample = client.complete(random_words(num_words, random), plan.decode_tokens + 1);
    if (sample.prompt_tokens > 0) {
      words_per_token = std::clamp(
          static_cast<double>(num_words) / static_cast<double>(sample.prompt_tokens), 0.1, 2.0);
    } else {
      sample.prompt_tokens = num_words;
    }
    if (timed) record->add(length, client.model(), std::move(sample));
  });
}

}  // namespace fovea::cli
