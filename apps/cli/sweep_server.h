// A sweep of a server that speaks the OpenAI protocol (vLLM, SGLang, llama.cpp, ours), as a client
// sees it.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "apps/cli/sweep.h"

namespace fovea::cli {

struct ServerOptions {
  std::string url;          // "http://host:port", with a path before /v1 if need be; https as well
  std::string model;        // empty: the only one that the server lists
  std::string api_key_env;  // variable that holds the key; empty: no key
  bool chat = false;        // ask /v1/chat/completions rather than /v1/completions
  int64_t timeout_s = 300;  // without a byte
};

/// Throws kInvalidArgument naming what is wrong with the URL, the key's variable or the timeout.
void check_server_options(const ServerOptions& options);

/// A client that sends one request at a time over a connection that it keeps.
///
/// Every method throws one line, kInvalidArgument for what the server refuses or where none is,
/// kInvalidFile for answers that are not the protocol's, Cancelled when `cancel` is raised.
class CompletionClient {
 public:
  /// Throws as check_server_options does.
  CompletionClient(const ServerOptions& options, const std::atomic<bool>* cancel);
  ~CompletionClient();
  CompletionClient(const CompletionClient&) = delete;
  CompletionClient& operator=(const CompletionClient&) = delete;

  /// The model that requests name: the one asked for, or the only one that the server lists.
  const std::string& model();
  /// Streams an answer of at most `max_tokens` tokens. The sample's prompt_tokens is 0 when the
  /// server does not count them.
  SweepSample complete(const std::string& prompt, int64_t max_tokens);
  /// Remarks on the answers so far: fields that the server refused, tokens in bundles.
  const std::vector<std::string>& notes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// `count` common words in random order, about one token each.
std::string random_words(int64_t count, std::mt19937_64& random);

/// Runs `plan` and adds each timed request to `record` under the model's name. Prompts are random
/// words, as many as earlier answers say that the wanted number of tokens takes.
void sweep_server(CompletionClient& client, const SweepPlan& plan, const SweepProgress& progress,
                  SweepRecord* record);

}  // namespace fovea::cli
