// `fovea sweep --url` against a server in this process that answers as it is told. Nothing here
// depends on how long anything takes.
#include "apps/cli/sweep_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/engine/session.h"
#include "tests/cli/process.h"

namespace fovea::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

const char kModels[] = R"({"data": [{"id": "tiny"}]})";

std::string event(const Json& json) { return "data: " + json.dump() + "\n\n"; }

std::string text_event(const std::string& text) {
  return event({{"choices", {{{"index", 0}, {"text", text}}}}});
}

/// `num_tokens` tokens, then what the server counted.
std::string answer(int64_t num_tokens, const Json& usage) {
  std::string stream;
  for (int64_t i = 0; i < num_tokens; ++i) stream += text_event(" word");
  return stream + event({{"choices", Json::array()}, {"usage", usage}}) + "data: [DONE]\n\n";
}

/// A server on a free port of this machine.
class FakeServer {
 public:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  explicit FakeServer(Handler completions, std::string path = "/v1/completions",
                      std::string models = kModels) {
    server_.Get("/v1/models", [models](const httplib::Request&, httplib::Response& response) {
      response.set_content(models, "application/json");
    });
    server_.Post(path,
                 [this, completions](const httplib::Request& request, httplib::Response& response) {
                   {
                     const std::lock_guard lock(mutex_);
                     requests_.push_back(Json::parse(request.body));
                     authorization_ = request.get_header_value("Authorization");
                   }
                   completions(request, response);
                 });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeServer() {
    server_.stop();
    thread_.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// Bodies of the requests so far.
  std::vector<Json> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::string authorization() {
    const std::lock_guard lock(mutex_);
    return authorization_;
  }

 private:
  httplib::Server server_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<Json> requests_;
  std::string authorization_;
  int port_ = 0;
};

/// A server that always streams `body`.
FakeServer::Handler streams(const std::string& body) {
  return [body](const httplib::Request&, httplib::Response& response) {
    response.set_content(body, "text/event-stream; charset=utf-8");
  };
}

FakeServer::Handler refuses(int status, const std::string& body) {
  return [status, body](const httplib::Request&, httplib::Response& response) {
    response.status = status;
    response.set_content(body, "application/json");
  };
}

ServerOptions options_for(const std::string& url) {
  ServerOptions options;
  options.url = url;
  return options;
}

/// The one line that one request ends with, "" when it succeeds.
std::string mistake_of(const ServerOptions& options) {
  try {
    CompletionClient client(options, nullptr);
    client.complete("hello", 4);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(CompletionClient, TakesWhatTheServerCounts) {
  FakeServer server(streams(answer(4, {{"prompt_tokens", 7},
                                       {"completion_tokens", 4},
                                       {"prompt_tokens_details", {{"cached_tokens", 2}}}})));
  CompletionClient client(options_for(server.url() + "/v1/"), nullptr);
  const SweepSample sample = client.complete("hello", 4);
  EXPECT_EQ(client.model(), "tiny");
  EXPECT_EQ(sample.prompt_tokens, 7);
  EXPECT_EQ(sample.cached_tokens, 2);
  EXPECT_GT(sample.ttft_ms, 0);
  const Json body = server.requests().at(0);
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["prompt"], "hello");
  EXPECT_EQ(body["max_tokens"], 4);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(server.authorization(), "");
}

TEST(CompletionClient, ChatKeyAndModel) {
  setenv("FOVEA_TEST_KEY", "secret", 1);
  FakeServer server(
      streams(event({{"choices", {{{"delta", {{"content", "hi"}}}, {"finish_reason", "stop"}}}}})),
      "/api/v1/chat/completions");
  ServerOptions options = options_for(server.url() + "/api");
  options.chat = true;
  options.model = "chosen";
  options.api_key_env = "FOVEA_TEST_KEY";
  CompletionClient client(options, nullptr);
  const SweepSample sample = client.complete("hello", 4);
  EXPECT_EQ(sample.prompt_tokens, 0);
  EXPECT_TRUE(sample.itl_ms.empty());
  EXPECT_EQ(server.requests().at(0)["messages"][0]["content"], "hello");
  EXPECT_EQ(server.requests().at(0)["model"], "chosen");
  EXPECT_EQ(server.authorization(), "Bearer secret");
  EXPECT_THAT(client.notes(), testing::Contains(HasSubstr("does not count the prompt's tokens")));
}

TEST(CompletionClient, LeavesOutFieldsThatAreRefused) {
  FakeServer server([](const httplib::Request& request, httplib::Response& response) {
    for (const char* field : {"ignore_eos", "stream_options"}) {
      if (!Json::parse(request.body).contains(field)) continue;
      response.status = 400;
      response.set_content(R"({"error": {"message": "unknown field )" + std::string(field) + "\"}}",
                           "application/json");
      return;
    }
    response.set_content(text_event("a") + "data: [DONE]\n\n", "text/event-stream");
  });
  CompletionClient client(options_for(server.url()), nullptr);
  client.complete("hello", 4);
  client.complete("again", 4);
  EXPECT_EQ(server.requests().size(), 4u);  // twice refused, then remembered
  EXPECT_THAT(client.notes(), testing::Contains(HasSubstr("does not know ignore_eos")));
}

TEST(CompletionClient, TokensInBundlesGiveAMeanGap) {
  FakeServer server(streams(text_event("a b c d") + text_event("e f g h") +
                            event({{"choices", Json::array()},
                                   {"usage", {{"prompt_tokens", 3}, {"completion_tokens", 8}}}}) +
                            "data: [DONE]\n\n"));
  CompletionClient client(options_for(server.url()), nullptr);
  EXPECT_LE(client.complete("hello", 8).itl_ms.size(), 1u);
  EXPECT_THAT(client.notes(), testing::Contains(HasSubstr("several at once")));
}

TEST(CompletionClient, RefusalsNameStatusMessageAndWayOut) {
  const auto mistake = [](int status, const std::string& body) {
    FakeServer server(refuses(status, body));
    return mistake_of(options_for(server.url()));
  };
  EXPECT_THAT(mistake(401, R"({"error": {"message": "no key"}})"),
              AllOf(HasSubstr("HTTP 401: no key"), HasSubstr("--api-key-env")));
  EXPECT_THAT(mistake(404, R"({"detail": "Not Found"})"),
              AllOf(HasSubstr("/v1/completions: HTTP 404: Not Found"), HasSubstr("--chat")));
  EXPECT_THAT(mistake(429, "slow\ndown"), HasSubstr("HTTP 429: slow down (the server limits"));
  EXPECT_THAT(mistake(500, ""), HasSubstr("HTTP 500"));
  EXPECT_THAT(mistake(400, R"({"message": "maximum context length is 2048"})"),
              HasSubstr("HTTP 400: maximum context length is 2048"));
}

TEST(CompletionClient, AnswersThatAreNotAStream) {
  const auto mistake = [](const FakeServer::Handler& handler) {
    FakeServer server(handler);
    return mistake_of(options_for(server.url()));
  };
  EXPECT_THAT(mistake(refuses(200, R"({"choices": [{"text": "all at once"}]})")),
              HasSubstr("without streaming"));
  EXPECT_THAT(mistake(streams("data: {\n\n")), HasSubstr("not a JSON object"));
  EXPECT_THAT(mistake(streams("<html>\n\n")), HasSubstr("not server-sent events"));
  EXPECT_THAT(mistake(streams("")), HasSubstr("empty"));
  EXPECT_THAT(mistake(streams(text_event(""))), HasSubstr("mid-stream, after 0"));
  EXPECT_THAT(mistake(streams("data: [DONE]\n\n")), HasSubstr("no text"));
  EXPECT_THAT(mistake(streams(text_event("a") + text_event("b"))),
              HasSubstr("mid-stream, after 2"));
  EXPECT_THAT(mistake(streams(event({{"error", {{"message", "engine died"}}}}))),
              HasSubstr("engine died"));
  // The connection breaks within a chunked answer.
  EXPECT_THAT(mistake([](const httplib::Request&, httplib::Response& response) {
                response.set_chunked_content_provider("text/event-stream",
                                                      [](size_t, httplib::DataSink& sink) {
                                                        const std::string piece = text_event("a");
                                                        sink.write(piece.data(), piece.size());
                                                        return false;
                                                      });
              }),
              HasSubstr("mid-stream, after 1"));
}

TEST(CompletionClient, NoServerNoModelSilence) {
  EXPECT_THAT(mistake_of(options_for("http://127.0.0.1:1")),
              HasSubstr("cannot connect to http://127.0.0.1:1"));
  FakeServer none(streams(""), "/v1/completions", "{}");
  EXPECT_THAT(mistake_of(options_for(none.url())), HasSubstr("give --model"));
  FakeServer two(streams(""), "/v1/completions", R"({"data": [{"id": "a"}, {"id": "b"}]})");
  EXPECT_THAT(mistake_of(options_for(two.url())),
              HasSubstr("has 2 models, give one with --model: a, b"));

  std::atomic<bool> over = false;
  FakeServer silent([&](const httplib::Request&, httplib::Response&) {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  ServerOptions options = options_for(silent.url());
  options.model = "tiny";
  options.timeout_s = 1;
  EXPECT_THAT(mistake_of(options), HasSubstr("no byte for 1 s (--timeout)"));
  over = true;
}

TEST(CompletionClient, CtrlCEndsAWait) {
  std::atomic<bool> cancel = false;
  std::atomic<bool> over = false;
  FakeServer silent([&](const httplib::Request&, httplib::Response&) {
    cancel = true;  // the client waits by now
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  ServerOptions options = options_for(silent.url());
  options.model = "tiny";
  CompletionClient client(options, &cancel);
  EXPECT_THROW(client.complete("hello", 4), Cancelled);
  over = true;
}

TEST(ServerOptions, UrlsAndKeys) {
  for (const char* url : {"", "localhost:8000", "ftp://host", "http://", "http://:80",
                          "http://host:", "http://host:0", "http://host:99999", "http://host:8a",
                          "http://a b", "http://user@host", "http://host\n"}) {
    EXPECT_THROW(check_server_options(options_for(url)), Error) << url;
  }
  for (const char* url : {"http://host", "http://host:8000/", "https://host/api/v1",
                          "http://[::1]:80", "http://[::1]"}) {
    EXPECT_NO_THROW(check_server_options(options_for(url))) << url;
  }
  ServerOptions options = options_for("http://host");
  options.api_key_env = "FOVEA_NO_SUCH_VARIABLE";
  EXPECT_THROW(check_server_options(options), Error);
  setenv("FOVEA_TEST_KEY", "a\r\nX-Header: b", 1);
  options.api_key_env = "FOVEA_TEST_KEY";
  EXPECT_THROW(check_server_options(options), Error);
}

TEST(SweepServer, PromptsAreNewAndLengthsAreReached) {
  // A token is half a word here, and 10 tokens stand before every prompt.
  FakeServer server([](const httplib::Request& request, httplib::Response& response) {
    const std::string prompt = Json::parse(request.body)["prompt"];
    const int64_t num_words = 1 + std::count(prompt.begin(), prompt.end(), ' ');
    response.set_content(
        answer(3, {{"prompt_tokens", 10 + 2 * num_words}, {"completion_tokens", 3}}),
        "text/event-stream");
  });
  SweepPlan plan;
  plan.lengths = {200, 400, 800};
  plan.repetitions = 2;
  plan.decode_tokens = 2;
  CompletionClient client(options_for(server.url()), nullptr);
  SweepRecord record;
  double share = 0;
  sweep_server(
      client, plan, [&](const std::string&, double done) { share = done; }, &record);
  EXPECT_EQ(record.num_samples(), 6);
  EXPECT_GT(share, 0.5);
  const std::vector<Json> requests = server.requests();
  ASSERT_EQ(requests.size(), 9u);  // a warm-up for each length
  std::set<std::string> prompts;
  for (const Json& body : requests) prompts.insert(body["prompt"].get<std::string>().substr(0, 60));
  EXPECT_EQ(prompts.size(), 9u);
  EXPECT_EQ(requests[0]["max_tokens"], 3);
  for (const SweepRow& row : record.rows()) {
    EXPECT_NEAR(*row.prompt_tokens() / static_cast<double>(row.length), 1, 0.1);
  }
  EXPECT_EQ(record.table().prefill.front().backend, "tiny");
}

// The command itself: what was measured before the server failed is kept.
TEST(SweepCommandOnAServer, KeepsWhatWasMeasured) {
  std::atomic<int> num_requests = 0;
  FakeServer server([&](const httplib::Request&, httplib::Response& response) {
    if (++num_requests > 5) {
      response.status = 500;
      response.set_content("out of memory", "text/plain");
      return;
    }
    response.set_content(
        answer(3, {{"prompt_tokens", 60 * num_requests}, {"completion_tokens", 3}}),
        "text/event-stream");
  });
  const ProcessResult result =
      run_fovea({"sweep", "--url", server.url(), "--lengths", "128,256,512", "--repetitions", "1",
                 "--decode-tokens", "2", "--json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("HTTP 500: out of memory"));
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["finished"], false);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["conditions"]["model"], "tiny");
  EXPECT_TRUE(json["conditions"]["hardware"].is_null());
  EXPECT_FALSE(json.contains("processor"));  // the client's is not the server's
}

}  // namespace
}  // namespace fovea::cli
